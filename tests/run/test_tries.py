"""The outcome of a case that failed and was tried again, alone: each pair of outcomes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from conformance.harness.jobs import Job
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Ran,
    Rejected,
    TimedOut,
)
from conformance.harness.tries import FAILED_TWICE, needs_another_try, settled

BEFORE = Job(case="before", variant=False, files={}, folder="f", steps=())
FAILURE = InfrastructureFailure(message="The runner exited.", before=BEFORE)
CRASH = Crashed(signal="SIGSEGV", message="", before=BEFORE)
HARM = Crashed(signal="panic", message="It ended in a panic.", damaged=True, before=BEFORE)
REJECTED = Rejected(stage="run", step=0, code=None, message="no", damaged=True, before=BEFORE)
RAN = Ran(runs=(), placement=None, load_ms=0.0, run_ms=0.0)


def alone(outcome: Outcome) -> Outcome:
    return replace(outcome, before=None, stderr="alone")


def kept(first: Outcome, second: Outcome | None) -> str:
    """Whose the outcome is, and what it says of the two tries."""
    found = settled(first, second)
    if isinstance(found, InfrastructureFailure):
        return "unknown" if "is not known" in found.message else "first"
    if isinstance(found, Rejected) and found.repeated:
        return "alone, rejected twice"
    if isinstance(found, Crashed) and FAILED_TWICE in found.message:
        return "alone, failed twice"
    if isinstance(found, Crashed) and found.stderr == first.stderr:
        return "first, crashed twice"
    assert found.stderr.endswith("alone")
    return "alone, not again" if found.unrepeated else "alone"


FAILED_BEFORE = ("unknown", "alone, failed twice", "alone, failed twice", "alone, rejected twice")
WANTED = {
    # alone: a failure, a crash, a crash that damages, a rejection that damages, it ran
    "FAILURE": ("first", None, None, "alone", "alone"),
    "CRASH": (
        *("unknown", "first, crashed twice", "alone, failed twice"),
        *("alone, not again", "alone, not again"),
    ),
    "HARM": (*FAILED_BEFORE, "alone, not again"),
    "REJECTED": (*FAILED_BEFORE, "alone, not again"),
}
SECOND = (FAILURE, CRASH, HARM, REJECTED, RAN)


@pytest.mark.parametrize(("first", "column"), [*product(WANTED, range(len(SECOND)))])
def test_each_pair_of_outcomes_has_one(first: str, column: int) -> None:
    """A crash alone after a failure of the runner (None) is tried once more instead."""
    before, second = globals()[first], alone(SECOND[column])
    if (wanted := WANTED[first][column]) is None:
        assert needs_another_try(before, second)
    else:
        assert not needs_another_try(before, second)
        assert kept(before, second) == wanted


@pytest.mark.parametrize("first", WANTED)
def test_a_process_that_does_not_start_again_is_a_failure(first: str) -> None:
    assert kept(globals()[first], None) == WANTED[first][0]


def test_what_may_be_of_an_earlier_case_is_tried_alone() -> None:
    assert all(needs_another_try(None, each) for each in (FAILURE, CRASH, HARM, REJECTED))
    tried_alone = map(alone, (FAILURE, REJECTED, RAN, TimedOut(seconds=1)))
    assert not any(needs_another_try(None, each) for each in tried_alone)
    assert needs_another_try(None, alone(CRASH))  # by chance, perhaps
