"""What a runner did with a case: the outcomes that the harness reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conformance.harness.jobs import Job


@dataclass(frozen=True, kw_only=True)
class Unrepeated:
    """A crash that did not happen again when the case was run alone in a fresh process.

    Or a rejection that did not, after which the process was replaced. ``before`` is the case that
    the process had run before; None: it had run none. ``message`` is a sentence that quotes the
    process's last words.
    """

    message: str
    before: Job | None


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What all outcomes have.

    ``stderr`` is the end of what was written to standard error during this case. ``total_ms`` is
    the time from writing the request to reading the answer, which may have waited for the caller.
    ``before`` is the case that the process had run before; None: the case had it for itself.
    ``unrepeated`` is the crash in the first process, where this is the outcome in another one.
    ``damaged``: the runner said that its process may be damaged (`replace_process`).
    """

    stderr: str = ""
    total_ms: float = 0.0
    before: Job | None = None
    unrepeated: Unrepeated | None = None
    damaged: bool = False


@dataclass(frozen=True, kw_only=True)
class Ran(_Seen):
    """It ran. ``runs``: for each repeat, for each step, output name to the content of its file.

    The contents together have at most `Job.most_output_bytes`. What they are, and which outputs
    there are, is unchecked. ``kernels`` are those that the runtime reports; None: it reports none.
    """

    runs: tuple[tuple[dict[str, bytes], ...], ...]
    placement: str | None
    load_ms: float
    run_ms: float
    kernels: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Rejected(_Seen):
    """The runtime returned an error instead of a result.

    ``changed`` names the inputs that were no longer as before when the error came. ``repeated``: an
    error after which the process was replaced, and it came again when the case was run alone in a
    fresh process.
    """

    stage: Literal["load", "run"]
    step: int
    code: str | None
    message: str
    changed: tuple[str, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Crashed(_Seen):
    """The process died of ``signal``, such as SIGSEGV; ``message`` is a sentence that quotes the
    process's last words.

    As the outcome of `Session.run`, it died again when the case was run alone in a fresh process.
    Where the runner itself reported the crash (`CrashedAnswer`), ``signal`` may be another word
    (panic, cudaErrorIllegalAddress).
    """

    signal: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TimedOut(_Seen):
    """No answer within ``seconds``, which include time to compile; the process was killed."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Unavailable(_Seen):
    """The case cannot be tried here; ``reason`` says why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class InfrastructureFailure(_Seen):
    """The runner failed, which says nothing about the runtime: one sentence, and the fix."""

    message: str
    fix: str | None = None


Outcome = Ran | Rejected | Crashed | TimedOut | Unavailable | InfrastructureFailure
