import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time

DATA = json.loads(r"""__DATA__""")


def write_bundle(folder):
    """Write the model and the inputs; the request that names them."""
    with open(f"{folder}/model.onnx", "wb") as file:
        file.write(model())
    steps = []
    for step, tensors in enumerate(inputs()):
        files = {}
        carry = DATA["carry"][step]
        for name, values in tensors.items():
            if name not in carry:
                files[name] = f"{step}_{name}.pb"
                with open(f"{folder}/{files[name]}", "wb") as file:
                    file.write(tensor_message(name, dtype_of(name), values))
        share = {present: past for past, present in DATA["share"].items()}
        keep = DATA["keep"][step]
        steps.append({"files": files, "carry": carry, "keep": keep, "share": share})
        steps[-1]["may_be_rejected"] = step in DATA["refused"]
    return {"bundle": folder, "repeat": DATA["runs"], "steps": steps}


def varint(content, at):
    """A number of a protobuf message, and where the next begins."""
    number = shift = 0
    while True:
        number |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:
            return number, at


def read(path):
    """The values of a file with one TensorProto."""
    with open(path, "rb") as file:
        content = file.read()
    dims, kind, raw, at = [], 0, b"", 0
    while at < len(content):
        key, at = varint(content, at)
        length, start = varint(content, at)
        at = start + length if key % 8 == 2 else start
        if key == 8:
            dims.append(length)
        elif key == 10:  # several in one field
            while start < at:
                size, start = varint(content, start)
                dims.append(size)
        elif key == 16:
            kind = length
        elif key == 74:
            raw = content[start:at]
    (dtype,) = (dtype for dtype, (number, _) in DTYPES.items() if number == kind)
    return values_of(raw, dtype, dims)


def ask(runner, number, request, seconds):
    """The runner's answer to a request."""
    start = time.monotonic()
    timer = threading.Timer(seconds, runner.kill)
    timer.daemon = True
    timer.start()
    line = json.dumps({"id": number, **request})
    print(">", line)
    with contextlib.suppress(BrokenPipeError):  # it has ended
        runner.stdin.write(line + "\n")
        runner.stdin.flush()
    answer = {"outcome": "compiling"}
    while answer and answer["outcome"] == "compiling":
        line = runner.stdout.readline()
        print("<", line.rstrip())
        answer = json.loads(line or "null")
    timer.cancel()
    if time.monotonic() - start >= seconds:
        runner.kill()
        print("no answer within", seconds, "s")
        end("timeout")
    if answer:
        return answer
    status = runner.wait()
    print("the runner ended with status", status, "(negative: the signal)")
    if 0 <= status <= 128:
        sys.exit("that is an error of its own")
    end("crash")


def main():
    """Let the runner make the calls, and check what comes back."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {sys.argv[0]} RUNNER [ARGUMENT]…")
    pipe = subprocess.PIPE
    with tempfile.TemporaryDirectory() as bundle, tempfile.TemporaryDirectory() as out:
        request = {"cmd": "run", **write_bundle(bundle), "out": out}
        runner = subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe, text=True)
        ask(runner, 1, {"cmd": "describe"}, 120)
        answer = ask(runner, 2, request, DATA["seconds"])
        runner.stdin.close()
        runner.wait()
        if answer["outcome"] != "ran":
            end(
                {"rejected": DATA["if_rejected"], "crashed": "crash"}.get(answer["outcome"], "skip")
            )
        steps = [
            {} if step in DATA["refused"] else files
            for run in answer["runs"]
            for step, files in enumerate(run)
        ]
        check([{name: read(f"{out}/{file}") for name, file in each.items()} for each in steps])


from checks import check, end, values_of
from inputs import DTYPES, dtype_of, inputs, model, tensor_message

main()
