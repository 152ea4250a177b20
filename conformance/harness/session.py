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
    each time, and after an answer that says that it may be damaged (``replace_process``), as a
    GPU's context is after an error of the device: no other case runs in it.

    Each process must describe itself as the first one did; if one does not, the target is given up.

    A runtime can damage its own process, and a runner can fail after an answer. Both are noticed
    with the next case, which is not to blame. A case that crashes, or that ends in an
    infrastructure failure or damages its process in one that had run another case, is therefore
    tried once more, alone in a fresh process, which costs a start and a case. That outcome is the
    case's own. What did not happen again comes with it, as `Unrepeated`, and is nobody's so far.

Shutdown
    `Session.close`, the end of the ``with``, closes the runner's input, kills it if it does not
    exit and removes all files. When this process itself is killed, the runner reads the end of its
    input and exits, and what does not is killed (`conformance.harness.process`). The files are
    removed by the next process that has a session (`conformance.harness.folders`).
"""

from __future__ import annotations

import itertools
import os
import re
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from conformance.base.files import write_files
from conformance.base.interrupts import undisturbed
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
    Unrepeated,
)
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

#: The outcomes after which a case is tried again.
Failed = Crashed | Rejected | InfrastructureFailure


class Session:
    """A runner process of one target, started when there is something for it to do.

    ``start_seconds`` is the total time of its starts, from the launch to the answer to describe.
    ``described`` is the description by another process, as which each must describe itself.
    """

    def __init__(
        self,
        command: Command,
        limits: Limits | None = None,
        described: DescribeAnswer | None = None,
    ) -> None:
        self.command = command
        self.limits = limits or Limits()
        self.start_seconds = 0.0
        self._selector = selectors.DefaultSelector()
        self._process: RunnerProcess | None = None
        #: The case that this process ran last.
        self._before: Job | None = None
        self._answer = described
        self._failed: RunnerFailed | None = None
        self._failures = 0
        self._ids = itertools.count(1)
        self._folder: OwnedFolder | None = None

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

        After an `UnavailableAnswer` no process is left. `RunnerFailed`: it does not start, or it
        has been given up since.
        """
        if self._failed is not None:
            # A new one each time, as an exception collects the tracebacks of each raise.
            raise RunnerFailed(*self._failed.args)
        if self._answer is None:
            self._launch()
        assert self._answer is not None
        return self._answer

    def run(self, job: Job) -> Outcome:
        """Run ``job`` and wait for its outcome. If the target is unavailable, every job is.

        Raises `RunnerFailed` if the runner does not start, or has failed too often before.
        """
        answer = self.start()
        if isinstance(answer, UnavailableAnswer):
            return Unavailable(reason=answer.reason)
        first: Failed | None = None
        company: Job | None = None
        outcome: Outcome | None
        while True:
            try:
                outcome, ended = self._tried(job)
            except RunnerFailed:
                if first is None:
                    raise
                return _last_try(first, company, None)  # the next call raises
            if not _is_to_be_tried_again(first, outcome):
                break
            assert isinstance(outcome, Failed)
            # Any runner that reports a crash, and lives, runs each call in a process of its own.
            first, company = outcome, outcome.before if ended else None
        if first is not None:
            outcome = _last_try(first, company, outcome)
        self._count(outcome)
        return outcome

    def renew(self) -> None:
        """Replace the process: it may be damaged."""
        process, self._process, self._before = self._process, None, None
        if process is not None:
            process.kill()

    def close(self, at_once: bool = False) -> None:
        """End the process, ``at_once`` or with time to exit by itself; remove all files."""
        try:
            if not at_once and self._process is not None:
                self._process.end_input()
                self._process.wait(time.monotonic() + GRACE_SECONDS)
        finally:
            with undisturbed():  # or something would be left
                self.renew()
                self._selector.close()
                if self._folder is not None:
                    self._folder.remove()

    # The process

    def _asked(
        self,
        process: RunnerProcess,
        line: bytes,
        seconds: float,
        more_for: Callable[[bytes], float] | None = None,
    ) -> News:
        """Send a request, and wait for what happens."""
        process.ask(line, seconds, more_for)
        while True:
            patience = max(0.0, process.deadline - time.monotonic())
            if process.must_be_polled:
                patience = min(patience, POLL_SECONDS)
            for key, _ in self._selector.select(patience):
                key.data()
            if process.must_be_polled:
                process.poll()
            if (news := process.news()) is not None:
                return news

    def _launch(self) -> None:
        """Start a process, which must describe itself as those before. Raises `RunnerFailed`."""
        try:
            self._process = process = RunnerProcess(self.command, self.limits, self._selector)
            request = DescribeRequest(id=next(self._ids))
            news = self._asked(process, to_line(request), self.limits.start_seconds)
            self._described(process, self._description(news, request, process.stderr()))
        except RunnerFailed as failure:
            self._failed = failure
            self.renew()
            raise
        except BaseException:
            self.renew()
            raise

    def _described(self, process: RunnerProcess, answer: DescribeAnswer | str) -> None:
        """Take the answer to describe, or what the runner did instead. Raises `RunnerFailed`."""
        if isinstance(answer, UnavailableAnswer) and self._answer is None:
            self._answer = answer
            self.renew()
            return
        if isinstance(answer, DescribedAnswer) and isinstance(self._answer, DescribedAnswer):
            answer = _other_description(self._answer, answer) or answer
        if not isinstance(answer, DescribedAnswer):
            fix = self.command.fix
            if isinstance(answer, UnavailableAnswer):
                fix = answer.fix
                answer = f"is no longer available: {answer.reason}"
            sentence = f"{self.command.name}: the runner {answer}."
            raise RunnerFailed(sentence, fix, process.stderr())
        self._answer = self._answer or answer
        self.start_seconds += process.elapsed_ms() / 1e3

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

    # A case

    def _tried(self, job: Job) -> tuple[Outcome, bool]:
        """What a process does with the case, and whether it has ended.

        Raises `RunnerFailed` if it does not start.
        """
        if self._process is None:
            self._launch()
        process, before = self._process, self._before
        assert process is not None
        folder = ""
        try:
            try:
                folder, request = self._request(job)
            except OSError as error:
                self._failed = RunnerFailed(
                    f"{self.command.name}: the files of a case cannot be written (set TMPDIR to use"
                    f" another place): {error}."
                )
                raise self._failed from None
            limits = self.limits
            news = self._asked(
                process,
                to_line(request),
                limits.case_seconds if job.seconds is None else job.seconds,
                lambda line: limits.compile_seconds if announces(line, request) else 0.0,
            )
            outcome = replace(self._outcome(process, job, request, news), before=before)
            self._before = job
            ended = not isinstance(news, bytes) or outcome.damaged
            if ended or isinstance(outcome, InfrastructureFailure):
                self.renew()
            return outcome, ended
        except BaseException:
            self.renew()
            raise
        finally:
            if folder:
                remove(folder)

    def _request(self, job: Job) -> tuple[str, RunRequest]:
        """A folder with the job's files and one for its outputs, and the request. Raises OSError.

        Never one that was used before: what a runner has left running may still write there.
        """
        number = next(self._ids)
        if self._folder is None:
            self._folder = OwnedFolder(place_for_files())
            self._folder.make()
        folder = f"{self._folder.path}/{number}"
        out, bundle = f"{folder}/out", f"{folder}/{job.folder}"
        os.mkdir(folder, 0o700)
        os.mkdir(out)
        write_files(bundle, job.files)
        return folder, RunRequest(
            id=number, bundle=bundle, out=out, repeat=job.repeat, steps=job.steps
        )

    def _outcome(
        self, process: RunnerProcess, job: Job, request: RunRequest, news: News
    ) -> Outcome:
        """The outcome of ``job`` that follows from ``news``."""
        total_ms = process.elapsed_ms()
        stderr = process.stderr()
        if isinstance(news, bytes):
            try:
                return self._answered(news, job, request, stderr, total_ms)
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
        after = f" (the case before in this process: {self._before.key})" if self._before else ""
        message = f"The runner {what}{after}."
        idle: Unrepeated | None = None
        if isinstance(news, Died) and self._before is not None:
            name = _signal_of(news.status)
            if name is not None and name not in FROM_OUTSIDE:  # early, as above
                idle = Unrepeated(signal=name, message=message, before=self._before, stderr=stderr)
        return InfrastructureFailure(
            message=message, stderr=stderr, total_ms=total_ms, unrepeated=idle
        )

    def _answered(
        self, line: bytes, job: Job, request: RunRequest, stderr: str, total_ms: float
    ) -> Outcome:
        """The outcome of an answer; `ProtocolError` if it is not valid or a file is missing."""
        answer = parse_answer(line, request)
        if isinstance(answer, UnavailableAnswer):
            return Unavailable(reason=answer.reason, stderr=stderr, total_ms=total_ms)
        if isinstance(answer, CrashedAnswer):
            return Crashed(
                signal=answer.ended,
                message=_crash_sentence(answer, len(request.steps)),
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
            stderr=stderr,
            total_ms=total_ms,
        )

    def _count(self, outcome: Outcome) -> None:
        """Give the target up once it has failed too often in a row."""
        if not isinstance(outcome, InfrastructureFailure):
            self._failures = 0
            return
        self._failures += 1
        if self._failures >= self.limits.failures_in_a_row:
            self._failed = RunnerFailed(
                f"{self.command.name}: given up after {self._failures} infrastructure failures in "
                f"a row, the last: {outcome.message}",
                outcome.fix,
                outcome.stderr,
            )


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


def _is_to_be_tried_again(first: Failed | None, outcome: Outcome) -> bool:
    """Whether a case is to be run alone, after its ``first`` outcome if it was tried before."""
    if isinstance(outcome, Crashed):
        return not isinstance(first, Crashed | Rejected)
    if outcome.before is None or first is not None:
        return False
    return isinstance(outcome, InfrastructureFailure) or (
        isinstance(outcome, Rejected) and outcome.damaged
    )


def _last_try(first: Failed, company: Job | None, outcome: Outcome | None) -> Outcome:
    """The outcome of a case after its ``first`` and that of its last try; None: there was none.

    ``company`` is the case that the first process had run before.
    """
    if isinstance(first, InfrastructureFailure):
        if outcome is None or isinstance(outcome, InfrastructureFailure):
            return first
        note = f"[{first.message} This is the outcome of a second try, in a fresh process.]"
        idle = outcome.unrepeated or first.unrepeated
        return replace(outcome, stderr=f"{note}\n{outcome.stderr}", unrepeated=idle)
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
            before=company,
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
