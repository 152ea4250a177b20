"""A session with a runner: one process, described once, that runs one case after the other.

::

    with Session(Command("cpu", ("python", "runner.py", "--ep", "cpu"))) as session:
        answer = session.start()         # the runner's description, or that it is unavailable
        outcome = session.run(job)

Runtime or runner
    What the process does during a case decides whose failure it is. A signal that a fault raises
    is the runtime's: `Crashed`. No answer is the runtime's: `TimedOut`. Everything else that is
    not a valid answer is the runner's own failure and says nothing about the runtime,
    `InfrastructureFailure`: an exit status, an answer that is not complete in time, an unrequested
    line, a missing file, a signal that somebody sends to end a process. The process is replaced
    after each of these. It is also replaced after an answer which says that it may be damaged
    (``replace_process``), as a GPU's context is after an error of the device: no other case runs
    in it.

    Each process must describe itself as the first one did; if one does not, the target is given up.

    A runtime can damage its own process, and a runner can fail after an answer. Both are noticed
    only in the next case, which is not to blame. So a case that crashes, ends in an infrastructure
    failure or damages its process is tried once more if that process had run another case: alone in
    a fresh process, which costs a start and a case. The outcome of this try is the case's outcome.
    A failure that did not happen again is reported with it, as `UnconfirmedFailure`, and is
    attributed to no case.

Shutdown
    `Session.close`, the end of the ``with``, closes the runner's input, kills the runner if it does
    not exit and removes all files. When this process itself is killed, the runner reads the end of
    its input and exits; a process that does not is killed (`conformance.harness.runner`). The files
    are removed by the next process that has a session (`conformance.harness.folders`).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from conformance.base.files import write_files
from conformance.base.interrupts import undisturbed
from conformance.base.text import exact_line
from conformance.harness.folders import OwnedFolder, contents_of, place_for_files, remove
from conformance.harness.jobs import Job
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Ran,
    Rejected,
    TimedOut,
    Unavailable,
    UnconfirmedFailure,
)
from conformance.harness.protocol import (
    CrashedAnswer,
    DescribeAnswer,
    DescribedAnswer,
    DescribeRequest,
    ProtocolError,
    RejectedAnswer,
    RunRequest,
    UnavailableAnswer,
    announces,
    parse_answer,
    to_line,
)
from conformance.harness.runner import (
    FROM_OUTSIDE,
    Command,
    News,
    ProcessLimits,
    Runner,
    RunnerFailed,
)
from conformance.harness.tries import failure_sentence, last_words, needs_another_try, settled


class Session:
    """A runner process of one target, started when it is first needed.

    ``described`` is the description by another process; each process must describe itself equally.
    """

    def __init__(
        self,
        command: Command,
        limits: ProcessLimits | None = None,
        described: DescribeAnswer | None = None,
    ) -> None:
        self.command = command
        self.limits = limits or ProcessLimits()
        self._runner: Runner | None = None
        #: The case that this process ran last.
        self._before: Job | None = None
        #: Resident memory of this process after that case.
        self._bytes = 0
        self._answer = described
        self._failed: RunnerFailed | None = None
        self._failures = 0
        self._ids = itertools.count(1)
        self._folder: OwnedFolder | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether the runner did not start, or failed too often."""
        return self._failed is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(at_once=error[0] is not None)

    def start(self) -> DescribeAnswer:
        """The runner's description; the first call starts the runner.

        After an `UnavailableAnswer` no process is left. Raises `RunnerFailed` if the runner does
        not start, or has been given up since.
        """
        if self._failed is not None:
            # A new one each time, as an exception collects the tracebacks of each raise.
            raise RunnerFailed(*self._failed.args)
        if self._answer is None:
            self._launch()
        assert self._answer is not None
        return self._answer

    def run(self, job: Job, retried: bool = True) -> Outcome:
        """Run ``job`` and return its outcome. If the target is unavailable, so is every job.

        What may not be the case's own is tried again, alone, if it is to be ``retried``.

        Raises `RunnerFailed` if the runner does not start, or has failed too often before.
        """
        answer = self.start()
        if isinstance(answer, UnavailableAnswer):
            return Unavailable(reason=answer.reason)
        first: Outcome | None = None
        last: Outcome | None = self._tried(job)
        while retried and last is not None and needs_another_try(first, last):
            first = last
            try:
                last = self._tried(job)
            except RunnerFailed:  # the next call raises
                last = None
        outcome = last if first is None else settled(first, last)
        assert outcome is not None
        if isinstance(outcome, Crashed) and not outcome.message:
            outcome = replace(outcome, message=failure_sentence(outcome))
        if not isinstance(outcome, InfrastructureFailure):
            self._failures = 0
            return outcome
        self._failures += 1
        if self._failures >= self.limits.failures_in_a_row:
            self._failed = RunnerFailed(
                f"{self.command.name}: given up after {self._failures} infrastructure failures in "
                f"a row, the last: {outcome.message}",
                outcome.fix,
            )
        return outcome

    def run_alone(self, job: Job) -> Outcome:
        """As `run`, in a new process."""
        self.renew()
        return self.run(job)

    def renew(self) -> None:
        """Replace the process: it may be damaged."""
        runner, self._runner, self._before = self._runner, None, None
        if runner is not None:
            runner.kill()

    def close(self, at_once: bool = False) -> None:
        """End the process, ``at_once`` or with time to exit by itself; remove all files.

        The next job starts a process anew.
        """
        try:
            if not at_once and self._runner is not None:
                self._runner.end()
        finally:
            with undisturbed():  # or something would be left
                self.renew()
                folder, self._folder = self._folder, None
                if folder is not None:
                    folder.remove()

    def _launch(self) -> None:
        """Start a process, which must describe itself as earlier ones. Raises `RunnerFailed`."""
        try:
            self._runner = runner = Runner(self.command, self.limits)
            answer, fix = self._description(runner), None
            if isinstance(answer, UnavailableAnswer):
                if self._answer is None:
                    self._answer = answer
                    self.renew()
                    return
                fix, answer = answer.fix, f"is no longer available: {answer.reason}"
            elif isinstance(answer, DescribedAnswer) and isinstance(self._answer, DescribedAnswer):
                answer = _other_description(self._answer, answer) or answer
            if isinstance(answer, str):
                raise RunnerFailed(f"{self.command.name}: the runner {answer}.", fix)
            self._answer = self._answer or answer
        except BaseException as error:
            if isinstance(error, RunnerFailed):
                self._failed = error
            self.renew()
            raise

    def _description(self, runner: Runner) -> DescribeAnswer | str:
        """The runner's description, or what it did instead of answering."""
        request = DescribeRequest(id=next(self._ids))
        news = runner.ask(to_line(request), self.limits.start_seconds)
        if isinstance(news, bytes):
            try:
                return parse_answer(news, request)
            except ProtocolError as error:
                return f"does not describe itself: {error}"
        if news.late is not None:
            return f"did not describe itself within {news.late:g} s"
        when = " before it described itself" if news.ended else ""
        return f"{news.what}{when}{last_words(runner.stderr())}"

    def _tried(self, job: Job) -> Outcome:
        """The outcome of one try of the case. Raises `RunnerFailed` if no process starts."""
        if self._runner is None:
            self._launch()
        runner, before, limits = self._runner, self._before, self.limits
        assert runner is not None
        try:
            with self._requested(job) as request:
                seconds = limits.case_seconds if job.seconds is None else job.seconds
                news = runner.ask(
                    to_line(request),
                    seconds,
                    lambda line: limits.compile_seconds if announces(line, request) else 0.0,
                )
                stderr, total_ms = runner.stderr(), runner.elapsed_ms()
                last, self._bytes = self._bytes, runner.resident_bytes()
                grown = self._bytes - last if before is not None else 0
                outcome = self._outcome(news, job, request, stderr)
        except BaseException:
            self.renew()
            raise
        ended = not isinstance(news, bytes) or outcome.damaged
        if isinstance(outcome, Crashed) and not ended:
            before = None  # whoever reports a crash, and lives, runs each call in its own process
        self._before = job
        if ended or isinstance(outcome, InfrastructureFailure):
            self.renew()
        outcome = replace(outcome, grown_bytes=grown)
        return replace(outcome, stderr=stderr, total_ms=total_ms, before=before)

    @contextmanager
    def _requested(self, job: Job) -> Iterator[RunRequest]:
        """The request; within this context, a folder with the job's files and one for its outputs.

        The folders are always new: processes that a runner has left running may still write in old
        ones.
        """
        number = next(self._ids)
        try:
            if self._folder is None:
                self._folder = OwnedFolder(place_for_files())
                self._folder.make()
            folder = f"{self._folder.path}/{number}"
            out, bundle = f"{folder}/out", f"{folder}/{job.folder}"
            os.mkdir(folder, 0o700)
            os.mkdir(out)
            write_files(bundle, job.files)
        except OSError as error:
            self._failed = RunnerFailed(
                f"{self.command.name}: the files of a case cannot be written (set TMPDIR to use"
                f" another place): {error}."
            )
            raise self._failed from None
        try:
            yield RunRequest(id=number, bundle=bundle, out=out, repeat=job.repeat, steps=job.steps)
        finally:
            remove(folder)

    def _outcome(self, news: News, job: Job, request: RunRequest, stderr: str) -> Outcome:
        """The outcome of ``job`` that follows from ``news``."""
        crash: str | None = None
        if isinstance(news, bytes):
            try:
                return self._answered(news, job, request)
            except ProtocolError as error:
                what = f"gave no valid answer: {error}"
        elif news.late is not None:
            return TimedOut(seconds=news.late)
        else:
            crash = None if news.signal in FROM_OUTSIDE else news.signal
            if crash is not None and not news.early:
                return Crashed(signal=crash, message="")
            what = news.what
            if news.ended:
                when = "before it was given the case" if news.early else "during the case"
                half = f", after the start of an answer: {news.half}" if news.half else ""
                what += f" {when}{half}{last_words(stderr)}"
        after = f" (the case before in this process: {self._before.title})" if self._before else ""
        message = f"The runner {what}{after}."
        idle = None
        if crash is not None and self._before is not None:  # it died of the case before
            idle = UnconfirmedFailure(message=message, before=self._before)
        return InfrastructureFailure(message=message, unrepeated=idle)

    def _answered(self, line: bytes, job: Job, request: RunRequest) -> Outcome:
        """The outcome of an answer; `ProtocolError` if it is not valid or a file is missing."""
        answer = parse_answer(line, request)
        if isinstance(answer, UnavailableAnswer):
            return Unavailable(reason=answer.reason)
        if isinstance(answer, CrashedAnswer):
            message = _crash_sentence(answer, len(request.steps))
            return Crashed(signal=answer.ended, message=message, damaged=answer.replace_process)
        if isinstance(answer, RejectedAnswer):
            return Rejected(
                stage=answer.stage,
                step=answer.step,
                code=answer.code,
                message=answer.message,
                changed=tuple(answer.changed),
                damaged=answer.replace_process,
            )
        described = self._answer
        asked = described.execution_provider if isinstance(described, DescribedAnswer) else None
        if asked is not None and answer.placement is None:
            raise ProtocolError(f"{asked} was requested, and the answer has no placement")
        return Ran(
            runs=contents_of(answer, request.out, job.most_output_bytes),
            placement=answer.placement,
            load_ms=answer.ms.load,
            run_ms=answer.ms.run,
            kernels=answer.kernels,
        )


def _other_description(first: DescribedAnswer, now: DescribedAnswer) -> str | None:
    """The fault if a process describes itself in another way than the first one; else None."""
    for name in type(now).model_fields:
        was, says = getattr(first, name), getattr(now, name)
        if name != "id" and was != says:
            words = f"{exact_line(str(says), 200)}, not {exact_line(str(was), 200)}"
            return (
                f"describes itself in another way than before: {name} is {words}; results of both "
                "must not be mixed"
            )
    return None


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
