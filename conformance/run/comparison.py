"""A result beside the expectation that covers it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from conformance.case.case import Case
from conformance.judge.expectations import Expectation, known_result
from conformance.results.records import ResultRecord
from conformance.results.verdicts import is_red, was_tried

#: In the sentence about a result that differs from its expectation, behind the line's place.
ANOTHER_EXPECTATION: Final = " has another expectation for "


def compared(
    case: Case,
    result: ResultRecord,
    basis: str,
    on: tuple[str, str | None],
    expectations: Iterable[Expectation],
) -> ResultRecord:
    """A result as the expectations of its target leave it; its reason ends in how it differs.

    ``basis`` is that of its contract, ``on`` has version and adapter.
    """
    found = None
    if was_tried(result):  # else no defect can show
        found = known_result(case, result, on, expectations)
    unexpected, record, reason = is_red(result, basis), None, result.reason
    if found is not None:
        line, differs = found
        unexpected = differs is not None
        if unexpected or line.known.verdict != "pass":
            record = line.record
        if record is not None and unexpected:
            reason += (
                f" {record.file}:{line.line}{ANOTHER_EXPECTATION}{line.known.where}: {differs}; end"
                " that range of versions, or change the line."
            )
    update = {"unexpected": unexpected, "expectation": record, "reason": reason}
    return result.model_copy(update=update)
