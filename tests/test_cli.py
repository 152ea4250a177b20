"""``gqa`` as a user sees it: arguments, output, and exit status."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from as_user import TWENTY, Desk, Gqa, in_terminal, wait_for
from case_files import write

from conformance.base.paths import ROOT
from conformance.results.reader import read
from conformance.targets.registry import target_for
from conformance.targets.tools import ONNXRUNTIME_GPU_VERSION, has_cuda

has_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="onnxruntime is not installed"
)


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


@has_onnxruntime
def test_the_real_cpu_target(desk: Desk) -> None:
    done = desk.gqa("run", "three.yaml", "--results", "cpu.jsonl")
    assert done.status == 0, done.both
    run = read(desk.folder / "cpu.jsonl")
    found = {(result.verdict, result.placement) for result in run.results}
    assert found == {("pass", "CPUExecutionProvider")}
    (target,) = run.header.targets
    assert target.describe is not None
    assert target.name == f"cpu@{target.describe.version}"


# Results files


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_results_path_without_permission(gqa: Gqa, desk: Desk) -> None:
    folder = desk.folder / "locked"
    folder.mkdir(mode=0o500)
    done = gqa("run", "three.yaml", "--results", "locked/file")
    assert (done.status, done.out) == (3, "")
    assert done.err == "Cannot write results to locked/file: permission denied.\n"


# Interruptions


def living(mark: str) -> list[str]:
    """The command lines of all processes with ``mark`` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GQA_TEST_MARK") == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def results_in(file: Path) -> int:
    return file.read_bytes().count(b'"kind":"result"') if file.exists() else 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_an_interrupted_run_leaves_a_marked_file_and_no_process(
    desk: Desk, number: signal.Signals
) -> None:
    write(desk.folder, TWENTY, "twenty.yaml")
    file = desk.folder / f"{number.name}.jsonl"
    mark = f"{file}"
    environment = {"GQA_TEST_MARK": mark, "FAULT_ON": "/", "FAULT_SECONDS": "0.3"}
    command = ("run", "twenty.yaml", "--ep", desk.runner("waits"), "--jobs", "2")
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
    assert re.search(rf"{len(run.results)} results?, .*, interrupted", out)
    assert "stopped before its end" in (desk.folder / f"{file.name}.html").read_text()


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


@has_onnxruntime
def test_known_rejections_are_not_defects(gqa: Gqa) -> None:
    wanted = "bounds_attributes/local_window_size[dtype=float32,local_window_size=4294967297]"
    refused = "power/many_keys_alike[dtype=bfloat16]"
    assert "1 result, 0 unexpected, 1 known failure\n" in gqa("run", wanted).out
    assert "1 result, 0 unexpected, 1 known rejection\n" in gqa("run", refused).out


@has_onnxruntime
def test_the_sample_in_the_docs_is_what_the_command_prints(
    gqa: Gqa, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "kernel_work.md"
    if not page.is_file():
        pytest.skip("not a checkout")
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    command, _, sample = text.partition("\n$ gqa run ")[2].partition("\n…\n")
    printed = gqa("run", command.strip("'")).out
    version = re.findall(r" on (cpu@\S+): ", sample)[0]
    if version not in printed:
        pytest.skip(f"the sample is of {version}")
    without_lines = [re.sub(r"\.yaml:\d+", ".yaml", text) for text in (sample, printed)]
    assert without_lines[0].partition("\n```")[0] in without_lines[1]


# The other commands


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
