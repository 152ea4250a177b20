"""Which outcome a case has that failed and was tried again, alone in a fresh process.

See `conformance.harness.session` for why it is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from conformance.base.text import clean, one_line
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Rejected,
    UnconfirmedFailure,
)

#: The message of a Rust panic: the place, and the text on the lines that follow.
PANIC: Final = re.compile(r"panicked at .*(?:\n(?!note:|stack backtrace:|thread ).+)*")

#: For the sentence on a case that failed twice so that its process was replaced.
FAILED_TWICE: Final = (
    "[It failed in its first process, too: this is what it did alone, in a fresh process.]"
)


def needs_another_try(first: Outcome | None, outcome: Outcome) -> bool:
    """Whether to run a case alone, after its ``first`` outcome if it was tried before."""
    if isinstance(outcome, Crashed):
        return first is None or isinstance(first, InfrastructureFailure)
    may_be_of_another = isinstance(outcome, InfrastructureFailure) or outcome.damaged
    return first is None and outcome.before is not None and may_be_of_another


def settled(first: Outcome, alone: Outcome | None) -> Outcome:
    """The outcome of a case that failed and was then run ``alone``; None: that was not possible.

    A crash alone after a failure of the runner is tried once more, as a first outcome.
    """
    if isinstance(first, InfrastructureFailure):
        if alone is None or isinstance(alone, InfrastructureFailure | Crashed):
            return first  # no try gave an answer
        note = f"[{first.message} This is the outcome of a second try, in a fresh process.]"
        idle = alone.unrepeated or first.unrepeated
        return replace(alone, stderr=f"{note}\n{alone.stderr}", unrepeated=idle)
    assert isinstance(first, Crashed | Rejected)
    if alone is None or isinstance(alone, InfrastructureFailure):
        return _unknown(first, alone)
    if isinstance(alone, Crashed):
        if isinstance(first, Crashed) and not (first.damaged or alone.damaged):
            return _crashed_again(first, alone)
        return replace(alone, message=f"{failure_sentence(alone)} {FAILED_TWICE}")
    if isinstance(alone, Rejected) and first.damaged and alone.damaged:
        # The rejection is the case's, although the process may be damaged.
        return replace(alone, stderr=f"{FAILED_TWICE}\n{alone.stderr}", repeated=True)
    what = failure_sentence(first)
    note = f"[{what} This is the outcome of a second try, alone in a fresh process.]"
    unrepeated = UnconfirmedFailure(message=what, before=first.before)
    return replace(alone, stderr=f"{note}\n{alone.stderr}", unrepeated=unrepeated)


def _unknown(first: Crashed | Rejected, alone: InfrastructureFailure | None) -> Outcome:
    """The failure if it could not be seen whether the case fails alone."""
    why = "it could not be started again." if alone is None else alone.message
    why = f"Whether it does so alone is not known: {why.removesuffix('.')}."
    return InfrastructureFailure(
        message=f"{failure_sentence(first)} {why}",
        fix=alone.fix if alone else None,
        stderr=first.stderr,
        total_ms=first.total_ms,
    )


def _crashed_again(first: Crashed, alone: Crashed) -> Outcome:
    """The crash in the first process, with what the second one said."""
    how = "again" if alone.signal == first.signal else f"of {alone.signal}"
    words = f"and {how} when it was tried alone{last_words(first.stderr)}"
    message = alone.message or f"{_death(first)}, {words}."
    return replace(first, message=message, before=None)


def failure_sentence(outcome: Crashed | Rejected) -> str:
    """The failure in a full sentence."""
    if isinstance(outcome, Rejected):
        said = one_line(outcome.message, 300)
        return f"It was refused with an error after which its process was replaced: {said}"
    return outcome.message or f"{_death(outcome)}{last_words(outcome.stderr)}."


def _death(crash: Crashed) -> str:
    """The crash, as the start of a sentence."""
    memory = " (the system may have been out of memory)" if crash.signal == "SIGKILL" else ""
    return f"The runner died of {crash.signal}{memory}"


def last_words(stderr: str) -> str:
    """The cause of a crash from ``stderr``, as the end of a sentence: the panic, or the last line.

    Of several panics it is the first; the others only report that there was one.
    """
    if panic := PANIC.search(stderr):
        return f"; it {one_line(panic[0], 300)}"
    lines = clean(stderr).strip().splitlines()
    return f"; the last it wrote: {one_line(lines[-1].removesuffix('.'), 300)}" if lines else ""
