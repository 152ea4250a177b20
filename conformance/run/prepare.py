"""Makes the bundles of cases and measures their effects side by side, before the run needs them.

The oracle of a long call takes seconds, and one process makes one bundle at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from conformance.base.side_by_side import side_by_side
from conformance.bundle.sensitive_cases import why_insensitive
from conformance.case.case import Case
from conformance.run.assessment import jobs_for

#: So few cases are made as fast by the run itself.
_FEW: Final = 4


def prepare(cases: Sequence[Case]) -> None:
    """Make those bundles that are missing, on all cores. What fails here is left to the run.

    Call it before the first runner starts: from then on a process trusts only the bundles that
    were there, and its own (:func:`conformance.bundle.cache.guard`).
    """
    if len(cases) > _FEW:
        side_by_side(_make, sorted(cases, key=scores, reverse=True))  # the longest first


def scores(case: Case) -> int:
    """The number of attention scores of a case, which the reference's time grows with."""
    call = case.call
    return (
        call.num_heads
        * call.batch_size
        * sum(step.sequence_length * max(step.total_sequence_length, 1) for step in case.steps)
    )


def _make(case: Case) -> None:
    for _ in jobs_for(case):
        pass
    why_insensitive(case)  # the cache has it then
