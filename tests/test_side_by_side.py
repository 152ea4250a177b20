"""Work in a process for each core, for what it leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.base import side_by_side as module
from conformance.base.side_by_side import side_by_side

linux = pytest.mark.skipif(sys.platform != "linux", reason="nothing is done elsewhere")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On two cores, this process has these threads, whatever other tests have left: one."""
    threads, listed = ["1"], os.listdir
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(
        "os.listdir", lambda path: threads if str(path) == "/proc/self/task" else listed(path)
    )
    return threads


def leave_a_file(path: Path) -> None:
    if path.stem == "bad":
        raise OSError
    if path.stem == "deadly":
        os._exit(1)
    path.write_text(str(os.getpid()))


@linux
def test_each_item_is_done_in_another_process_whatever_fails(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one", "bad", "two", "three")]
    side_by_side(leave_a_file, paths)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made.keys() == {"one", "two", "three"}
    assert str(os.getpid()) not in made.values()


@linux
def test_a_process_that_dies_costs_its_own_item_only(tmp_path: Path) -> None:
    names = ["deadly", *map(str, range(9))]
    side_by_side(leave_a_file, [tmp_path / name for name in names])
    assert {path.name for path in tmp_path.iterdir()} == {*names} - {"deadly"}


@linux
def test_more_items_than_a_pipe_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_NUMBERS", 3)
    side_by_side(leave_a_file, [tmp_path / str(number) for number in range(20)])
    assert len([*tmp_path.iterdir()]) == 20


@linux
@pytest.mark.parametrize("possible", [0, 1])
def test_processes_that_cannot_be_started_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, possible: int
) -> None:
    fork, left = os.fork, [None] * possible

    def limited() -> int:
        if not left:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left.pop()
        return fork()

    monkeypatch.setattr("os.fork", limited)
    side_by_side(leave_a_file, [tmp_path / str(number) for number in range(4)])
    assert len([*tmp_path.iterdir()]) == 4 * possible


def wait_for_ever(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(60 if path.stem == "wait" else 0.2)


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(
    tmp_path: Path, number: signal.Signals
) -> None:
    """At once if it is interrupted, and before their next item if it is killed."""
    name = "wait" if number == signal.SIGINT else "short"
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n"
        "from pathlib import Path; from test_side_by_side import *\n"
        f"side_by_side(wait_for_ever, [Path({str(tmp_path / name)!r})] * 100)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 30
        while not (tmp_path / name).exists() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(number)
        process.wait(30)
    pids = {*map(int, (tmp_path / name).read_text().split())}
    assert pids
    end = time.monotonic() + 10  # an item, and the time until somebody has noted the end
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.mark.parametrize("why", ["one item", "one core", "threads", "another system"])
def test_nothing_is_done_where_it_is_no_faster_or_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: list[str], why: str
) -> None:
    if why == "one core":
        monkeypatch.setattr("os.sched_getaffinity", lambda process: {0}, raising=False)
    if why == "threads":
        threads.append("2")
    if why == "another system":
        monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("os.fork", lambda: pytest.fail("it forks"))
    side_by_side(leave_a_file, [tmp_path / "one", tmp_path / "two"][: 1 if "item" in why else 2])
    assert not [*tmp_path.iterdir()]
