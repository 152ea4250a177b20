"""What a run keeps in its results file: of stderr, and when writing fails."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest
from as_user import Desk, in_this_process
from synthetic_runs import header, target

from conformance.base.interrupts import install
from conformance.cli.run import ResultsKeeper
from conformance.cli.terminal import RunSummary
from conformance.results.errors import ResultsError
from conformance.results.place import Place
from conformance.results.reader import read
from conformance.results.records import InfrastructureRecord
from conformance.results.writer import Writer
from conformance.run.records import FEW_BYTES, STDERR_BYTES, end_of_stderr


@pytest.mark.parametrize("most", [FEW_BYTES, STDERR_BYTES])
@pytest.mark.parametrize("noise", ["x", "\x1b[31m", "\n", "é", "😀", "\udc80", "\x00"])
def test_the_end_of_stderr_is_bounded_as_json(noise: str, most: int) -> None:
    kept = end_of_stderr(noise * 100_000 + "the end", most)
    assert kept.startswith("[what was before this is left out]\n")
    assert kept.endswith(f"{noise}the end")
    writable = kept.encode("utf-8", "backslashreplace").decode()
    assert most - 40 <= len(json.dumps(writable, ensure_ascii=False).encode()) <= most
    assert end_of_stderr("short", most) == "short"


def test_only_results_that_need_it_keep_all_of_stderr(desk: Desk) -> None:
    ends = desk.runner("floods_stderr"), desk.runner("floods_stderr_and_rejects")
    done = desk.gqa("run", "three.yaml", *(w for e in ends for w in ("--ep", e)), "--results", "r")
    assert done.status == 1, done.both
    kept = {
        result.verdict: len(result.stderr)
        for result in read(desk.folder / "r").results
        if result.stderr
    }
    assert kept["pass"] <= FEW_BYTES
    assert STDERR_BYTES - 100 < kept["unsupported"] <= STDERR_BYTES


def test_an_interrupt_while_writing_fails_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(writer: Writer, record: InfrastructureRecord) -> None:
        signal.raise_signal(signal.SIGINT)
        raise ResultsError("Cannot write.")

    monkeypatch.setattr(Writer, "infrastructure", fail)
    summary = RunSummary()
    keep = ResultsKeeper(summary)
    with in_this_process(monkeypatch, capsys), contextlib.ExitStack() as stack:
        install()
        place = stack.enter_context(Place(tmp_path / "r"))
        keep.begin(stack, place, header([target()], 1, 1))
        with pytest.raises(KeyboardInterrupt):
            keep.trouble(InfrastructureRecord(target="cpu@1.31.1", message="It failed."))
    assert str(summary.writing) == "Cannot write."
    assert not summary.kept
