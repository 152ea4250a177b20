"""``gqa run --resume``: a run that was cut off goes on, and ends as if it had run through."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from as_user import Gqa

from conformance.base.paths import data_path
from conformance.results.reader import Run, read

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


@pytest.fixture
def whole(gqa: Gqa, tmp_path: Path) -> list[bytes]:
    """The lines of a run that was not cut off."""
    file = tmp_path / "whole.jsonl"
    assert gqa("run", "twenty.yaml", "--results", str(file)).status == 0
    return file.read_bytes().splitlines(keepends=True)


def judged(run: Run) -> dict[tuple[str, str], Any]:
    return {(r.case, r.target): (r.verdict, r.errors, r.reproduce) for r in run.results}


def no_other_files(file: Path) -> bool:
    return [each.name for each in file.parent.glob(f"{file.name}*")] == [file.name]


BROKEN = b'{"kind":"result","case":"twe'


@pytest.mark.parametrize(
    ("lines", "broken"),
    [(1, b""), (2, BROKEN), (3, b""), (17, BROKEN), (40, b""), (41, BROKEN), (42, b"")],
)
def test_a_run_goes_on_where_it_was_cut_off(
    gqa: Gqa, tmp_path: Path, whole: list[bytes], lines: int, broken: bytes
) -> None:
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(whole[:lines]) + broken)
    there = read(file)
    done = gqa("run", "twenty.yaml", "--resume", str(file))
    assert done.status == 0, done.both
    assert f"{len(there.results)} result" in done.out
    assert "20 results, 0 unexpected" in done.out
    run = read(file)
    assert run.problems == ()
    assert run.footer.complete
    assert run.header == there.header
    (tmp_path / "all.jsonl").write_bytes(b"".join(whole))
    assert judged(run) == judged(read(tmp_path / "all.jsonl"))
    assert run.results[: len(there.results)] == there.results  # kept, not run again
    assert no_other_files(file)


def test_a_runner_by_its_path(gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of a runner by its whole path goes on."""
    # The runner's python3 is the one that has what it needs.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    file, target = tmp_path / "r.jsonl", f"exec:{data_path('mutants') / 'runner.py'}"
    gqa("run", "twenty.yaml", "--ep", target, "--minutes", "0.001", "--results", str(file))
    done = gqa("run", "twenty.yaml", "--ep", target, "--resume", str(file))
    assert done.status == 0, done.both
    assert "20 results, 0 unexpected" in done.out
