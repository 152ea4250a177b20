"""The checks of a stand-alone program, and the verdicts that it prints."""

from __future__ import annotations

import math
from typing import Any, Final

from conformance.results.records import (
    CaseRecord,
    FaultKind,
    OutputErrorRecord,
    ResultRecord,
    WrongShape,
    contract_of,
)

#: The largest number of elements, and of wrong shapes, that a program checks.
_MOST: Final = 8


def verdicts(case: CaseRecord, result: ResultRecord) -> tuple[str, str, str]:
    """The verdicts to print: if all checks pass, if one fails, and if the call is rejected."""
    demands = contract_of(case, result).demands
    rejected = "unsupported" if demands == "computes" else "pass"
    return (
        ("accepted", "accepted", rejected) if demands == "rejects" else ("pass", "wrong", rejected)
    )


def wrong_elements(case: CaseRecord, result: ResultRecord) -> list[list[Any]]:
    """Output, call, index, expected value and error budget of the elements with the largest errors.

    They are JSON values.
    """
    if result.of_variant:
        return []  # the recorded errors are those of the variant
    outputs = {tensor.name for tensor in case.call.outputs if tensor.state == "connected"}
    shares = sorted(map(_share, result.errors), reverse=True)
    least = shares[_MOST - 1] if len(shares) > _MOST else -math.inf
    fields = ("output", "step", "index", "want", "budget")
    elements = [
        [*error.model_dump(mode="json", include={*fields}).values()]
        for error in result.errors
        if error.output in outputs and _share(error) >= least
        if None not in (error.index, error.want, error.budget)
    ]
    return elements[:_MOST]


def _share(error: OutputErrorRecord) -> float:
    share = error.share or 0.0
    return math.inf if math.isnan(share) else share


def wrong_shapes(case: CaseRecord, result: ResultRecord) -> list[list[Any]]:
    """Output, call and expected shape of each output with a wrong shape."""
    outputs = {output.name for output in case.call.outputs}
    if result.verdict != "wrong" or is_of_the_variant(result):
        return []
    shapes = [
        [fault.output, fault.step or 0, fault.want]
        for fault in result.faults
        if isinstance(fault, WrongShape) and fault.output in outputs
    ]
    return shapes[:_MOST]


def has_fault(result: ResultRecord, kind: FaultKind) -> bool:
    """Whether the result has a fault of this kind."""
    return any(fault.kind == kind for fault in result.faults)


def is_of_the_variant(result: ResultRecord) -> bool:
    """Whether the fault is in the variant of the call, or in a difference between the two."""
    disagree = result.relation is not None and not result.relation.share <= 1
    return disagree or result.of_variant
