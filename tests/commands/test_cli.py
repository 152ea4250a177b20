"""``gqa`` as a user sees it: arguments, output, and exit status."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from as_user import MARK, TWENTY, Desk, Gqa, has_onnxruntime, in_terminal, living, wait_for
from case_files import write

from conformance.results.reader import read

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


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


# Interruptions


def results_in(file: Path) -> int:
    return file.read_bytes().count(b'"kind":"result"') if file.exists() else 0


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
def test_an_interrupted_run_leaves_a_marked_file_alone(desk: Desk, number: signal.Signals) -> None:
    write(desk.folder, TWENTY, "twenty.yaml")
    file = desk.folder / f"{number.name}.jsonl"
    mark = f"{file}"
    environment = {MARK: mark, "FAULT_ON": "/", "FAULT_SECONDS": "0.3"}
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
    assert not run.footer.complete
    assert 0 < len(run.results) < 20
    assert re.search(rf"{len(run.results)} results?, .*, interrupted", out)
    assert " not run." in (desk.folder / f"{file.name}.html").read_text()


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
    assert "1 result, 0 unexpected, 1 known refusal\n" in gqa("run", refused).out
