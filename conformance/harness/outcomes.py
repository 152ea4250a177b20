"""The outcomes of a case on a runner, as the harness reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conformance.harness.jobs import Job


@dataclass(frozen=True, kw_only=True)
class UnconfirmedFailure:
    """A crash that did not happen again when the case was run alone in a fresh process.

    It can also be a rejection that did not happen again, after which the process was replaced.
    ``before`` is the case that the process had run before; None: it had run none. ``message`` is a
    sentence that quotes the last lines of the process's standard error.
    """

    message: str
    before: Job | None


@dataclass(frozen=True, kw_only=True)
class _Observation:
    """The fields of all outcomes.

    ``stderr`` is the end of the process's standard error during this case. ``total_ms`` is the time
    from writing the request to reading the answer; the answer may have waited for the caller.
    ``before`` is the case that the process had run before; None: the process had run no other case.
    ``unrepeated`` is the crash in the first process, if this is the outcome in a second one.
    ``damaged``: the runner reported that its process may be damaged (`replace_process`).
    ``grown_bytes``: how much more memory the process has than after the case before it; 0 for its
    first case.
    """

    stderr: str = ""
    total_ms: float = 0.0
    before: Job | None = None
    unrepeated: UnconfirmedFailure | None = None
    damaged: bool = False
    grown_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Ran(_Observation):
    """The case ran. ``runs``: for each repeat and step, the content of each output's file by name;
    of a step that may be rejected and was, nothing.

    The contents together have at most `Job.most_output_bytes`. Neither the contents nor the names
    of the outputs are checked. ``kernels`` are those that the runtime reports; None: it reports
    none.
    """

    runs: tuple[tuple[dict[str, bytes], ...], ...]
    placement: str | None
    load_ms: float
    run_ms: float
    kernels: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Rejected(_Observation):
    """The runtime returned an error instead of a result.

    ``changed`` names the inputs that the runtime had modified before it returned the error.
    ``repeated``: the process was replaced after the error, and the error occurred again when the
    case was run alone in a fresh process.
    """

    stage: Literal["load", "run"]
    step: int
    code: str | None
    message: str
    changed: tuple[str, ...] = ()
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class Crashed(_Observation):
    """The process died of ``signal``, such as SIGSEGV.

    ``message`` is a sentence that quotes the last lines of the process's standard error. If this is
    the outcome of `Session.run`, the process died again when the case was run alone in a fresh
    process. If the runner itself reported the crash (`CrashedAnswer`), ``signal`` may be another
    word (panic, cudaErrorIllegalAddress).
    """

    signal: str
    message: str


@dataclass(frozen=True, kw_only=True)
class TimedOut(_Observation):
    """There was no answer within ``seconds``, including compile time; the process was killed."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Unavailable(_Observation):
    """The case cannot be tried on this machine; ``reason`` says why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class InfrastructureFailure(_Observation):
    """The runner failed, which says nothing about the runtime: one sentence, and the fix."""

    message: str
    fix: str | None = None


Outcome = Ran | Rejected | Crashed | TimedOut | Unavailable | InfrastructureFailure
