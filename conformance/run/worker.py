"""Runs cases on their targets, case by case: in this process, or in several.

A task is a case with the targets that need it. The process that runs a task makes the model and
inputs once; each process has a runner for each target. Records come as their cases end.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Final, NoReturn

from conformance.base import interrupts
from conformance.case.case import Case
from conformance.harness.runner import RunnerFailed
from conformance.results.records import InfrastructureRecord
from conformance.run.engine import PlanRun
from conformance.run.retries import Reported
from conformance.targets.registry import Target

#: Targets that run side by side: the runner of each can hold hundreds of megabytes.
MAX_TARGETS: Final = 4
#: Processes, unless more are asked for: each takes some hundred megabytes.
MAX_JOBS: Final = 16
#: Below this many results, run in this process.
FEW_RESULTS: Final = 32


@dataclass(frozen=True)
class Task:
    """A case, by its number, with the numbers of the targets that it is to run on."""

    case: int
    targets: tuple[int, ...]


#: The results of a task: for each target, by its number, the records, that of the case first. If
#: the runner of a target does not start, or fails repeatedly, the last item is that failure.
TaskRecords = list[tuple[int, Reported | RunnerFailed]]


class Worker:
    """Runs tasks with one runner for each target."""

    def __init__(self, runs: Sequence[PlanRun], cases: Sequence[Case]) -> None:
        self._runs = runs
        self._cases = cases

    def run(self, task: Task) -> TaskRecords:
        """Run the case on each of its targets."""
        case = self._cases[task.case]
        found: TaskRecords = []
        for number in task.targets:
            try:
                result = self._runs[number].run_one(case)
                found += [(number, each) for each in (result.record, *result.instability)]
            except RunnerFailed as error:
                found.append((number, error))
        return found

    def close(self, at_once: bool = False) -> None:
        """End all runners."""
        for run in self._runs:
            run.close(at_once)


def usual_jobs(targets: Iterable[Target]) -> int:
    """One job for each core that this process has; 1 if a target is on a GPU, or is the user's."""
    if any(target.base is None or target.entry.target_class != "cpu" for target in targets):
        return 1
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores, MAX_JOBS)


def run_all(
    runs: Sequence[PlanRun], jobs: int
) -> Generator[tuple[PlanRun, Case | None, Reported | RunnerFailed], None, None]:
    """The records of every plan's cases, as they come, in ``jobs`` processes.

    `RunnerFailed` is the last item of a target, without a case: its other cases are not run. Each
    run is closed when it has ended.
    """
    for first in range(0, len(runs), MAX_TARGETS):
        group = []
        for run in runs[first : first + MAX_TARGETS]:
            if run.ready.broken is None:
                group.append(run)
            else:
                yield run, None, run.ready.broken
        cases = list({id(case): case for run in group for case in run.plan.cases}.values())
        needed = [{id(case) for case in run.plan.cases} for run in group]
        tasks = [
            Task(at, tuple(n for n, wanted in enumerate(needed) if id(case) in wanted))
            for at, case in enumerate(cases)
        ]
        given_up: set[int] = set()
        several = jobs > 1 and sum(map(len, needed)) > FEW_RESULTS and _can_fork()
        results = (
            _in_processes(group, cases, tasks, jobs, given_up)
            if several
            else _in_this_process(group, cases, tasks, given_up)
        )
        for at, found in results:
            for number, record in found:
                if not isinstance(record, RunnerFailed):
                    yield group[number], cases[at], record
                elif number not in given_up:
                    given_up.add(number)
                    yield group[number], None, record
        for run in group:
            run.close()


def _in_this_process(
    runs: Sequence[PlanRun], cases: Sequence[Case], tasks: Sequence[Task], given_up: set[int]
) -> Iterator[tuple[int, TaskRecords]]:
    worker = Worker(runs, cases)
    for task in tasks:
        for number in task.targets:  # one by one, so that records come as soon as they can
            if number not in given_up:
                yield task.case, worker.run(Task(task.case, (number,)))


# Several processes


def _can_fork() -> bool:
    """Whether workers can be forked: with other threads, one could wait for a lock for ever."""
    return sys.platform == "linux" and threading.active_count() == 1


def _in_processes(
    runs: Sequence[PlanRun],
    cases: Sequence[Case],
    tasks: Iterable[Task],
    jobs: int,
    given_up: set[int],
) -> Iterator[tuple[int, TaskRecords]]:
    """Like :func:`_in_this_process`, in forked processes that have plans and cases in memory."""
    for run in runs:
        run.ready  # noqa: B018  # a worker has it from here
        run.rest()  # a runner must not be kept alive by pipes that a worker inherits
    waiting = iter(tasks)
    pool = _Processes(runs, cases, jobs)
    try:
        while True:
            try:
                pool.fill(waiting, given_up)
                if not pool.pending:
                    break
                yield from pool.ended()
            except BrokenProcessPool:
                lost = list(pool.pending)
                pool.end(at_once=True)
                for task in lost:  # one by one, so that the one that ends a process is named
                    yield task.case, _alone(runs, cases, task, given_up)
                pool = _Processes(runs, cases, jobs)
        pool.end()
    finally:
        pool.end(at_once=True)


class _Processes:
    """Worker processes, with their tasks in flight: two for each, so that none waits."""

    def __init__(self, runs: Sequence[PlanRun], cases: Sequence[Case], jobs: int) -> None:
        gc.freeze()  # the cases are never freed: no page of them is copied for the sake of that
        self._jobs = jobs
        self._others = {process.pid for process in multiprocessing.active_children()}
        self._executor = ProcessPoolExecutor(
            jobs,
            multiprocessing.get_context("fork"),
            initializer=_begin,
            initargs=(runs, cases),
        )
        self.pending: dict[Task, Future[TaskRecords] | None] = {}

    def fill(self, waiting: Iterator[Task], given_up: set[int]) -> None:
        """Submit tasks, without the targets that were given up.

        Raises `BrokenProcessPool` if a process has died; the task is then among the pending ones,
        too.
        """
        while len(self.pending) < 2 * self._jobs and (task := next(waiting, None)) is not None:
            left = Task(task.case, tuple(n for n in task.targets if n not in given_up))
            if left.targets:
                self.pending[left] = None
                self.pending[left] = self._executor.submit(_run, left)

    def ended(self) -> Iterator[tuple[int, TaskRecords]]:
        """The results of the tasks that have ended; waits for the first.

        Raises `BrokenProcessPool` if a process has died.
        """
        done = wait(filter(None, self.pending.values()), return_when=FIRST_COMPLETED).done
        for task, future in list(self.pending.items()):
            if future is not None and future in done:
                result = future.result()
                del self.pending[task]
                yield task.case, result

    def end(self, at_once: bool = False) -> None:
        """End all processes, ``at_once`` or after their tasks."""
        if at_once:
            for process in multiprocessing.active_children():
                if process.pid not in self._others:
                    process.terminate()
        self._executor.shutdown(wait=True, cancel_futures=True)


def _alone(
    runs: Sequence[PlanRun], cases: Sequence[Case], task: Task, given_up: set[int]
) -> TaskRecords:
    """The result of a task in a new process: if that process ends, its case ended it."""
    pool = _Processes(runs, cases, 1)
    try:
        pool.fill(iter([task]), given_up)
        return next((result for _, result in pool.ended()), [])
    except BrokenProcessPool:
        case = cases[task.case].id
        message = "The process that ran this case was ended; the system may be out of memory."
        return [
            (n, InfrastructureRecord(target=runs[n].ready.name, case=case, message=message))
            for n in task.targets
        ]
    finally:
        pool.end(at_once=True)


# In a worker process

_worker: Worker | None = None
_is_running = False


def _begin(runs: Sequence[PlanRun], cases: Sequence[Case]) -> None:
    """Prepare this process for tasks, and for the end of the one that started it."""
    global _worker
    interrupts.ignore()  # the process that started it ends it
    _worker = worker = Worker([run.again() for run in runs], cases)
    Finalize(None, worker.close, exitpriority=10)

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the executor may send another
        if _is_running:
            interrupts.interrupt()  # so that what a case has opened is closed
        else:
            _end_at_once()

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)  # the runners read the end of their input

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _run(task: Task) -> TaskRecords:
    global _is_running
    assert _worker is not None
    try:
        _is_running = True
        result = _worker.run(task)
        _is_running = False
        return result
    except KeyboardInterrupt:
        _end_at_once()


def _end_at_once() -> NoReturn:
    assert _worker is not None
    _worker.close(at_once=True)
    os._exit(1)
