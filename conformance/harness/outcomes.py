"""What a runner did with a case: the outcomes that the harness reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What every outcome has.

    ``stderr`` is the last of what was written to standard error during this case. ``total_ms`` is
    the time from the writing of the request to the reading of the answer, which may have waited
    for the caller.
    """

    stderr: str = ""
    total_ms: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ran(_Seen):
    """It ran. ``runs``: for each repeat, for each step, output name to the path of its file.

    The files exist, are plain files and lie directly in ``out``, the caller's until it asks for
    the next outcome. What is in them, and which outputs there are, is unchecked.
    """

    runs: tuple[tuple[dict[str, str], ...], ...]
    out: str
    placement: str | None
    load_ms: float
    run_ms: float


@dataclass(frozen=True, kw_only=True)
class Rejected(_Seen):
    """The runtime refused, with an error."""

    stage: Literal["load", "run"]
    step: int
    code: str | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Crashed(_Seen):
    """The process died of ``signal``, such as SIGSEGV; ``message`` is a sentence, with what the
    process last said of it.

    ``repeated``: it did so again when the case was tried alone in a fresh process. If not, the
    case before it in the same process may be to blame, and ``message`` names it. Where the runner
    itself told of the death (`CrashedAnswer`), the process was the call's own, ``signal`` may be
    another word (panic), and there is nothing to try again.
    """

    signal: str
    message: str
    repeated: bool = False


@dataclass(frozen=True, kw_only=True)
class TimedOut(_Seen):
    """There was no answer within ``seconds``, time to compile included; the process was killed."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Unavailable(_Seen):
    """The case cannot be tried here, and why."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class InfrastructureFailure(_Seen):
    """The runner failed, so nothing is known of the runtime: one sentence, and what mends it."""

    message: str
    fix: str | None = None


Outcome = Ran | Rejected | Crashed | TimedOut | Unavailable | InfrastructureFailure
