"""What a program looks at, and which word it says, from what a results file has of a result."""

from __future__ import annotations

import json
import math
from typing import Final

from conformance.report.repro.making import RANKS, index_text, js_number, python_number, quoted
from conformance.results.records import (
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    FaultKind,
    OutputErrorRecord,
    ResultRecord,
    WrongShape,
)

CARRIED: Final = {"past_key": "present_key", "past_value": "present_value"}
#: A long loop has more elements, and more wrong shapes, than anybody reads.
MOST: Final = 8
ELSEWHERE: Final = "the fault that the suite tells of is in another form of this call, not here"


def _checked(result: ResultRecord) -> list[tuple[str, int, tuple[int, ...], float, float]]:
    """Output, call, index, right number and allowed error of the elements that are looked at."""
    if result.of_variant:
        return []  # the figures are those of the variant
    shares = sorted((_share(error) for error in result.errors), reverse=True)
    least = shares[MOST - 1] if len(shares) > MOST else -math.inf
    told = [
        (error.output, error.step, error.index, error.want, error.budget)
        for error in result.errors
        if error.index is not None and error.want is not None and error.budget is not None
        if _share(error) >= least
    ]
    return told[:MOST]


def _share(error: OutputErrorRecord) -> float:
    share = error.share or 0.0
    return math.inf if math.isnan(share) else share


def wrong_shapes(result: ResultRecord) -> list[tuple[str, int, str]]:
    """Output, call and the right shape, of what had another one."""
    told = [
        (fault.output, fault.step or 0, str(fault.want))
        for fault in result.faults
        if isinstance(fault, WrongShape) and fault.output in RANKS
        if result.verdict == "wrong" and not of_the_other_form(result)
    ]
    return told[:MOST]


def word_if_refused(case: CaseRecord) -> str:
    """The verdict where the runtime refuses the call."""
    return "unsupported" if case.contract.demands == "computes" else "pass"


def word_if_right(case: CaseRecord) -> str:
    """The verdict where the call runs and all that is looked at is right."""
    return "accepted" if case.contract.demands == "rejects" else "pass"


def runs_of(result: ResultRecord) -> int:
    """How often the program makes the call."""
    return 2 if has_fault(result, "runs_differ") else 1


def has_fault(result: ResultRecord, kind: FaultKind) -> bool:
    """Whether the result has a fault of this kind."""
    return any(fault.kind == kind for fault in result.faults)


def seconds_of(result: ResultRecord) -> float:
    """After so long a call has timed out."""
    return 60.0 if result.time_limit is None else result.time_limit


def wanted_list(case: CaseRecord, result: ResultRecord, word: str) -> str:
    """The elements as a list of the language."""
    python = word != "javascript"
    last = [tensor.name for tensor in case.call.outputs if tensor.state == "connected"]
    lines = ["wanted = [" if python else "const wanted = ["]
    for output, step, index, want, budget in _checked(result):
        if output not in last:
            continue
        place = index_text(index) if python else json.dumps(list(index))
        number = python_number if python else js_number
        told = f"{quoted(output)}, {step}, {place}, {number(want)}, {number(budget)}"
        lines.append(f"    ({told})," if python else f"  [{told}],")
    return "\n".join([*lines, "]" if python else "];"])


def of_the_other_form(result: ResultRecord) -> bool:
    """Whether the verdict is of the call in another form, or of what the two have not in common."""
    disagree = result.relation is not None and not result.relation.share <= 1
    return disagree or result.of_variant


def carried_of(call: CallRecord) -> dict[str, str]:
    """Of a loop: past → the present that it is, in the next call."""
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    connected = {tensor.name for tensor in tensors if tensor.state == "connected"}
    if call.steps < 2:
        return {}
    return {p: n for p, n in CARRIED.items() if {p, n} <= connected}
