#!/usr/bin/env python3
"""Tells the lie, or has the fault, that the environment variable LIE names.

It is started hundreds of times: what only one of them needs is imported or made there.
"""

import json
import os
import shutil
import signal
import sys
import time

import miniature

LIES = {}
#: What it says, as texts.
with open(os.path.join(os.path.dirname(__file__), "lies.json")) as file:
    TOLD = json.load(file)
SKIPPED = '{"id": ID, "outcome": "unavailable", "reason": "this adapter has no float16"}'
COMPILING = '{"id": ID, "outcome": "compiling"}'
LATER = TOLD["later"]
DESCRIPTIONS = {
    **TOLD["descriptions"],
    "long_name": {"name": "n" * 41},
    "huge_version": {"version": "1" * 900_000},
    "huge_device": {"device": "d" * 900_000},
    "many_versions": {"versions": {f"\x1b[{n}m": "\x07" * 9 for n in range(9000)}},
}
ATTRIBUTES = {"many_attributes": 9000, "attributes_beyond_a_line": 100_000}


def lie(function):
    LIES[function.__name__] = function
    return function


def with_outputs(change):
    """Answers that it ran, after ``change(path)`` on the file of each first output."""

    def fault(request):
        runs = miniature.outputs(request)
        for run in runs:
            change(os.path.join(request["out"], run[0]["output"]))
        miniature.ran(request, runs=runs)

    return fault


# Files


def replacing(make):
    def change(path):
        os.unlink(path)
        make(path)

    return with_outputs(change)


def bind(path):
    import socket

    os.chdir(os.path.dirname(path))
    socket.socket(socket.AF_UNIX).bind(os.path.basename(path))


LIES |= {
    "sparse": with_outputs(lambda path: os.truncate(path, 1 << 40)),
    "three_gigabytes": with_outputs(lambda path: os.truncate(path, 3 << 30)),
    "empty": with_outputs(lambda path: os.truncate(path, 0)),
    "fifo": replacing(lambda path: os.mkfifo(path)),
    "link_to_zeros": replacing(lambda path: os.symlink("/dev/zero", path)),
    "link_to_nothing": replacing(lambda path: os.symlink("/no/such", path)),
    "folder": replacing(lambda path: os.mkdir(path)),
    "socket": replacing(bind),
}


@lie
def grows(request):
    """A child makes a file longer while it is read."""
    import subprocess

    runs = miniature.outputs(request)
    path = os.path.join(request["out"], runs[0][0]["output"])
    script = (
        "import sys\nwith open(sys.argv[1], 'ab', 0) as file:\n"
        " for _ in range(400): file.write(bytes(1 << 20))"
    )
    subprocess.Popen([sys.executable, "-S", "-c", script, path])
    while os.path.getsize(path) < 60 << 20:
        time.sleep(0.01)
    miniature.ran(request, runs=runs)


@lie
def writes_afterwards(request):
    """A process outside its group writes again and again to all folders of outputs."""
    import subprocess

    runs = miniature.outputs(request)
    script = (
        "import glob, os, sys, time\nos.setsid()\nend = time.time() + 1.5\ntime.sleep(0.3)\n"
        "while time.time() < end:\n"
        " for name in glob.glob(sys.argv[1] + '/*.pb'): open(name, 'wb').write(b'no')\n"
    )
    subprocess.Popen([sys.executable, "-S", "-c", script, request["out"]])
    miniature.ran(request, runs=runs)


@lie
def folder_is_a_link(request):
    runs = miniature.outputs(request)
    os.rename(request["out"], request["out"] + "-moved")
    os.symlink(request["out"] + "-moved", request["out"])
    miniature.ran(request, runs=runs)


@lie
def folder_is_gone(request):
    runs = miniature.outputs(request)
    shutil.rmtree(request["out"])
    miniature.ran(request, runs=runs)


@lie
def litter(request):
    runs = miniature.outputs(request)
    path = request["out"]
    for number in range(200):
        open(os.path.join(request["out"], f"litter_{number}"), "w").close()
        path = os.path.join(path, "deeper")
        os.mkdir(path)
    os.chmod(path, 0)
    miniature.ran(request, runs=runs)


def copying(copy):
    """Answers that it ran, with output files that ``copy(expected, written)`` has made."""
    return lambda request: miniature.ran(request, runs=miniature.outputs(request, copy=copy))


def half(expected, out):
    with open(expected, "rb") as source:
        data = source.read()
    write(out, data[: len(data) // 2])


def one_int64(expected, out):
    """Neither the expected dtype nor the expected shape."""
    name = dict(miniature.fields(expected))[8]
    write(out, field(1, 1) + field(2, 7) + field(8, name) + field(9, bytes([42, *bytes(7)])))


def last_bit(expected, out):
    """Its last output value is wrong in the last bit, which every error budget allows."""
    fields = dict(miniature.fields(expected))
    miniature.flipped(expected, out, int(fields[8] == b"output"), len(fields[9]) - 4)


LIES |= {
    "no_file": copying(lambda expected, out: None),
    "links": copying(os.symlink),
    "short_file": copying(half),
    "other_dtype": copying(one_int64),
    "wrong_alone": copying(miniature.inverted),
    "last_bit": copying(last_bit),
    "one_file": lambda r: miniature.ran(r, runs=miniature.outputs(r)[:1] * r["repeat"]),
    "wrong_count": lambda r: miniature.ran(r, runs=miniature.outputs({**r, "repeat": 1})),
    "wrong_type": lambda r: miniature.ran(r, load_ms="0.25"),
    "no_placement": lambda r: miniature.ran(r, placement=None),
    "other_id": lambda r: miniature.ran({**r, "id": r["id"] + 1}),
}


@lie
def leaves_litter(request):
    """Unreadable folders among its output files."""
    folder = os.path.join(request["out"], "temporary", "deep")
    os.makedirs(folder)
    write(os.path.join(folder, "file"), b"litter")
    os.symlink(request["bundle"], os.path.join(request["out"], "link"))
    os.chmod(folder, 0)
    os.abort()


# Tensors


def varint(value):
    value &= (1 << 64) - 1
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def tensor(dims=None, data_type=1, name=b"output", more=b"", **raw):
    """Replaces the tensor by one with other fields."""

    def change(path):
        found = list(miniature.fields(path))
        shape = [value for number, value in found if number == 1] if dims is None else dims
        data = raw.get("raw_data", dict(found).get(9, b""))
        with open(path, "wb") as file:
            for size in shape:
                file.write(field(1, size))
            file.write(field(2, data_type) + field(8, name) + more)
            if data is not None:
                file.write(field(9, data))

    return with_outputs(change)


LIES |= {
    "negative_dimension": tensor(dims=[-1]),
    "name_of_another_output": tensor(name=b"present_key"),
    "name_of_no_output": tensor(name=b"\x1b[2J"),
    "float_data": tensor(raw_data=None, more=field(4, bytes(256))),
    "int32_data": tensor(raw_data=None, more=field(5, bytes(64))),
    "int64_data": tensor(raw_data=None, more=field(7, bytes(64))),
    "double_data": tensor(raw_data=None, more=field(10, bytes(512))),
    "external_data": tensor(
        raw_data=None,
        more=field(14, 1) + field(13, field(1, b"location") + field(2, b"/etc/passwd")),
    ),
    "segment": tensor(more=field(3, field(1, 0) + field(2, 1))),
    "too_few_bytes": tensor(raw_data=b"abcd"),
    "too_many_bytes": tensor(raw_data=bytes(9999)),
    "huge_dimensions": tensor(dims=[1 << 40, 1 << 40], raw_data=bytes(4)),
    "overflowing_product": tensor(dims=[1 << 32, 1 << 32], raw_data=b""),
    "a_million_dimensions": tensor(dims=[], more=field(1, b"\x01" * 1_000_000), raw_data=bytes(4)),
    "unknown_dtype": tensor(data_type=99),
    "text": tensor(data_type=8),
    "endless_groups": with_outputs(lambda path: write(path, b"\x0b" * 100_000)),
    "noise": with_outputs(lambda path: write(path, bytes(range(256)) * 99)),
    "nan": tensor(raw_data=b"\xff" * 256),
    "another_shape": tensor(dims=[64]),
}


# Its bundle


@lie
def forges_its_case(request):
    """Rewrites what is expected of it."""
    runs = miniature.outputs(request)
    os.truncate(os.path.join(request["bundle"], "test_data_set_0", "output_0.pb"), 3)
    miniature.ran(request, runs=runs)


@lie
def rewrites_its_inputs(request):
    path = os.path.join(request["bundle"], "test_data_set_0", "input_0.pb")
    os.truncate(path, 3)
    miniature.ran(request)


# Answers


def line(text):
    """Writes outputs, and then ``text`` with the right id, runs and provider in it."""

    def fault(request):
        runs = json.dumps(miniature.outputs(request))
        said = text.replace("ID", str(request["id"])).replace("RUNS", runs)
        data = said.replace("PLACE", json.dumps(miniature.PROVIDER)).encode(
            "utf-8", "surrogateescape"
        )
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()

    return fault


RAN = '{"id": ID, "outcome": "ran", "placement": PLACE, "runs": RUNS, "ms": {"load": 1, "run": 1}}'
REJECTED = '{"id": ID, "outcome": "rejected", "stage": "run", "message": "no"}'
LIES |= {name: line(text) for name, text in TOLD["lines"].items()}
LIES |= {
    "deep_json": line("[" * 400_000),
    "deep_message": line(REJECTED.replace('"no"', '{"a":' * 5000 + "1" + "}" * 5000)),
    "huge_id": line(RAN.replace("ID", "1" * 5000)),
    "huge_placement": line(RAN.replace("PLACE", json.dumps("p" * 900_000))),
    "carriage_returns": line(REJECTED.replace("no", "\\r" * 9000)),
    "long_message": line(REJECTED.replace("no", "no " * 100_000)),
}


@lie
def rejects(request):
    """Like a runtime: with an error."""
    complain("E: bad shape")
    error = {"stage": "load", "step": 0, "code": "INVALID", "message": "query has rank 2"}
    miniature.answer(request, outcome="rejected", **error, changed=["past_key"])


@lie
def compiles(request):
    """Reports that it is compiling, and answers FAULT_SECONDS (0) later."""
    miniature.answer(request, outcome="compiling")
    time.sleep(float(os.environ.get("FAULT_SECONDS", "0")))
    miniature.ran(request)


@lie
def half_line(request):
    """Writes half an answer, then hangs, or exits with FAULT_STATUS if that is set."""
    print('{"id": ', end="", flush=True)
    if "FAULT_STATUS" in os.environ:
        os._exit(int(os.environ["FAULT_STATUS"]))
    time.sleep(600)


@lie
def hangs(request):
    """And ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


@lie
def utf_16(request):
    sys.stdout.buffer.write((RAN.replace("ID", str(request["id"])) + "\n").encode("utf-16"))
    sys.stdout.buffer.flush()


def named(change):
    def fault(request):
        runs = miniature.outputs(request)
        for run in runs:
            change(run[0])
        miniature.ran(request, runs=runs)

    return fault


LIES |= {
    "no_output": named(lambda step: step.pop("output")),
    "another_output": named(lambda step: step.update(logits=step.pop("output"))),
    "output_with_escapes": named(lambda step: step.update({"\x1b[2J": step.pop("output")})),
    "file_with_escapes": named(lambda step: step.update(output="\x1b[2J.pb")),
    "file_with_slash": named(lambda step: step.update(output="../1/0_0_output.pb")),
    "file_without_name": named(lambda step: step.update(output="..")),
    "file_with_long_name": named(lambda step: step.update(output="f" * 5000)),
    "swapped_outputs": named(
        lambda step: step.update(output=step["present_key"], present_key=step["output"])
    ),
}


def afterwards(text):
    """Answers correctly, and writes ``text`` a little later, without a request."""

    def fault(request):
        miniature.ran(request)
        time.sleep(0.2)  # on a busy machine, too, the answer is read before
        print(text.replace("ID", str(request["id"])), flush=True)

    return fault


LIES |= {"compiles_afterwards": afterwards(COMPILING), "speaks_unasked": afterwards("by the way")}


@lie
def prints_from_c(request):
    """Uses a library that prints to standard output from C code, past Python's own stream."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.puts(b"kernel: using 4 threads")
    libc.fflush(None)
    time.sleep(0.5)  # so that the line comes alone, on a busy machine, too
    miniature.ran(request)


@lie
def floods_lines(request):
    lines = (f"step {number}: everything is going very well indeed\n" for number in range(1000))
    sys.stdout.write("".join(lines) * 2000)  # never a line alone


@lie
def floods_stdout(request):
    """100 MB without a line end."""
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)


@lie
def floods_stderr(request):
    for _ in range(100):
        sys.stderr.write("x" * 1_000_000)
    complain("\nthe end")
    miniature.ran(request)


@lie
def closes_stdout(request):
    os.close(1)
    time.sleep(600)


@lie
def dies_at_length(request):
    """It has closed its output, and writes more to standard error than a pipe holds."""
    os.close(1)
    os.write(2, b"x" * (200 << 10) + b"\nthe end\n")
    os.abort()


@lie
def hungry(request):
    """Allocates FAULT_BYTES of memory (64 GiB), and reports whether that succeeded."""
    try:
        bytearray(int(os.environ.get("FAULT_BYTES", 64 << 30)))
        message = "there was enough memory"
    except MemoryError:
        message = "not enough memory"
    miniature.answer(request, outcome="rejected", stage="run", step=0, message=message)


# How it ends


def complain(text):
    print(text, file=sys.stderr, flush=True)


def segfault():
    os.kill(os.getpid(), signal.SIGSEGV)


@lie
def exits(request):
    complain("bye")
    os._exit(int(os.environ.get("FAULT_STATUS", "0")))


@lie
def dies(request):
    complain("reading past the end")
    segfault()


@lie
def gives_up(request):
    """Like a runtime that aborts inside a live process: prints the reason and kills itself."""
    complain("warming up\nAborted(memory access out of bounds).")
    os.abort()


@lie
def panics(request):
    """Twice, as Rust does where the first panic cannot unwind."""
    complain(
        "a warning\nthread 'main' (7) panicked at dim.rs:1:2:\nassertion `left == right` failed"
    )
    complain("  left: 1\n right: 2\n\nthread 'main' (7) panicked at dim.rs:1:2:\ncannot unwind")
    complain("stack backtrace:\n   0: rust_begin_unwind")
    os.abort()


@lie
def is_ended(request):
    os.kill(os.getpid(), signal.SIGTERM)


@lie
def leaves_child(request):
    """Which holds its pipes open."""
    import subprocess

    subprocess.Popen(["sleep", "600"])
    os.abort()


@lie
def dies_while_idle(request):
    miniature.ran(request)
    segfault()


@lie
def dies_in_the_end(request):
    """As soon as it is sent the next case, which it does not read."""
    import select

    miniature.ran(request)
    select.select([sys.stdin], [], [], 5)
    segfault()


@lie
def one_shot(request):
    """Exits with status 0, as if the input had ended."""
    miniature.ran(request)
    sys.exit(0)


@lie
def reports_a_crash_once(request):
    if os.path.exists(mark):
        miniature.ran(request)
    else:
        open(mark, "w").close()
        miniature.answer(request, outcome="crashed", step=0, ended="SIGSEGV", message="")


# In company


def after_another(end):
    """Fails by ``end()``, but only if this process has run another case, which did the damage."""

    def fault(request):
        if miniature.asked.count("run") > 1:
            end()
        miniature.ran(request)

    return fault


def abort_of_heap():
    complain("heap is broken.")
    os.abort()


def spoiling(then):
    """Answers correctly, but then all cases of the process go to ``then``."""

    def fault(request):
        miniature.ran(request)
        miniature.ran = then

    return fault


correctly = miniature.ran

LIES |= {
    "dies_after_another": after_another(abort_of_heap),
    "exits_after_another": after_another(lambda: sys.exit("no more handles")),
    "hangs_after_another": after_another(lambda: time.sleep(60)),
    "breaks_heap": spoiling(lambda request: abort_of_heap()),
    "spoils": spoiling(lambda r: correctly(r, runs=miniature.outputs(r, copy=miniature.inverted))),
}


@lie
def last_words(request):
    """Dies with control characters on standard error."""
    complain("\x1b[2J\x1b]0;owned\x07\x00 thread panicked at \x9b31m")
    segfault()


@lie
def kills_its_group(request):
    os.killpg(0, signal.SIGKILL)


@lie
def stops_itself(request):
    os.kill(os.getpid(), signal.SIGSTOP)


@lie
def version_of_each_process(request):
    """There is enough time to start other processes."""
    time.sleep(0.2)
    miniature.ran(request)


# How it starts


told = os.environ.get("LIE", "")
mark = os.environ.get("FAULT_MARK", "")


def die(request):
    open(mark, "w").close()
    segfault()


def describe(request):
    about = DESCRIPTIONS.get(told, {})
    if told in LATER and os.path.exists(mark):
        about = LATER[told]
    if told in ATTRIBUTES:
        attributes = dict.fromkeys(map(str, range(ATTRIBUTES[told])), "int")
        operator = LATER["operator_later"]["operator"]
        about = {"operator": {**operator, "attributes": attributes}}
    if told == "version_of_each_process":
        about = {"version": f"1.{os.getpid()}"}
    about = dict(about)
    dtypes = about.pop("dtypes", None)
    miniature.describe_itself(request, **about, **({} if dtypes is None else {"dtypes": dtypes}))


def serve():
    miniature.serve(LIES.get(told, die if told in LATER else None), describe)


if __name__ == "__main__":
    serve()
