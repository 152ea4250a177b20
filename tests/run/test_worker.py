"""``gqa run --jobs N``: cases are run and judged in N processes, with the results of one."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from as_user import TWENTY, Desk, wait_for
from case_files import entries, write
from tables import tables

from conformance.results.reader import Run, read
from conformance.results.records import ResultRecord
from conformance.run.worker import usual_jobs
from conformance.targets.registry import target_for

TABLES = tables(__file__)

#: Enough for several batches of each worker.
SIXTY = entries(
    """
    - name: many
      matrix:
        sequence_length: [1, 2]
        past_sequence_length: [0, 3, 5]
        seed: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"), shared_cache)
    write(made.folder, SIXTY, "sixty.yaml")
    write(made.folder, TWENTY, "twenty.yaml")
    return made


def judged(run: Run) -> dict[tuple[str, str], ResultRecord]:
    """The results without the time that they took, and the memory."""
    measured = {"ms": None, "grown_mb": 0.0}
    return {(r.case, r.target): r.model_copy(update=measured) for r in run.results}


#: The runner has its fault on every case.
EVERY = {"FAULT_ON": ""}


def test_the_results_are_those_of_one_process(desk: Desk, tmp_path: Path) -> None:
    runners = [desk.runner(name) for name in ("wrong_values", "dies")]
    eps = [word for ep in (*runners, "cpu") for word in ("--ep", ep)]
    files = [tmp_path / f"{jobs}.jsonl" for jobs in (1, 3)]
    done = [
        desk.gqa("run", "three.yaml", "twenty.yaml", *eps, "-j", file.stem, "--results", str(file))
        for file in files
    ]
    assert done[0].status == done[1].status == 1, done[1].both
    one, three = map(read, files)
    assert judged(one) == judged(three)
    assert len(three.results) == 3 * 23
    assert three.footer.complete
    assert done[0].out.splitlines()[-2] == done[1].out.splitlines()[-2]


@pytest.mark.push
def test_after_enough_failures_nothing_is_left(desk: Desk, tmp_path: Path) -> None:
    arguments = ("sixty.yaml", "--ep", desk.runner("wrong_values"), "-j", "2", "-x")
    done = desk.gqa("run", *arguments, environment={**EVERY, "TMPDIR": str(tmp_path)})
    assert done.status == 1, done.both
    assert "1 unexpected" in done.out
    assert not left(desk)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.push
def test_a_runner_that_is_given_up(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    eps = ("--ep", desk.runner("not_json"), "--ep", "cpu")
    done = desk.gqa(
        "run", "twenty.yaml", *eps, "-j", "2", "--results", str(file), environment=EVERY
    )
    assert done.status == 3, done.both
    assert "Given up after 3 infrastructure failures" in done.out
    assert sum(r.target.startswith("cpu@") for r in read(file).results) == 20
    assert not left(desk)


@pytest.mark.push
def test_the_cases_of_a_worker_that_is_killed_run_again(desk: Desk, tmp_path: Path) -> None:
    process = started(desk, tmp_path / "r.jsonl")
    workers = [
        child
        for child in psutil.Process(process.pid).children()
        if "conformance" in " ".join(child.cmdline())
    ]
    assert len(workers) == 2
    workers[0].send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in out + err
    assert len(read(tmp_path / "r.jsonl").results) == 60, out + err
    assert not left(desk)


def started(desk: Desk, file: Path) -> Any:
    """A run with two workers that has results, of a runner that takes its time."""
    arguments = ("sixty.yaml", "--ep", desk.runner("waits"), "-j", "2", "--results", str(file))
    process = desk.start("gqa", "run", *arguments, environment={**EVERY, "FAULT_SECONDS": "0.1"})
    wait_for(lambda: file.exists() and file.read_bytes().count(b'"kind":"result"') > 2)
    return process


def left(desk: Desk) -> list[str]:
    """The processes of the desk's runners that still live, a moment later."""

    def living() -> list[str]:
        mark = str(desk.folder / "programs")
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            words = " ".join(process.info["cmdline"] or [])
            if mark in words or mark in (process.info["environ"] or {}).get("PATH", ""):
                found.append(words)
        return found

    with suppress(AssertionError):
        wait_for(lambda: not living())
    return living()


@pytest.mark.parametrize(("eps", "one_for_each_core"), TABLES["jobs"])
def test_the_usual_number_of_processes(eps: tuple[str, ...], one_for_each_core: bool) -> None:
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    cores = min(len(affinity(0)), 16)
    assert usual_jobs(map(target_for, eps)) == (cores if one_for_each_core else 1)
