"""A pool of isolated runner processes: a crash in one case never affects another.

A `Pool` keeps some processes of one target and turns jobs into outcomes::

    with Pool(Command("cpu", ("python", "runner.py", "--ep", "cpu")), jobs=2) as pool:
        answer = pool.start()                # the runner's description, or that it is unavailable
        for job, outcome in pool.run(jobs):  # in the order in which they end
            ...

There are no threads. A process is sent its next case before the caller gets the outcome of the
last one, and one job for each process is drawn in advance; so the caller prepares and judges cases
while the runners work.

Runtime or runner
    What the process does during a case decides whose failure it is. A signal that a fault raises
    is the runtime's: `Crashed`. No answer is the runtime's: `TimedOut`. Everything else that is
    not a valid answer is the runner's own failure and says nothing about the runtime,
    `InfrastructureFailure`: an exit status, an answer that is not complete in time, an unrequested
    line, a missing file, a signal that somebody sends to end a process. The process is replaced
    each time, and after an answer that says that it may be damaged (``replace_process``), as a
    GPU's context is after an error of the device: no other case runs in it.

    Each process must describe itself as the first one did; if one does not, the target is given up.

    A runtime can damage its own process, and a runner can fail after an answer. Both are noticed
    with the next case, which is not to blame. A case that crashes, or that ends in an
    infrastructure failure or damages its process in one that had run another case, is therefore
    tried once more, alone in a fresh process, which costs a start and a case. That outcome is the
    case's own. What did not happen again comes with it, as `Unrepeated`, and is nobody's so far.

Shutdown
    `Pool.close`, the end of the ``with``, closes the runners' input, kills those that do not exit
    and removes all files. When this process itself is killed, the runners read the end of their
    input and exit, and what does not is killed (`conformance.harness.process`). The files are
    removed by the next process that has a pool (`conformance.harness.owned_folders`).
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self, TypeVar, cast

from conformance.base.files import write_new
from conformance.base.interrupts import undisturbed
from conformance.harness.jobs import Job
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Ran,
    Rejected,
    TimedOut,
    Unavailable,
    Unrepeated,
)
from conformance.harness.output_folders import contents_of, place_for_outputs, remove
from conformance.harness.owned_folders import OwnedFolder
from conformance.harness.process import (
    GRACE_SECONDS,
    Broken,
    Command,
    Died,
    Late,
    Limits,
    News,
    RunnerFailed,
    RunnerProcess,
)
from conformance.harness.protocol import (
    CrashedAnswer,
    DescribeAnswer,
    DescribedAnswer,
    DescribeRequest,
    ProtocolError,
    RanAnswer,
    RejectedAnswer,
    RunRequest,
    UnavailableAnswer,
    announces,
    excerpt,
    parse_answer,
    to_line,
)

#: How often a process is polled where the system does not report its end.
POLL_SECONDS: Final = 0.1

#: Sent by somebody to end a process: they say nothing about the runtime.
FROM_OUTSIDE: Final = frozenset({"SIGHUP", "SIGINT", "SIGTERM"})

#: Signals that a shell between harness and runner reports as exit status 128 + number.
REPORTED_BY_SHELLS: Final = frozenset(
    {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
    | FROM_OUTSIDE
)

#: The message of a Rust panic: the place, and the text on the lines that follow.
PANIC: Final = re.compile(r"panicked at .*(?:\n(?!note:|stack backtrace:|thread ).+)*")

#: Said of a case that failed twice in such a way that its process was replaced.
FAILED_TWICE: Final = (
    "[It failed in its first process, too: this is what it did alone, in a fresh process.]"
)

J = TypeVar("J", bound=Job)

#: The outcomes after which a case is tried again.
Failed = Crashed | Rejected | InfrastructureFailure


@dataclass(frozen=True)
class _Task:
    """A job that is ready to be sent: its files are in its folder, and its request is serialised.

    On a later try ``first`` is the outcome of the one before, and ``before`` the case that the
    process had run before that.
    """

    job: Job
    folder: str
    request: RunRequest
    line: bytes
    first: Failed | None = None
    before: Job | None = None


@dataclass
class _Slot:
    """A place for one process. ``request`` is the one that it has not answered yet.

    ``task`` is its case, which waits here while the process starts; ``before`` is the case that
    this process ran last. ``worn``: the process is to be replaced after its case.
    """

    process: RunnerProcess | None = None
    request: DescribeRequest | RunRequest | None = None
    task: _Task | None = None
    before: Job | None = None
    worn: bool = False

    @property
    def idle(self) -> bool:
        return self.process is not None and self.request is None

    def drop(self) -> None:
        """Kill the process."""
        process, self.process = self.process, None
        self.request = self.before = None
        self.worn = False
        if process is not None:
            process.kill()


class Pool:
    """``jobs`` runner processes of one target, started when there is something for them to do.

    ``started`` counts the processes. ``start_seconds`` is the total time of their starts, from the
    launch to the answer to describe. ``described`` is the description by another process, as which
    each must describe itself.
    """

    def __init__(
        self,
        command: Command,
        jobs: int = 1,
        limits: Limits | None = None,
        described: DescribeAnswer | None = None,
    ) -> None:
        self.command = command
        self.limits = limits or Limits()
        self.started = 0
        self.start_seconds = 0.0
        self._selector = selectors.DefaultSelector()
        self._slots = [_Slot() for _ in range(jobs)]
        self._answer = described
        self._failed: RunnerFailed | None = None
        self._failures = 0
        self._last_id = 0
        self._folder: OwnedFolder | None = None
        self._source: Iterator[Job] | None = None
        self._ready: deque[_Task] = deque()
        self._done: deque[tuple[_Task, Outcome]] = deque()
        self._running = False

    # The interface

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(at_once=error is not None)

    def start(self) -> DescribeAnswer:
        """The runner's description; the first call starts it.

        After an `UnavailableAnswer` no process is left. `RunnerFailed`: it does not start, or the
        pool has given it up since.
        """
        first = self._slots[0]
        while self._answer is None and self._failed is None:
            if first.process is None:
                self._launch(first)
            else:
                self._turn(self._patience())
        self._raise_failure()
        assert self._answer is not None
        return self._answer

    def run(self, jobs: Iterable[J]) -> Generator[tuple[J, Outcome], None, None]:
        """Run all ``jobs`` and give each with its outcome, in the order in which they end.

        ``jobs`` is drawn from as processes need it. If the target is unavailable, every job is.
        When the runner no longer starts, or has failed too often, the jobs that are running get
        their outcomes, and then `RunnerFailed` is raised; the other jobs get no outcome.
        """
        return self._outcomes(jobs)

    def run_one(self, job: Job) -> Outcome:
        """Run ``job`` and wait for its outcome.

        Raises `RunnerFailed` as `run` does, with the call after the last failure.
        """
        with closing(self._outcomes([job])) as outcomes:
            return next(outcomes)[1]

    def renew(self) -> None:
        """Replace each process that has run a case: it may be damaged. The cases that run end."""
        for slot in self._slots:
            if slot.idle:
                slot.drop()
            elif isinstance(slot.request, RunRequest):
                slot.worn = True

    def close(self, at_once: bool = False) -> None:
        """End all processes, ``at_once`` or with time to exit by themselves; remove all files."""
        processes = [slot.process for slot in self._slots if slot.process is not None]
        try:
            if not at_once:
                for process in processes:
                    process.end_input()
                until = time.monotonic() + GRACE_SECONDS
                for process in processes:
                    process.wait(until)
        finally:
            with undisturbed():  # or something would be left
                for slot in self._slots:
                    slot.drop()
                self._selector.close()
                if self._folder is not None:
                    self._folder.remove()

    # The loop

    def _outcomes(self, jobs: Iterable[J]) -> Generator[tuple[J, Outcome], None, None]:
        if self._running:
            raise RuntimeError("this pool is running other jobs")
        answer = self.start()
        if isinstance(answer, UnavailableAnswer):
            for job in jobs:
                yield job, Unavailable(reason=answer.reason)
            return
        self._running = True
        self._source = iter(jobs)
        try:
            while True:
                self._draw()
                working = any(slot.task for slot in self._slots)
                waiting = bool(self._ready) and self._failed is None
                if not (self._done or working or waiting or self._wants_job()):
                    break
                at_once = bool(self._done) or self._wants_job()
                self._turn(0.0 if at_once else self._patience())
                if self._done:
                    ended, outcome = self._done.popleft()
                    self._draw()  # so that no process waits for the caller
                    remove(ended.folder)
                    yield cast("J", ended.job), outcome
            self._raise_failure()
        finally:
            self._abandon()
            self._running = False

    def _draw(self) -> None:
        """Draw at most one job, since processes may be waiting, and feed the processes."""
        if self._source is not None and self._wants_job():
            job = next(self._source, None)
            task = self._task(job) if job is not None else None
            if job is None:
                self._source = None
            elif task is not None:
                self._ready.append(task)
        self._feed()

    def _wants_job(self) -> bool:
        # What the caller has not taken yet keeps its bundle in memory.
        room = max(len(self._ready), len(self._done)) < len(self._slots)
        return self._source is not None and self._failed is None and room

    def _turn(self, seconds: float) -> None:
        """Wait for a pipe, at most ``seconds``, and handle everything that happened."""
        for key, _ in self._selector.select(seconds):
            key.data()
        for slot in self._slots:
            if slot.process is not None and slot.request is not None:
                if slot.process.must_be_polled:
                    slot.process.poll()
                news = slot.process.news()
                if isinstance(slot.request, DescribeRequest) and news is not None:
                    self._started(slot, slot.process, slot.request, news)
                elif slot.task is not None and news is not None:
                    self._ended(slot, slot.process, slot.task, news)

    def _patience(self) -> float:
        """Seconds until the first deadline of a process that has a request."""
        waiting = [slot.process for slot in self._slots if slot.process and slot.request]
        seconds = min(process.deadline for process in waiting) - time.monotonic()
        if any(process.must_be_polled for process in waiting):
            seconds = min(seconds, POLL_SECONDS)
        return max(0.0, seconds)

    def _feed(self) -> None:
        """Give the ready jobs to idle processes, and start processes for the remaining jobs."""
        if not self._ready or self._failed is not None:
            return
        for slot in self._slots:
            if slot.idle and self._ready:
                self._send(slot, self._ready.popleft())
        coming = sum(slot.request is not None and slot.task is None for slot in self._slots)
        for slot in self._slots:
            if slot.process is None and coming < len(self._ready):
                self._launch(slot)
                coming += 1

    def _send(self, slot: _Slot, task: _Task) -> None:
        assert slot.process is not None
        slot.task = task
        slot.request = task.request
        job, limits = task.job, self.limits
        slot.process.ask(
            task.line,
            limits.case_seconds if job.seconds is None else job.seconds,
            lambda line: limits.compile_seconds if announces(line, task.request) else 0.0,
        )

    # Starting

    def _launch(self, slot: _Slot) -> None:
        """Start a process in ``slot`` and send it the describe request."""
        try:
            slot.process = RunnerProcess(self.command, self.limits, self._selector)
        except RunnerFailed as failure:
            self._fail(slot, failure)
            return
        slot.request = DescribeRequest(id=self._next_id())
        slot.process.ask(to_line(slot.request), self.limits.start_seconds)

    def _started(
        self, slot: _Slot, process: RunnerProcess, request: DescribeRequest, news: News
    ) -> None:
        """Handle the answer to describe, or its absence."""
        stderr = process.stderr()
        answer = self._description(news, request, stderr)
        if isinstance(answer, UnavailableAnswer) and self._answer is None:
            self._answer = answer
            slot.drop()
            return
        if isinstance(answer, DescribedAnswer) and isinstance(self._answer, DescribedAnswer):
            answer = _other_description(self._answer, answer) or answer
        if not isinstance(answer, DescribedAnswer):
            fix = self.command.fix
            if isinstance(answer, UnavailableAnswer):
                fix = answer.fix
                answer = f"is no longer available: {answer.reason}"
            slot.drop()
            self._fail(
                slot, RunnerFailed(f"{self.command.name}: the runner {answer}.", fix, stderr)
            )
            return
        self._answer = self._answer or answer
        self.started += 1
        self.start_seconds += process.elapsed_ms() / 1e3
        slot.request = None
        if slot.task is not None:
            self._send(slot, slot.task)

    def _description(
        self, news: News, request: DescribeRequest, stderr: str
    ) -> DescribeAnswer | str:
        """The answer to describe, or what the runner did instead."""
        if isinstance(news, bytes):
            try:
                return parse_answer(news, request)
            except ProtocolError as error:
                return f"does not describe itself: {error}"
        if isinstance(news, Died):
            return f"{_end_of(news)} before it described itself{_last_words(stderr)}"
        if isinstance(news, Broken):
            return f"{news.what}{_last_words(stderr)}"
        return f"did not describe itself within {news.seconds:g} s"

    def _fail(self, slot: _Slot, failure: RunnerFailed) -> None:
        """Give the target up. A case that waits in ``slot`` for its second try has crashed once."""
        self._failed = self._failed or failure
        task, slot.task = slot.task, None
        if task is not None:
            self._done.append((task, _last_try(task, None)))

    def _raise_failure(self) -> None:
        if self._failed is not None:
            # A new one each time, as an exception collects the tracebacks of each raise.
            raise RunnerFailed(*self._failed.args)

    # Ending

    def _ended(self, slot: _Slot, process: RunnerProcess, task: _Task, news: News) -> None:
        """A case has ended. Its process goes on with the next case, or is replaced."""
        before = slot.before
        outcome = replace(self._outcome(slot, process, task, news), before=before)
        slot.before = task.job
        slot.task = slot.request = None
        ended = not isinstance(news, bytes) or outcome.damaged
        if ended or slot.worn or isinstance(outcome, InfrastructureFailure):
            slot.drop()
        again = _again(task, outcome, before)
        if again is not None:
            remove(task.folder)
            # Any other runner that reports a crash runs each call in a process of its own.
            slot.task = self._task(task.job, again.first, before if ended else None)
            if slot.task is not None and slot.idle:
                self._send(slot, slot.task)
                return
            if slot.task is not None:
                self._launch(slot)
                return
            outcome = _last_try(again, None)
        elif task.first is not None:
            outcome = _last_try(task, outcome)
        self._count(outcome)
        self._done.append((task, outcome))
        self._feed()

    def _outcome(self, slot: _Slot, process: RunnerProcess, task: _Task, news: News) -> Outcome:
        """The outcome of ``task`` that follows from ``news``."""
        total_ms = process.elapsed_ms()
        stderr = process.stderr()
        if isinstance(news, bytes):
            try:
                return self._answered(news, task, stderr, total_ms)
            except ProtocolError as error:
                what = f"gave no valid answer: {error}"
        elif isinstance(news, Late):
            return TimedOut(seconds=news.seconds, stderr=stderr, total_ms=total_ms)
        elif isinstance(news, Broken):
            what = news.what
        else:
            name = _signal_of(news.status)
            if name is not None and name not in FROM_OUTSIDE and not news.early:
                return Crashed(signal=name, message="", stderr=stderr, total_ms=total_ms)
            when = "before it was given the case" if news.early else "during the case"
            half = f", after the start of an answer: {news.half}" if news.half else ""
            what = f"{_end_of(news)} {when}{half}{_last_words(stderr)}"
        after = f" (the case before in this process: {slot.before.key})" if slot.before else ""
        message = f"The runner {what}{after}."
        idle: Unrepeated | None = None
        if isinstance(news, Died) and slot.before is not None:
            name = _signal_of(news.status)
            if name is not None and name not in FROM_OUTSIDE:  # early, as above
                idle = Unrepeated(signal=name, message=message, before=slot.before, stderr=stderr)
        return InfrastructureFailure(
            message=message, stderr=stderr, total_ms=total_ms, unrepeated=idle
        )

    def _answered(self, line: bytes, task: _Task, stderr: str, total_ms: float) -> Outcome:
        """The outcome of an answer; `ProtocolError` if it is not valid or a file is missing."""
        answer = parse_answer(line, task.request)
        if isinstance(answer, UnavailableAnswer):
            return Unavailable(reason=answer.reason, stderr=stderr, total_ms=total_ms)
        if isinstance(answer, CrashedAnswer):
            return Crashed(
                signal=answer.ended,
                message=_crash_sentence(answer, len(task.request.steps)),
                stderr=stderr,
                total_ms=total_ms,
                damaged=answer.replace_process,
            )
        if isinstance(answer, RejectedAnswer):
            return Rejected(
                stage=answer.stage,
                step=answer.step,
                code=answer.code,
                message=answer.message,
                changed=tuple(answer.changed),
                stderr=stderr,
                total_ms=total_ms,
                damaged=answer.replace_process,
            )
        self._check_placement(answer)
        return Ran(
            runs=contents_of(answer, task.request.out, task.job.most_output_bytes),
            placement=answer.placement,
            load_ms=answer.ms.load,
            run_ms=answer.ms.run,
            kernels=answer.kernels,
            stderr=stderr,
            total_ms=total_ms,
        )

    def _check_placement(self, answer: RanAnswer) -> None:
        described = self._answer
        asked = described.execution_provider if isinstance(described, DescribedAnswer) else None
        if asked is not None and answer.placement is None:
            raise ProtocolError(f"{asked} was requested, and the answer has no placement")

    def _count(self, outcome: Outcome) -> None:
        """Give the target up once it has failed too often in a row."""
        if not isinstance(outcome, InfrastructureFailure):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self.limits.failures_in_a_row and self._failed is None:
            self._failed = RunnerFailed(
                f"{self.command.name}: given up after {self._failures} infrastructure failures in "
                f"a row, the last: {outcome.message}",
                outcome.fix,
                outcome.stderr,
            )

    # Tasks and files

    def _task(
        self,
        job: Job,
        first: Failed | None = None,
        before: Job | None = None,
    ) -> _Task | None:
        """``job`` as a task; None, and the target is given up, if there is no output folder."""
        number = self._next_id()
        try:
            if self._folder is None:
                self._folder = OwnedFolder(place_for_outputs())
                self._folder.make()
            # Never one that was used before: what a runner has left running may still write there.
            own = f"{self._folder.path}/{number}"
            os.mkdir(own, 0o700)
            out = f"{own}/out"
            os.mkdir(out)
            bundle = _written(job, own)
        except OSError as error:
            self._failed = self._failed or RunnerFailed(
                f"{self.command.name}: the files of a case cannot be written (set TMPDIR to use "
                f"another place): {error}."
            )
            return None
        request = RunRequest(
            id=number,
            bundle=bundle,
            out=out,
            repeat=job.repeat,
            steps=job.steps,
        )
        return _Task(job, own, request, to_line(request), first, before)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _abandon(self) -> None:
        """Discard all jobs, after an error or when the caller stops."""
        self._source = None
        tasks = [*self._ready, *(task for task, _ in self._done)]
        self._ready.clear()
        self._done.clear()
        for slot in self._slots:
            if slot.task is not None:
                tasks.append(slot.task)
                slot.task = None
                slot.drop()
        for task in tasks:
            remove(task.folder)


def _written(job: Job, own: str) -> str:
    """The folder with the job's files, below ``own``. Raises OSError."""
    folder = f"{own}/{job.folder}"
    for parent in dict.fromkeys(f"{folder}/{name}".rpartition("/")[0] for name in job.files):
        os.makedirs(parent, exist_ok=True)
    for name, content in job.files.items():
        write_new(f"{folder}/{name}", content)
    return folder


def _other_description(first: DescribedAnswer, now: DescribedAnswer) -> str | None:
    """What the runner did if a process of it describes itself in another way than the first one."""
    for name in type(now).model_fields:
        was, says = getattr(first, name), getattr(now, name)
        if name != "id" and was != says:
            return (
                f"describes itself in another way than before: {name} is {_shown(says)}, not "
                f"{_shown(was)}; results of both must not be mixed"
            )
    return None


def _shown(value: object) -> str:
    """A field of a description, in a sentence."""
    if isinstance(value, tuple):
        value = ", ".join(value)
    elif isinstance(value, dict):
        value = ", ".join(f"{name} {version}" for name, version in value.items())
    return "null" if value is None else excerpt(str(value), 200) or "empty"


def _again(task: _Task, outcome: Outcome, before: Job | None) -> _Task | None:
    """``task`` to be run alone: after a crash."""
    if isinstance(outcome, Crashed):
        if isinstance(task.first, Crashed | Rejected):
            return None
        return replace(task, first=outcome, before=before)
    if not isinstance(outcome, InfrastructureFailure | Rejected) or before is None or task.first:
        return None
    if isinstance(outcome, Rejected) and not outcome.damaged:
        return None
    return replace(task, first=outcome, before=before)


def _last_try(task: _Task, outcome: Outcome | None) -> Outcome:
    """The outcome of ``task`` after that of its last try; None: there was none."""
    assert task.first is not None
    if isinstance(task.first, InfrastructureFailure):
        if outcome is None or isinstance(outcome, InfrastructureFailure):
            return task.first
        note = f"[{task.first.message} This is the outcome of a second try, in a fresh process.]"
        idle = outcome.unrepeated or task.first.unrepeated
        return replace(outcome, stderr=f"{note}\n{outcome.stderr}", unrepeated=idle)
    first = task.first
    both_damaged = first.damaged and outcome is not None and outcome.damaged
    if isinstance(outcome, Crashed) or (isinstance(outcome, Rejected) and both_damaged):
        return _repeated(first, outcome)
    what = _failure(first)
    if outcome is None or isinstance(outcome, InfrastructureFailure):
        why = "it could not be started again" if outcome is None else outcome.message
        what += f" Whether it does so alone is not known: {why.removesuffix('.')}."
        return InfrastructureFailure(
            message=what,
            fix=outcome.fix if outcome else None,
            stderr=first.stderr,
            total_ms=first.total_ms,
        )
    note = f"[{what} This is the outcome of a second try, alone in a fresh process.]"
    return replace(
        outcome,
        stderr=f"{note}\n{outcome.stderr}",
        unrepeated=Unrepeated(
            signal=first.signal if isinstance(first, Crashed) else first.code or "rejection",
            message=what,
            before=task.before,
            stderr=first.stderr,
        ),
    )


def _repeated(first: Crashed | Rejected, alone: Crashed | Rejected) -> Crashed | Rejected:
    """The outcome of a case that failed as ``first``, and again ``alone``."""
    if isinstance(alone, Rejected):
        return replace(alone, stderr=f"{FAILED_TWICE}\n{alone.stderr}", repeated=True)
    if first.damaged or alone.damaged or isinstance(first, Rejected):
        return replace(alone, message=f"{_failure(alone)} {FAILED_TWICE}", repeated=True)
    message = alone.message or f"{_death(first)}, {_again_alone(first, alone)}."
    return replace(first, message=message, repeated=True, before=None)


def _failure(outcome: Crashed | Rejected) -> str:
    """What happened, as a sentence."""
    if isinstance(outcome, Rejected):
        said = excerpt(" ".join(outcome.message.split()), 300)
        return f"It was rejected with an error after which its process was replaced: {said}"
    return outcome.message or f"{_death(outcome)}{_last_words(outcome.stderr)}."


def _death(crash: Crashed) -> str:
    """What happened, as the start of a sentence."""
    memory = " (the system may have been out of memory)" if crash.signal == "SIGKILL" else ""
    return f"The runner died of {crash.signal}{memory}"


def _again_alone(first: Crashed, alone: Crashed) -> str:
    how = "again" if alone.signal == first.signal else f"of {alone.signal}"
    return f"and {how} when it was tried alone{_last_words(first.stderr)}"


def _crash_sentence(answer: CrashedAnswer, steps: int) -> str:
    """The sentence for a crash that the runner reports."""
    where = f" in step {answer.step}" if steps > 1 and answer.step is not None else ""
    said = f": {answer.message}" if answer.message else "."
    if answer.replace_process:
        return f"The call ended in {answer.ended}{where}{said}"
    what = (
        f"died of {answer.ended}"
        if answer.ended.startswith("SIG")
        else f"ended in a {answer.ended}"
    )
    return f"The runtime's process {what}{where}{said}"


def _signal_of(status: int) -> str | None:
    """The name of the signal that ended a process, also where a shell reports it; else None."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"  # a real-time signal
    return name if status < 0 or name in REPORTED_BY_SHELLS else None


def _end_of(news: Died) -> str:
    name = _signal_of(news.status)
    return f"ended with status {news.status}" if name is None else f"died of {name}"


def _last_words(stderr: str) -> str:
    """The cause as ``stderr`` gives it, as the end of a sentence: the panic, or else the last line.

    Of several panics it is the first; the others only report that there was one.
    """
    if panic := PANIC.search(stderr):
        return f"; it {excerpt(' '.join(panic[0].split()), 300)}"
    lines = stderr.strip().splitlines()
    return f"; the last it wrote: {excerpt(lines[-1].removesuffix('.'), 300)}" if lines else ""
