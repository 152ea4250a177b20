"""Work in a process for each core, for what it leaves behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from conformance.base.side_by_side import side_by_side


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On two cores, this process has these threads, whatever other tests have left: one."""
    threads, listed = ["1"], os.listdir
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(
        "os.listdir", lambda path: threads if str(path) == "/proc/self/task" else listed(path)
    )
    return threads


def leave_a_file(path: Path) -> None:
    if path.stem == "bad":
        raise OSError
    path.write_text(str(os.getpid()))


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is done elsewhere")
def test_each_item_is_done_in_another_process_whatever_fails(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "bad", "two", "three")]
    side_by_side(leave_a_file, paths)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made.keys() == {"one", "two", "three"}
    assert str(os.getpid()) not in made.values()


@pytest.mark.parametrize("why", ["one item", "one core", "threads", "another system"])
def test_nothing_is_done_where_it_is_no_faster_or_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: list[str], why: str
) -> None:
    if why == "one core":
        monkeypatch.setattr("os.cpu_count", lambda: 1)
    if why == "threads":
        threads.append("2")
    if why == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("multiprocessing.get_context", lambda _: pytest.fail("it forks"))
    side_by_side(leave_a_file, [tmp_path / "one", tmp_path / "two"][: 1 if "item" in why else 2])
    assert not [*tmp_path.iterdir()]
