"""``gqa`` as a user sees it: arguments, output, and exit status."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from as_user import Desk, Done, Gqa, in_terminal, in_this_process, wait_for
from case_files import HEAD, entries, write

from conformance.base.paths import ROOT
from conformance.results.reader import Run, read
from conformance.results.records import ResultRecord
from conformance.targets.catalogue import target_names
from conformance.targets.registry import target_for
from conformance.targets.tools import ONNXRUNTIME_GPU_VERSION, has_cuda

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)


@pytest.fixture
def gqa(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Gqa]:
    """``gqa`` in this process, which behaves the same and starts faster."""
    monkeypatch.chdir(desk.folder)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAULT_ON", desk.faulty)
    with in_this_process(monkeypatch, capsys) as call:
        yield call


def sentence(done: Done, status: int) -> str:
    """The one line that a command printed before it ended with ``status``."""
    assert (done.status, done.out) == (status, "")
    (line,) = done.err.splitlines()
    return line


# Bad input


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1,\n", ["bad.yaml:2:1: bad YAML: "]),
        (
            "format: gqa-cases/2\n",
            ["bad.yaml:1:1: the field 'cases' is", "bad.yaml:1:1: the field 'question' is missing"],
        ),
        (entries("- name: a\n  dtyp: x"), ["bad.yaml:7:5: unknown field 'dtyp'; did you mean"]),
        (entries("- name: a\n  batch_size: two"), ["bad.yaml:7:17: batch_size: expected "]),
        (
            entries("- name: a\n  num_heads: 3"),
            ["bad.yaml:7:16: num_heads 3 is not a multiple of kv_num_heads 2; a call that is"],
        ),
        (
            entries("- name: a\n  dtyp: x\n- name: b\n  head_size: big"),
            ["bad.yaml:7:5: unknown field", "bad.yaml:9:16: head_size: expected"],
        ),
    ],
)
def test_every_error_of_a_bad_file_is_listed_and_nothing_runs(
    gqa: Gqa, desk: Desk, text: str, says: list[str]
) -> None:
    write(desk.folder, text, "bad.yaml")
    for command in (("run", "--ep", "exec:/no/such"), ("list",)):
        done = gqa(*command, "bad.yaml", "three.yaml")
        assert (done.status, done.out) == (2, "")
        lines = done.err.splitlines()
        assert len(lines) == len(says)
        assert all(line.startswith(part) for line, part in zip(lines, says, strict=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("three.yaml", "-k", "nothing"), "-k 'nothing' selects none of 3 cases."),
        (("three.yaml", "-k", "one and ("), "-k 'one and (': expected a word"),
        (("nowhere.yaml",), "nowhere.yaml: no such file or folder"),
        (("programs",), "programs: no case file (format: gqa-cases/2) in this folder"),
        (("three.yaml::two",), "No case is called 'three/two'"),
        (("nosuch/case",), "No case file and no shipped theme is called 'nosuch'"),
        (
            ("three.yaml", "--ep", "cpuu"),
            f"Unknown target 'cpuu'; known: {', '.join(target_names())}; did",
        ),
        (
            ("three.yaml", "--ep", "cpu", "--ep", "tpu"),
            "Unknown target 'tpu'; known: cpu, cpu-noflash, cpu-threads, cuda",
        ),
        (("three.yaml", "--ep", "exec:"), "exec: needs the path of a runner"),
        (
            ("three.yaml", "--ep", "webgpu", "--adapter", "vulkan"),
            "Unknown adapter 'vulkan'; expected swiftshader, lavapipe, gpu or the path of",
        ),
    ],
)
def test_an_argument_that_matches_nothing_gives_one_line(
    gqa: Gqa, arguments: tuple[str, ...], says: str
) -> None:
    assert sentence(gqa("run", *arguments), 2).startswith(says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "three.yaml", "--jobs", "0"), "'--jobs': 0 is not in the range"),
        (("run", "three.yaml", "--jobs", "many"), "'many' is not a valid integer"),
        (("run", "three.yaml", "--frob"), "No such option"),
        (("run", "three.yaml", "--results", "."), "'.' is a directory"),
        (("walk",), "No such command 'walk'"),
        (("plan", "--json"), "and gqa run takes --shard N/OF."),
        (("report", "--html", "x.html"), "Missing argument 'RESULTS...'"),
        (("diff", "old.jsonl"), "Missing argument 'NEW'"),
        (("show",), "Missing argument 'CASE_ID'"),
    ],
)
def test_invalid_options(gqa: Gqa, arguments: tuple[str, ...], says: str) -> None:
    done = gqa(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("Usage: gqa ")
    assert says in done.err.splitlines()[-1]


def test_help_and_version(gqa: Gqa) -> None:
    assert gqa("--version").out.startswith("gqa-conformance ")
    for command in ("run", "list", "show", "report", "diff", "doctor", "cache"):
        done = gqa(command, "-h")
        assert done.status == 0
        assert done.out.startswith(f"Usage: gqa {command}")
    assert "Exit status: 0 all as expected" in gqa("run", "--help").out


def test_gqa_without_arguments_lists_the_commands(gqa: Gqa) -> None:
    done = gqa()
    assert done.status in (0, 2)  # 2 since click 8.2
    assert "Usage: gqa" in done.both


# Faulty runners: one run over all of them

VERDICTS = {
    "dies": (
        "crash",
        "The runner died of SIGSEGV, and again when it was tried alone; "
        "the last it wrote: reading past the end.",
    ),
    "hangs": ("timeout", "No answer within 1.5 s; the process was killed."),
    "other_dtype": ("wrong", "present_key has dtype int64, not float32"),
    "wrong_values": ("wrong", "output is 1000 at [0, 0, 63], not "),
    "rejects": ("unsupported", "Rejected at load with a message; the call is specified."),
    "elsewhere": ("fallback", "It ran, but on SomeOtherExecutionProvider; NoExecutionProvider was"),
    "skips": ("skip", ""),
    "floods_stderr": ("pass", "Computed correctly"),
}
TROUBLES = {
    "exits": "The runner ended with status 0 during the case",
    "floods_stdout": "The runner wrote more than 1048576 bytes in one line",
    "half_line": "The runner began an answer and did not end it in time",
    "not_json": "the line is not JSON",
    "other_id": "the answer has id ",
    "no_file": "the file 0_0_output.pb of output is not there",
    "short_file": "The file of output is not a valid tensor: ",
    "prints_from_c": ": kernel: using 4 threads",
    "is_ended": "The runner died of SIGTERM during the case",
}
FAULTS = [*VERDICTS, *TROUBLES]


@pytest.fixture(scope="module")
def faults(desk: Desk) -> tuple[Done, Run]:
    """All miniatures in one run, and its results file read back."""
    targets = [word for name in FAULTS for word in ("--ep", desk.runner(name), "--name", name)]
    done = desk.gqa("run", "three.yaml", *targets, "--results", "faults.jsonl")
    return done, read(desk.folder / "faults.jsonl")


def on(run: Run, name: str) -> dict[str, ResultRecord]:
    """The results of a miniature, by the case's name."""
    return {
        result.case.partition("/")[2]: result
        for result in run.results
        if result.target == f"{name}@1.0"
    }


@pytest.mark.parametrize("name", VERDICTS)
def test_each_faulty_runner_gets_its_verdict(faults: tuple[Done, Run], name: str) -> None:
    verdict, says = VERDICTS[name]
    result = on(faults[1], name)["faulty"]
    assert result.verdict == verdict
    assert says in result.reason
    assert result.unexpected == (verdict not in ("pass", "skip"))


@pytest.mark.parametrize("name", TROUBLES)
def test_a_runners_own_error_is_listed_as_infrastructure(
    faults: tuple[Done, Run], name: str
) -> None:
    done, run = faults
    (trouble,) = [t for t in run.infrastructure if t.target == f"{name}@1.0"]
    assert trouble.case == "three/faulty"
    assert TROUBLES[name] in trouble.message
    assert "faulty" not in on(run, name)
    lines = [line for line in done.out.splitlines() if f" {name}@1.0 (three/faulty): " in line]
    assert len(lines) == 1
    assert lines[0].startswith("Infrastructure, ")
    assert TROUBLES[name] in lines[0]


@pytest.mark.parametrize("name", FAULTS)
def test_the_other_cases_are_not_affected(faults: tuple[Done, Run], name: str) -> None:
    results = on(faults[1], name)
    assert [results[other].verdict for other in ("one", "fine")] == ["pass", "pass"]


def test_the_whole_run_is_printed_and_recorded(faults: tuple[Done, Run], desk: Desk) -> None:
    done, run = faults
    assert (desk.folder / "faults.jsonl").read_text().count('"kind":"case"') == 3
    assert done.status == 3
    assert run.problems == (f"{len(TROUBLES)} of {3 * len(FAULTS)} results are missing.",)
    assert run.footer is not None
    assert run.footer.complete
    unexpected = sum(verdict not in ("pass", "skip") for verdict, _ in VERDICTS.values())
    assert done.out.splitlines()[-2] == (
        f"{len(run.results)} results, {unexpected} unexpected,"
        f" {len(TROUBLES)} infrastructure failures"
    )
    assert done.out.splitlines()[-1] == "Results: faults.jsonl"
    (skip,) = [result for result in run.results if result.verdict == "skip"]
    told = done.out.replace(f"{desk.folder}/", "")
    assert f"\nSkipped:\n  1 on {skip.target}: {skip.reason}\n" in told
    assert "Traceback" not in done.both


def test_the_table_has_a_row_for_each_target(faults: tuple[Done, Run], desk: Desk) -> None:
    lines = faults[0].out.splitlines()
    (head,) = [line for line in lines if line.startswith("theme")]
    signs = ["☠ crash", "⧗ timeout", "✗ wrong", "↷ fallback", "○ unsupported", "✓ pass", "– skip"]
    assert re.split(r"\s{2,}", head.strip()) == ["theme", "target", *signs, "unexpected"]
    for name in FAULTS:
        assert sum(line.startswith(f"three  {name}@1.0 ") for line in lines) == 1
    total = next(line for line in lines if line.startswith("all ")).split()
    assert total == ["all", "1", "1", "2", "1", "1", str(2 * len(FAULTS) + 1), "1", "6"]


def test_an_unexpected_result_is_printed_with_its_reproduction(
    faults: tuple[Done, Run], desk: Desk
) -> None:
    lines = faults[0].out.splitlines()
    target = desk.runner("wrong_values")
    start = lines.index("three/faulty on wrong_values@1.0: wrong")
    assert lines[start + 1].startswith("  reason    It ran, but output is 1000 at [0, 0, 63]")
    assert lines[start + 2 : start + 5] == [
        "  wrong in  output",
        "  contract  computes (specified)",
        "            a document",
    ]
    assert lines[start + 5].startswith("  worst     output[0, 0, 63]: got 1000, expected ")
    assert "times the budget)" in lines[start + 5]
    named = f"--ep {target} --name wrong_values"
    assert lines[start + 6] == f"  reproduce gqa run three.yaml::faulty {named}"


def test_a_crash_is_printed_with_its_last_line(faults: tuple[Done, Run]) -> None:
    assert "  stderr    reading past the end" in faults[0].out.splitlines()


def test_piped_output_is_plain(faults: tuple[Done, Run]) -> None:
    done = faults[0]
    assert "\x1b" not in done.both
    progress = done.err.splitlines()
    total = 3 * len(FAULTS)
    assert len(progress) <= 10
    assert progress[-1].startswith(f"{total}/{total}  1 crash, 1 timeout, 2 wrong, 1 fallback, ")
    assert progress[-1].endswith(f"{len(TROUBLES)} infrastructure")


def test_the_reproduction_works_when_pasted(faults: tuple[Done, Run], desk: Desk) -> None:
    result = on(faults[1], "wrong_values")["faulty"]
    done = desk.paste(result.reproduce)
    assert done.status == 1
    assert "1 result, 1 unexpected" in done.out
    assert result.reason in done.out


def test_a_report_of_several_files(faults: tuple[Done, Run], gqa: Gqa, desk: Desk) -> None:
    target = desk.runner("correct")
    assert gqa("run", "three.yaml", "--ep", target, "--results", "second.jsonl").status == 0
    done = gqa("report", "faults.jsonl", "second.jsonl", "--html", "both.html")
    assert (done.status, done.out) == (0, "Report:  both.html\n")
    page = (desk.folder / "both.html").read_text(encoding="utf-8")
    for name in ("miniature", "dies"):
        assert f"{name}@1.0" in page
    assert str(desk.folder) not in page


# Exit status


def test_exit_status_0_if_all_is_as_expected(gqa: Gqa, desk: Desk) -> None:
    done = gqa("run", "three.yaml", "--ep", desk.runner("correct"), "--jobs", "2")
    assert done.status == 0
    assert "3 results, 0 unexpected" in done.out


def test_the_html_needs_no_results_file(gqa: Gqa, desk: Desk) -> None:
    done = gqa("run", "three.yaml::one", "--ep", desk.runner("correct"), "--html", "one.html")
    assert done.status == 0
    assert done.out.splitlines()[-1] == "Report:  one.html"
    assert "Results:" not in done.out
    page = (desk.folder / "one.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "1 way to call" in page


def test_exit_status_1_if_something_is_unexpected(gqa: Gqa, desk: Desk) -> None:
    assert gqa("run", "three.yaml", "--ep", desk.runner("rejects")).status == 1


def test_a_selection_runs_only_the_selected_cases(gqa: Gqa, desk: Desk) -> None:
    arguments = ("run", "three.yaml", "--ep", desk.runner("dies"), "-k", "not FAULTY")
    done = gqa(*arguments, "--results", "two.jsonl")
    assert done.status == 0
    run = read(desk.folder / "two.jsonl")
    assert [result.case for result in run.results] == ["three/one", "three/fine"]
    assert run.header.selection.text == "three.yaml -k not FAULTY"
    assert (run.header.selection.cases, run.header.selection.results) == (2, 2)
    assert run.problems == ()


def test_a_target_can_be_left_out_by_the_selection(gqa: Gqa, desk: Desk) -> None:
    targets = ("--ep", desk.runner("correct"), "--ep", desk.runner("waits"))
    done = gqa("run", "three.yaml", *targets, "-k", "waits and one", "--results", "left.jsonl")
    assert done.status == 0
    assert len(read(desk.folder / "left.jsonl").results) == 1


# Missing programs and targets


def test_a_runner_that_cannot_start_gives_one_sentence_and_the_others_run(
    gqa: Gqa, desk: Desk
) -> None:
    write(desk.folder, "just text", "text.txt")
    targets = [
        word
        for ep in ("exec:./gone", "exec:./text.txt", desk.runner("correct"))
        for word in ("--ep", ep)
    ]
    done = gqa("run", "three.yaml", *targets, "--results", "missing.jsonl")
    assert done.status == 3
    gone = f"The runner {desk.folder}/gone does not exist."
    text = f"The runner {desk.folder}/text.txt is not executable."
    assert done.both.count(gone) == done.both.count(text) == 1
    lines = done.out.splitlines()
    assert f"Infrastructure, exec:./gone: {gone}" in lines
    at = lines.index(f"Infrastructure, exec:./text.txt: {text}")
    assert lines[at + 1] == f"  fix: chmod +x {desk.folder}/text.txt"
    assert "3 results, 0 unexpected, 2 infrastructure failures" in lines
    run = read(desk.folder / "missing.jsonl")
    assert [result.verdict for result in run.results] == ["pass"] * 3
    short = [sentence.replace(f"{desk.folder}/", "") for sentence in (gone, text)]
    assert [trouble.message for trouble in run.infrastructure] == short
    assert [target.unavailable for target in run.header.targets] == [*short, None]
    assert len(run.cases) == 3


def test_a_missing_interpreter(gqa: Gqa) -> None:
    done = gqa("run", "three.yaml", "--ort-python", "/no/such/python")
    assert done.status == 3
    assert done.both.count("/no/such/python") == 1
    assert "Infrastructure, cpu: The runner /no/such/python does not exist." in done.out


def test_an_unavailable_target_does_not_exit_with_0(gqa: Gqa, desk: Desk) -> None:
    target = desk.runner("unavailable")
    done = gqa("run", "three.yaml", "--ep", target, "--results", "skips.jsonl")
    assert done.status == 3
    lines = done.out.splitlines()
    assert lines[0] == f"{target} is not available"
    assert lines[-2] == f"3 results, 0 unexpected, nothing tested on {target}"
    said = f"{target}: every case was skipped: there is no device"
    assert lines[lines.index(said) + 1] == "  fix: pip install miniature"
    assert {r.verdict for r in read(desk.folder / "skips.jsonl").results} == {"skip"}


def test_a_target_that_skips_every_case_does_not_exit_with_0(gqa: Gqa, desk: Desk) -> None:
    write(desk.folder, entries("- name: eight\n  cache_dtype: float8e4m3fn"), "eight.yaml")
    target = desk.runner("correct")
    done = gqa("run", "eight.yaml", "--ep", target)
    assert done.status == 3
    assert "miniature@1.0: every case was skipped: " in done.out
    assert "cannot take float8e4m3fn" in done.out
    both = gqa("run", "eight.yaml", "three.yaml", "--ep", target)
    assert both.status == 0
    assert "nothing tested" not in both.out


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without any packages."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return str(folder / "bin" / "python")


def test_an_interpreter_without_onnxruntime(gqa: Gqa, bare_python: str) -> None:
    done = gqa("run", "three.yaml", "--ort-python", bare_python)
    assert done.status == 3
    lines = done.out.splitlines()
    (at,) = [n for n, line in enumerate(lines) if "onnxruntime is not installed in " in line]
    assert lines[at].startswith("cpu: every case was skipped: ")
    assert lines[at + 1].startswith("  fix: ")
    assert bare_python in lines[at + 1]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("__version__ = '1.19.2'", "onnxruntime 1.19.2 is too old: "),
        ("raise ImportError('libfoo.so.1 is missing')", "libfoo.so.1 is missing"),
    ],
    ids=["too old", "broken"],
)
def test_a_broken_onnxruntime(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    write(tmp_path, source, "onnxruntime/__init__.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = gqa("run", "three.yaml")
    assert done.status == 3
    lines = done.out.splitlines()
    (at,) = [n for n, line in enumerate(lines) if says in line]
    assert lines[at].startswith("cpu: every case was skipped: ")
    assert lines[at + 1].startswith("  fix: ")
    assert "Traceback" not in done.both


def test_cuda_without_a_gpu_skips_everything_and_does_not_exit_with_0(gqa: Gqa, desk: Desk) -> None:
    done = gqa("run", "three.yaml", "--ep", "cuda", "--results", "cuda.jsonl")
    if "cuda@" in done.out:
        pytest.skip("there is a GPU here")
    assert done.status == 3
    results = read(desk.folder / "cuda.jsonl").results
    assert {result.verdict for result in results} == {"skip"}
    (reason,) = {result.reason for result in results}
    assert done.both.count(reason) == 1
    assert f"cuda: every case was skipped: {reason}" in done.out


def test_a_targets_name_contains_its_adapter(desk: Desk) -> None:
    ep = desk.runner("on_adapter")
    done = desk.gqa("run", "three.yaml", "--ep", ep, "--results", "a.jsonl", "--html", "a.html")
    assert done.status == 0, done.both
    run = read(desk.folder / "a.jsonl")
    name = "miniature@1.0+lavapipe"
    assert f"{name}: miniature 1.0 on none" in done.out.splitlines()
    (column,) = run.header.targets
    ep = ep.replace(f"{desk.folder}/", "")
    assert (column.name, column.ep) == (name, ep)
    assert column.describe is not None
    assert column.describe.adapter == "lavapipe"
    assert {result.target for result in run.results} == {name}
    assert all(result.reproduce.endswith(f" --ep {ep}") for result in run.results)
    assert run.footer is not None
    assert run.footer.counts == {name: {"pass": 3}}
    assert run.problems == ()


@has_onnxruntime
def test_the_real_cpu_target(desk: Desk) -> None:
    done = desk.gqa("run", "three.yaml", "--results", "cpu.jsonl", "--html", "cpu.html")
    assert done.status == 0, done.both
    run = read(desk.folder / "cpu.jsonl")
    assert [result.verdict for result in run.results] == ["pass"] * 3
    (target,) = run.header.targets
    assert target.describe is not None
    assert target.name == f"cpu@{target.describe.version}"
    assert {result.placement for result in run.results} == {"CPUExecutionProvider"}
    assert done.out.splitlines()[-2:] == ["Results: cpu.jsonl", "Report:  cpu.html"]


# Results files


def test_an_impossible_results_path_is_reported_before_anything_runs(gqa: Gqa) -> None:
    for option, what in (("--results", "results"), ("--html", "the report")):
        done = gqa("run", "three.yaml", "--ep", "exec:/no/such", option, "no/such/file")
        said = f"Cannot write {what} to no/such/file: there is no folder no/such."
        assert sentence(done, 3) == said
        done = gqa("run", "three.yaml", "--ep", "exec:/no/such", option, "three.yaml/file")
        assert sentence(done, 3).startswith(f"Cannot write {what} to three.yaml/file: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_results_path_without_permission(gqa: Gqa, desk: Desk) -> None:
    folder = desk.folder / "locked"
    folder.mkdir(mode=0o500)
    said = sentence(gqa("run", "three.yaml", "--results", "locked/file"), 3)
    assert said == "Cannot write results to locked/file: permission denied."


def test_a_full_disk_loses_the_file_but_not_the_verdicts(gqa: Gqa, desk: Desk) -> None:
    done = gqa("run", "three.yaml", "--ep", desk.runner("dies"), "--results", "/dev/full")
    assert done.status == 3
    lines = done.out.splitlines()
    said = "Cannot write results to /dev/full: No space left on device."
    assert done.both.count("/dev/full") == 1
    assert said in lines
    assert "3 results, 1 unexpected" in lines
    assert any(line.endswith(": crash") for line in lines)


def test_a_full_disk_under_standard_output(desk: Desk) -> None:
    for arguments in (
        ("list", "three.yaml"),
        ("run", "three.yaml", "--ep", desk.runner("correct")),
    ):
        with open("/dev/full", "w") as full:
            process = desk.start(sys.executable, "-m", "conformance", *arguments, stdout=full)
            _, err = process.communicate(timeout=60)
        assert process.returncode == 3
        assert err.splitlines()[-1] == "Cannot continue: No space left on device."
        assert "Traceback" not in err


def test_a_closed_pipe_is_no_error_and_no_verdict(desk: Desk) -> None:
    more_than_a_pipe_holds = ("list", "--json", "pairs")
    process = desk.start(sys.executable, "-m", "conformance", *more_than_a_pipe_holds)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 130
    assert process.stderr.read() == ""


def test_a_cache_that_cannot_be_written(
    gqa: Gqa, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GQA_CACHE", str(desk.folder / "three.yaml"))
    done = gqa("run", "three.yaml", "--ep", desk.runner("correct"), "--results", "cache.jsonl")
    assert done.status == 3
    assert "Infrastructure, " in done.out
    assert done.both.count("Set GQA_CACHE to a writable folder with enough space.") == 1
    run = read(desk.folder / "cache.jsonl")
    assert (len(run.infrastructure), len(run.cases)) == (1, 3)
    assert "Set GQA_CACHE" in sentence(gqa("show", "three.yaml::one"), 3)


# Interruptions


def living(mark: str) -> list[str]:
    """The command lines of all processes with ``mark`` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GQA_TEST_MARK") == mark:
                found.append(shown(process))
        except (psutil.Error, OSError):
            continue
    return found


def shown(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def results_in(file: Path) -> int:
    return file.read_bytes().count(b'"kind":"result"') if file.exists() else 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_an_interrupted_run_leaves_a_marked_file_and_no_process(
    desk: Desk, number: signal.Signals
) -> None:
    write(desk.folder, THREE_SLOW, "slow.yaml")
    file = desk.folder / f"{number.name}.jsonl"
    mark = f"{file}"
    environment = {"GQA_TEST_MARK": mark, "FAULT_ON": "/", "FAULT_SECONDS": "0.3"}
    command = ("run", "slow.yaml", "--ep", desk.runner("waits"), "--jobs", "2")
    process = desk.start(
        sys.executable,
        *("-m", "conformance", *command, "--results", file.name, "--html", f"{file.name}.html"),
        environment=environment,
    )
    wait_for(lambda: results_in(file))
    assert len(living(mark)) >= 2
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert living(mark) == []
    assert "Traceback" not in out + err
    run = read(file)
    assert run.footer is not None
    assert not run.footer.complete
    assert 0 < len(run.results) < 20
    assert run.problems[0] == "The run was stopped before its end."
    assert f"{len(run.results)} result" in out
    assert ", interrupted" in out
    assert out.splitlines()[-2:] == [f"Results: {file.name}", f"Report:  {file.name}.html"]
    assert "stopped before its end" in (desk.folder / f"{file.name}.html").read_text()


THREE_SLOW = entries(
    """
    - name: slow
      matrix:
        seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
        sequence_length: [1, 2]
    """
)


def test_an_interruption_before_the_first_case_leaves_no_file(desk: Desk) -> None:
    mark = str(desk.folder / "early")
    process = desk.start(
        *(sys.executable, "-m", "conformance", "run", "three.yaml", "--results", "early.jsonl"),
        *("--html", "early.html", "--ep", desk.runner("starts_for_ever")),
        environment={"GQA_TEST_MARK": mark},
    )
    wait_for(lambda: len(living(mark)) == 2)
    time.sleep(0.2)  # while one starts, it ends at the end of its input
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert living(mark) == []
    assert out.splitlines()[-1] == "0 results, 0 unexpected, interrupted"
    assert "Traceback" not in err
    assert not (desk.folder / "early.jsonl").exists()


# One cache for several runs


def test_two_concurrent_runs_share_one_cache(desk: Desk, tmp_path: Path) -> None:
    write(desk.folder, THREE_SLOW, "slow.yaml")
    environment = {"GQA_CACHE": str(tmp_path)}
    command = (sys.executable, "-m", "conformance", "run", "slow.yaml", "--ep")
    both = [desk.start(*command, desk.runner("correct"), environment=environment) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, out + err
        assert "20 results, 0 unexpected" in out
    folders = list((tmp_path / "bundles").glob("*/*"))
    assert len(folders) == 20
    assert not [folder for folder in folders if folder.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "3"])
def test_the_cache_is_deleted_during_a_run(desk: Desk, tmp_path: Path, jobs: str) -> None:
    write(desk.folder, THREE_SLOW, "slow.yaml")
    cache, file = tmp_path / "cache", desk.folder / f"deleted{jobs}.jsonl"
    process = desk.start(
        *(sys.executable, "-m", "conformance", "run", "slow.yaml", "--jobs", jobs),
        *("--ep", desk.runner("waits"), "--results", file.name),
        environment={"GQA_CACHE": str(cache), "FAULT_ON": "/", "FAULT_SECONDS": "0.08"},
    )
    wait_for(lambda: results_in(file) >= 3)
    cache.rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "20 results, 0 unexpected" in out
    run = read(file)
    assert run.problems == ()
    assert {result.verdict for result in run.results} == {"pass"}


# The terminal


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")


@pytest.mark.parametrize("no_color", [False, True], ids=["colour", "NO_COLOR"])
def test_a_terminal_shows_a_progress_bar(desk: Desk, no_color: bool) -> None:
    environment = {"FAULT_ON": "/", "FAULT_SECONDS": "0.2"}
    if no_color:
        environment["NO_COLOR"] = "1"
    arguments = ("run", "three.yaml", "--ep", desk.runner("waits"))
    status, text = in_terminal(desk, *arguments, **environment)
    assert status == 0
    assert "━" in text
    assert re.search(r"[12]/3", text)
    assert re.search(r"[12] pass", text)
    assert "3 results, 0 unexpected" in text
    assert bool(COLOUR.search(text)) is not no_color


def test_a_terminal_without_unicode_gets_question_marks(desk: Desk) -> None:
    arguments = ("run", "three.yaml", "--ep", desk.runner("correct"))
    done = desk.gqa(*arguments, environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.status == 0, done.err
    assert "theme  ? pass  unexpected" in done.out


# Listing and showing cases


def test_list_prints_ids(gqa: Gqa, desk: Desk) -> None:
    done = gqa("list", "three.yaml")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == ["three/one", "three/faulty", "three/fine"]
    assert gqa("list", "three.yaml", "-k", "one or fine").out == "three/one\nthree/fine\n"
    write(desk.folder, entries("- name: below"), "deep/down/folder.yml")
    assert gqa("list", "deep", "three.yaml::one").out == "folder/below\nthree/one\n"


def test_list_prints_the_shipped_corpus_and_selected_ids(gqa: Gqa) -> None:
    ids = gqa("list").out.splitlines()
    assert len(ids) == len(set(ids)) >= 150
    wanted = "shared_kv/zero_length_kv[dtype=float16,past_sequence_length=64,batch_size=1]"
    assert wanted in ids
    assert gqa("list", wanted).out.splitlines() == [wanted]
    entry = [name for name in ids if name.startswith("shared_kv/zero_length_kv[")]
    assert gqa("list", "shared_kv/zero_length_kv").out.splitlines() == entry


def test_list_as_json_is_one_object_a_line(gqa: Gqa) -> None:
    records = [json.loads(line) for line in gqa("list", "three.yaml", "--json").out.splitlines()]
    assert [record["id"] for record in records] == ["three/one", "three/faulty", "three/fine"]
    assert [record["title"] for record in records] == 3 * ["Prompt"]
    assert records[0]["contract"] == {
        "demands": "computes",
        "basis": "specified",
        "source": "a document",
        "why": "",
        "mentions": [],
        "readings": [],
        "disputed": "",
        "providers": {},
    }


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the table that ``show`` draws, by the tensor's name."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {row[1]: row[2:] for row in cells if row[0] in ("input", "output") and len(row) > 1}


def test_show_draws_a_call(gqa: Gqa, desk: Desk) -> None:
    body = """
    - name: drawn
      title: One new token, drawn
      why: For the drawing.
      tags: [pretty]
      links: [https://example.org/2]
      presents: none
      past_sequence_length: 3
      softcap: 2.0
      contract:
        demands: rejects
        basis: requested
        source: https://example.org/1
        why: Somebody asked.
        mentions: [present]
    """
    write(desk.folder, entries(body), "drawn.yaml")
    done = gqa("show", "drawn.yaml::drawn")
    assert (done.status, done.err) == (0, "")
    table = rows(done.out)
    assert table["query"][:2] == ["float32", "[1, 1, 64]"]
    assert re.fullmatch(r"-\d+\.\d+ … \d+\.\d+", table["query"][2])
    assert table["past_key"][:2] == ["float32", "[1, 2, 3, 16]"]
    assert table["seqlens_k"] == ["int32", "[1]", "3"]
    assert table["total_sequence_length"] == ["int32", "[]", "4"]
    assert table["output"] == ["float32", "[1, 1, 64]"]
    assert "present_key" not in table
    assert done.out.splitlines()[:2] == ["drawn/drawn", "One new token, drawn"]
    for line in (
        "What is asked?",
        "For the drawing.",
        "omitted at the end of the outputs: present_key, present_value, output_qk",
        "attributes  num_heads=4  kv_num_heads=2  softcap=2.0",
        "contract    rejects (requested)",
        "            Somebody asked.",
        "            https://example.org/1",
        "            a rejection names one of: present",
        "see         https://example.org/2",
        "tags        pretty",
        "file        drawn.yaml:6",
        "run         gqa run drawn.yaml::drawn --ep cpu",
    ):
        assert line in done.out.splitlines()


def test_show_draws_omitted_and_unusual_tensors(gqa: Gqa, desk: Desk) -> None:
    body = """
    - name: odd
      key_value: zero_length
      past_sequence_length: 3
      inputs:
        past_value: {values: {kind: constant, value: .inf}}
        query: {values: {kind: constant, value: .nan}}
    """
    write(desk.folder, entries(body), "odd.yaml")
    table = rows(gqa("show", "odd.yaml::odd").out)
    assert table["key"] == ["float32", "[1, 0, 32]", "no elements"]
    assert table["past_value"][-1] == "none finite"
    packed = entries("- name: packed\n  key_value: packed\n  presents: value_only")
    write(desk.folder, packed, "packed.yaml")
    table = rows(gqa("show", "packed.yaml::packed").out)
    assert table["query"][1] == "[1, 1, 128]"
    assert table["key"] == table["past_key"] == table["present_key"] == ["omitted"]
    assert table["present_value"] == ["float32", "[1, 2, 1, 16]"]


def test_show_draws_a_loop_call_by_call(gqa: Gqa) -> None:
    done = gqa("show", "loop/chunks[dtype=float16]")
    assert done.status == 0
    calls = re.split(r"^step \d$", done.out, flags=re.MULTILINE)[1:]
    assert len(calls) == 5
    first, second = rows(calls[0]), rows(calls[1])
    assert first["past_key"][1:] == ["[1, 2, 0, 16]", "no elements"]
    assert first["present_key"] == ["float16", "[1, 2, 3, 16]"]
    assert second["past_key"] == ["float16", "[1, 2, 3, 16]", "present_key of the step before"]
    assert second["past_value"][-1] == "present_value of the step before"
    assert second["output"] == ["float16", "[1, 3, 64]"]
    assert "gqa run 'loop/chunks[dtype=float16]' --ep cpu" in done.out


def test_show_requires_exactly_one_case(gqa: Gqa, desk: Desk) -> None:
    write(desk.folder, THREE_SLOW, "slow.yaml")
    done = gqa("show", "slow.yaml::slow")
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[0] == "'slow.yaml::slow' matches 20 cases; give one of them:"
    assert lines[1] == "  slow.yaml::slow[seed=1,sequence_length=1]"
    assert gqa("show", lines[1].strip()).status == 0


def test_show_of_an_invalid_file(gqa: Gqa, desk: Desk) -> None:
    write(desk.folder, f"{HEAD}  - nme: x\n", "wrong.yaml")
    done = gqa("show", "wrong.yaml::x")
    assert done.status == 2
    assert "wrong.yaml:6:" in done.err


@has_onnxruntime
def test_known_rejections_are_not_defects(gqa: Gqa) -> None:
    wanted = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"
    refused = "power/many_keys_alike[dtype=bfloat16]"
    assert "1 result, 0 unexpected, 1 known failure\n" in gqa("run", wanted).out
    assert "1 result, 0 unexpected, 1 known rejection\n" in gqa("run", refused).out


@has_onnxruntime
def test_the_sample_in_the_readme_is_what_the_command_prints(
    gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (ROOT / "README.md").is_file():
        pytest.skip("not a checkout")
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command, _, sample = readme.partition("\n$ gqa run ")[2].partition("\n…\n")
    printed = gqa("run", command.strip("'")).out
    if "@1.31.1" not in printed:
        pytest.skip("the sample is of onnxruntime 1.31.1")
    assert sample.partition("\n```")[0] in printed


@has_onnxruntime
def test_causes_of_known_results_are_listed(gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("run", "bounds_attributes", "-k", "float32 and local_window_size")
    told = gqa(*arguments).out.partition("Known defects:\n")[2].splitlines()
    assert told[0].startswith("  1 wrong in output on cpu@1.")
    assert told[1] == "      docs/findings/ort-cpu-attributes-of-64-bits.md"
    assert told[2].startswith("      bounds_attributes/local_window_size")
    monkeypatch.setattr("conformance.cli.terminal.FEW_CAUSES", 1)
    many = ("run", "bounds_heads", "-k", "float32 and num_heads")
    assert " known defects; list them with --known." in gqa(*many).out
    assert "Known defects:\n" in gqa(*many, "--known").out


# The other commands


@pytest.mark.slow
@has_onnxruntime
def test_doctor_lists_what_is_installed_and_how_to_fix_the_rest(gqa: Gqa) -> None:
    done = gqa("doctor")
    assert done.status == 0
    lines = done.out.splitlines()
    cpu = next(n for n, line in enumerate(lines) if line.startswith("✓ cpu  "))
    assert lines[cpu + 1].startswith("    version   onnxruntime 1.")
    assert "float16" in lines[cpu + 2]
    assert lines[cpu + 3].startswith("    needs     the Python package onnxruntime")
    cuda = next(n for n, line in enumerate(lines) if line[2:].startswith("cuda  "))
    assert lines[cuda].startswith("✓") or "    fix       " in lines[cuda + 1]
    assert lines[-1].startswith("cache     ")


def test_doctor_prints_the_adapter(gqa: Gqa, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [target_for(desk.runner(name)) for name in ("on_adapter", "correct")]
    monkeypatch.setattr("conformance.cli.doctor.built_in", lambda programs: targets)
    lines = gqa("doctor").out.splitlines()
    assert lines[0] == f"✓ {targets[0].ep}  none"
    assert lines[1:3] == ["    version   miniature 1.0", "    adapter   lavapipe"]
    assert sum(line.startswith("    adapter") for line in lines) == 1


def test_doctor_lists_the_facts_of_an_adapter_only_on_request(
    gqa: Gqa, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "conformance.cli.doctor.built_in", lambda programs: [target_for(desk.runner("on_adapter"))]
    )
    assert "maxBufferSize" not in gqa("doctor").out
    lines = gqa("doctor", "-v").out.splitlines()
    at = lines.index("    versions  driver 7.0")
    assert lines[at + 1] == "              limits maxBindGroups=4 maxBufferSize=4294967295"


@has_onnxruntime
def test_doctor_says_which_python_cuda_takes_and_how_to_get_one(
    gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_cuda(sys.executable):
        pytest.skip("this interpreter's onnxruntime has CUDA")
    monkeypatch.setenv("GQA_TOOLS", str(tmp_path))
    monkeypatch.setattr("conformance.cli.doctor.built_in", lambda programs: [target_for("cuda")])
    lines = gqa("doctor").out.splitlines()
    assert lines[0].startswith("✗ cuda  the installed wheel onnxruntime ")
    assert lines[1:3] == [
        "    fix       gqa setup cuda",
        f"    needs     {target_for('cuda').needs}",
    ]
    environment = tmp_path / f"onnxruntime-gpu-{ONNXRUNTIME_GPU_VERSION}"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    lines = gqa("doctor").out.splitlines()
    assert f"    program   {environment}/bin/python, from gqa setup cuda" in lines


def test_doctor_on_a_machine_without_any_target(gqa: Gqa, bare_python: str) -> None:
    nothing = ("--tract", "/no/such/tract", "--tract-python", bare_python)
    nothing += ("--onnxruntime-web", "/no/such/web")
    done = gqa("doctor", "--ort-python", bare_python, *nothing)
    found = [line for line in done.out.splitlines() if line.startswith("✓")]
    assert not found, "a target has no option that hides its runtime, or it is not given here"
    assert done.status == 3
    assert "✗ tract-wheel  The package tract is not installed in " in done.out
    assert "    fix       leave out --ort-python to use what gqa setup cuda installs" in done.out
    assert "    program   /no/such/tract, from --tract" in done.out
    lines = done.out.splitlines()
    assert lines[0].startswith("✗ cpu  onnxruntime is not installed in ")
    assert lines[1].startswith("    fix       ")
    done = gqa("doctor", "--ort-python", "/no/such", *nothing)
    assert done.status == 3
    assert done.out.startswith("✗ cpu  The runner /no/such does not exist.")


def test_cache_is_shown_and_cleared(
    gqa: Gqa, tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GQA_CACHE", str(tmp_path / "cache"))
    assert gqa("cache").out == f"{tmp_path}/cache: 0 bundles, 0.0 MB\n"
    gqa("run", "three.yaml", "--ep", desk.runner("correct"))
    assert gqa("cache").out.startswith(f"{tmp_path}/cache: 3 bundles, 0.")
    assert "removed 3 bundles" in gqa("cache", "--clear").out
    assert "0 bundles" in gqa("cache").out


def test_a_report_of_a_file_that_is_not_a_results_file(gqa: Gqa, desk: Desk) -> None:
    said = sentence(gqa("report", "gone.jsonl", "--html", "x.html"), 2)
    assert said == "Cannot read results from gone.jsonl: No such file or directory."
    said = sentence(gqa("report", "three.yaml", "--html", "x.html"), 2)
    assert said.startswith("three.yaml:1: not a line of JSON")
    assert not (desk.folder / "x.html").exists()
