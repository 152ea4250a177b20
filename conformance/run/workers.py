"""Runs the cases of targets in several processes, each with a runner of its own.

A worker makes bundles, runs the cases and judges them, so that nothing but the records is left for
this process. The workers are forked from it and have the plans in memory: what is sent to them are
the numbers of cases. Each has its share of the cases, the same on every target, since it trusts
only those new bundles that it has made itself (:mod:`conformance.bundle.cache`). One that has
finished its share takes from the longest that is left.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Final, Self

from conformance.base import interrupts
from conformance.base.garbage import seldom
from conformance.base.memory import reuse_memory
from conformance.bundle.cache import BundleError
from conformance.case.case import Case
from conformance.harness.process import GRACE_SECONDS, RunnerFailed
from conformance.run.engine import TargetRun
from conformance.run.instability import Reported
from conformance.targets.registry import Target

#: So many cases are sent at once at most.
_BATCH: Final = 16
#: In so many batches each worker takes its part of what is left: few are sent at once in the end,
#: so that no worker waits long for the others.
_ROUNDS: Final = 4
#: So few cases are done before workers are started.
_FEW: Final = 2 * _BATCH
#: So many work at most, unless more are asked for: each takes some hundred megabytes.
_MOST: Final = 16


@dataclass(frozen=True)
class _End:
    """There are no more records of a target from a worker; why, if it did not run all its cases."""

    start_seconds: float
    error: BaseException | None = None


class _More:
    """The request of a worker for its next cases."""


#: A record, with the number of its case.
_Found = tuple[int, Reported]

#: What is raised where the other end of a connection is closed.
_GONE: Final = (EOFError, BrokenPipeError, ConnectionResetError)


def usual_jobs(targets: Iterable[Target]) -> int:
    """One for each core that this process has; 1 where one target is on a GPU, or the user's."""
    if any(target.base is None or target.target_class != "cpu" for target in targets):
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, _MOST)


def can_work(runs: Sequence[TargetRun], jobs: int) -> bool:
    """Whether workers can be started, and would be faster."""
    if jobs < 2 or sys.platform != "linux" or sum(len(run.plan.cases) for run in runs) <= _FEW:
        return False
    return len(os.listdir("/proc/self/task")) == 1  # a child could wait for another thread's lock


class Workers:
    """``jobs`` processes that run the cases of ``runs``, whose own runners end.

    A context manager, which ends all processes on exit.
    """

    def __init__(self, runs: Sequence[TargetRun], jobs: int) -> None:
        self._runs = runs
        self._workers: list[tuple[ForkProcess, Connection]] = []
        self._running = False
        context = multiprocessing.get_context("fork")  # a new interpreter would load all anew
        for run in runs:
            run.ready  # noqa: B018  # a worker has it from here
            run.rest()  # a runner must not be kept alive by pipes that a worker inherits
        gc.freeze()  # the cases are never freed: no page of them is copied for the sake of that
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            inherited = [connection for _, connection in self._workers] + [ours]
            process = context.Process(target=_work, args=(theirs, inherited, runs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        gc.unfreeze()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process, connection in self._workers:
            connection.close()  # the end of its input
            if error[0] is not None or self._running:
                process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for process, _ in self._workers:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()  # its runner reads the end of its own input
                process.join()

    def run(self, number: int) -> Iterator[tuple[Case, Reported]]:
        """The records of the run with this ``number``, as :meth:`TargetRun.run` gives them."""
        run = self._runs[number]
        possible = yield from run.skipped()
        if not possible:
            return
        if not self._workers:
            raise _death(None)
        places = _places(run)
        shares = _shares([places[id(case)] for case in possible], len(self._workers))
        connections = [connection for _, connection in self._workers]
        left = dict(zip(connections, shares, strict=True))
        errors: list[BaseException] = []
        self._running = True
        for connection in connections:
            _send(connection, number)
        working = set(connections)
        while working:
            ready = set(wait(working))
            for connection in [one for one in connections if one in ready]:
                message = self._received(connection)
                if isinstance(message, _More):
                    _send(connection, [] if errors else _next_batch(connection, left))
                elif isinstance(message, _End):
                    working.remove(connection)
                    run.seconds_of_workers += message.start_seconds
                    if message.error is not None:
                        errors.append(message.error)
                else:
                    place, found = message
                    yield run.plan.cases[place], found
        self._running = False
        if errors:
            raise errors[0]

    def _received(self, connection: Connection) -> _More | _End | _Found:
        """What a worker says; where it died, that this is its end."""
        try:
            message: _More | _End | _Found = connection.recv()
            return message
        except _GONE:
            dead = next(worker for worker in self._workers if worker[1] is connection)
            self._workers.remove(dead)
            dead[0].join()
            connection.close()
            return _End(0.0, _death(dead[0].exitcode))


def _send(connection: Connection, message: object) -> None:
    """Send to a worker; whether it is dead shows where its answer is received."""
    with suppress(*_GONE):
        connection.send(message)


def _death(status: int | None) -> RunnerFailed:
    return RunnerFailed(
        f"A process that ran cases ended with status {status}; the system may have been out of"
        " memory.",
        "run fewer side by side, with --jobs 1",
    )


def _places(run: TargetRun) -> dict[int, int]:
    """The number of each case of the run, by its identity."""
    return {id(case): place for place, case in enumerate(run.plan.cases)}


def _shares(places: Sequence[int], workers: int) -> list[deque[int]]:
    """The cases for each worker: every n-th batch of them."""
    return [
        deque(place for at, place in enumerate(places) if at // _BATCH % workers == worker)
        for worker in range(workers)
    ]


def _next_batch(connection: Connection, left: dict[Connection, deque[int]]) -> list[int]:
    """The next cases for a worker; of its own share, else from the end of the longest."""
    most = sum(map(len, left.values())) // (_ROUNDS * len(left))
    most = min(_BATCH, max(1, most))
    own = left[connection]
    if own:
        return [own.popleft() for _ in range(min(most, len(own)))]
    longest = max(left.values(), key=len)
    return [longest.pop() for _ in range(min(most, -(-len(longest) // 2)))]


# In a worker


def _work(
    connection: Connection, inherited: Iterable[Connection], runs: Sequence[TargetRun]
) -> None:
    """Run the targets whose numbers come, one after the other, until the connection is closed."""
    interrupts.ignore()  # the process that started it ends it
    seldom()
    reuse_memory()
    signal.signal(signal.SIGTERM, lambda *_: interrupts.interrupt())
    for other in inherited:
        other.close()
    with suppress(*_GONE, KeyboardInterrupt):
        while True:
            connection.send(_of_target(connection, runs[connection.recv()]))


def _of_target(connection: Connection, run: TargetRun) -> _End:
    """Run cases of a target as they come, and send their records."""
    places = _places(run)
    feed = _Feed(connection, run.plan.cases)
    error: BaseException | None = None
    with run.again() as mine:
        try:
            for case, record in mine.run_possible(feed):
                connection.send((places[id(case)], record))
        except (RunnerFailed, BundleError) as failed:
            error = failed
        except _GONE:
            raise
        except Exception as fault:
            fault.add_note(traceback.format_exc())  # which is lost on the way
            error = fault
    feed.drain()
    return _End(mine.start_seconds, error)


class _Feed:
    """The cases that are sent; the next are asked for before these are run."""

    def __init__(self, connection: Connection, cases: Sequence[Case]) -> None:
        self._connection = connection
        self._cases = cases
        self._asked = False

    def __iter__(self) -> Iterator[Case]:
        self._ask()
        while batch := self.drain():
            self._ask()
            yield from (self._cases[place] for place in batch)

    def _ask(self) -> None:
        self._connection.send(_More())
        self._asked = True

    def drain(self) -> Sequence[int]:
        """The cases that were asked for."""
        asked, self._asked = self._asked, False
        batch: Sequence[int] = self._connection.recv() if asked else ()
        return batch
