"""Signals and closed streams: a command ends with its documented status and no traceback."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from as_user import Desk, Done, wait_for
from case_files import entries
from endings import check_ending

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: The statuses of a command that signals reach while it starts, runs or ends.
_STATUSES = frozenset({0, 130})


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    desk = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    text = entries("- {name: one, matrix: {seed: [0, 1, 2, 3, 4, 5, 6, 7], causal: [0, 1]}}")
    (desk.folder / "many.yaml").write_text(text)
    done = desk.gqa("run", "many.yaml", "--ep", desk.runner("correct"))  # makes the bundles
    assert done.status == 0, done
    return desk


def handles_signals(process: subprocess.Popen[str]) -> bool:
    """Whether the process has installed its handlers, which is the first thing that it does."""
    if process.poll() is not None:
        return True
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():  # macOS: assume that a while is enough
        time.sleep(0.3)
        return True
    caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def interrupt(desk: Desk, draw: random.Random, length: float) -> Done:
    """A run that gets one to four signals at random moments of its ``length``."""
    file = desk.folder / "results.jsonl"
    file.unlink(missing_ok=True)
    command = ("gqa", "run", "many.yaml", "--ep", desk.runner("correct"), "--results", file.name)
    files = desk.folder / "files"
    files.mkdir(exist_ok=True)
    with desk.start(*command, environment={"TMPDIR": str(files)}) as process:
        wait_for(lambda: handles_signals(process))
        for number in range(draw.choice((1, 1, 2, 3, 4))):
            time.sleep(draw.random() * (length if number == 0 else 0.2))
            kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
            if process.poll() is None:
                process.send_signal(draw.choice(kinds))
        out, err = process.communicate(timeout=60)
    assert [*files.iterdir()] == []
    return Done(process.returncode, out, err)


def check_results(desk: Desk) -> bool:
    """Whether there is a results file; if so, each of its lines is whole, and `report` reads it."""
    file = desk.folder / "results.jsonl"
    if not file.exists():
        return False
    for line in file.read_text().splitlines():
        json.loads(line)
    done = desk.gqa("report", file.name, "--csv", "out.csv")
    check_ending(done)
    assert done.status == 0, done
    return True


def try_signals(desk: Desk, seed: int, count: int) -> Counter[int]:
    """Runs that get signals at random moments; how many ended with each exit status."""
    draw = random.Random(seed)
    start = time.monotonic()
    desk.gqa("run", "many.yaml", "--ep", desk.runner("correct"))
    length = time.monotonic() - start
    ended: Counter[int] = Counter()
    files = 0
    for _ in range(count):
        done = interrupt(desk, draw, length)
        check_ending(done)
        assert done.status in _STATUSES, done
        assert "Exception ignored" not in done.both, done
        ended[done.status] += 1
        files += check_results(desk)
    print(f"{count} runs got signals: {dict(ended)}, {files} results files, all readable")
    return ended


@pytest.mark.push
def test_signals_at_random_moments(desk: Desk) -> None:
    try_signals(desk, seed=1, count=3)


@pytest.mark.night
def test_many_signals_at_random_moments(desk: Desk) -> None:
    ended = try_signals(desk, seed=2, count=60)
    assert ended[130] >= 10  # the other signals came after the end


@pytest.mark.parametrize("numbers", [("INT", "INT", "INT"), ("TERM", "INT", "HUP"), ("HUP", "HUP")])
def test_repeated_signals_end_a_run_once(desk: Desk, numbers: tuple[str, ...]) -> None:
    """The first one ends the run, whose results file gets its last line; the others add nothing."""
    runner = desk.runner("hangs")
    command = ("gqa", "run", "three.yaml", "--ep", runner, "--results", "cut.jsonl")
    (desk.folder / "cut.jsonl").unlink(missing_ok=True)
    with desk.start(*command) as process:
        file = desk.folder / "cut.jsonl"
        wait_for(lambda: file.exists() and b'"result"' in file.read_bytes())
        runners = children(process.pid)
        assert runners
        for number in numbers:
            process.send_signal(signal.Signals[f"SIG{number}"])
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
    assert not any(map(alive, runners))
    done = Done(process.returncode, out, err)
    check_ending(done)
    assert done.status == 130, done
    assert "Traceback" not in done.both
    assert "interrupted" in done.out
    assert '"footer"' in file.read_text().splitlines()[-1]


def test_no_runner_outlives_a_killed_command(desk: Desk, tmp_path: Path) -> None:
    """The runner sees the end of its input. Its files go with the next run."""
    environment = {"TMPDIR": str(tmp_path)}
    command = ("gqa", "run", "three.yaml", "--ep", desk.runner("hangs"))
    with desk.start(*command, environment=environment) as process:
        wait_for(lambda: [*tmp_path.glob("gqa-files-*/*")])
        runners = children(process.pid)
        assert runners
        process.kill()
    wait_for(lambda: not any(map(alive, runners)))
    assert [*tmp_path.iterdir()] != []
    desk.gqa("run", "three.yaml", "--ep", desk.runner("correct"), environment=environment)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.push
def test_pytest_ends_its_runners_on_sigterm(desk: Desk, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pytest", "-p", "conformance.pytest_plugin", "three.yaml")
    environment = {"TMPDIR": str(tmp_path)}
    options = ("-p", "no:cacheprovider", "--ep", desk.runner("hangs"))
    with desk.start(*command, *options, environment=environment) as process:
        wait_for(lambda: [*tmp_path.glob("gqa-files-*/*")])
        runners = children(process.pid)
        assert runners
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2, out + err  # pytest's status for an interrupted session
    assert not any(map(alive, runners))
    assert [*tmp_path.glob("gqa-files-*")] == []


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
