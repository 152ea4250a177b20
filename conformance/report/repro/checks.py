"""What a stand-alone program checks, and which verdict it prints for it.

Everything is read from the result's record in a results file. Where the record has no field for
something, its reason, a sentence of `conformance.judge.verdict`, is parsed.
"""

from __future__ import annotations

import json
import math
from typing import Final

from conformance.report.repro.model_source import (
    index_text,
    js_number,
    python_number,
    quoted,
)
from conformance.results.records import (
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    FaultKind,
    OutputErrorRecord,
    ResultRecord,
    WrongShape,
    contract_of,
)

CARRIED: Final = {"past_key": "present_key", "past_value": "present_value"}
#: The number of elements, and of wrong shapes, that a program prints; a long loop has many more.
MOST: Final = 8
ELSEWHERE: Final = "the suite found the fault in a variant of this call, not in this one"


def _checked(result: ResultRecord) -> list[tuple[str, int, tuple[int, ...], float, float]]:
    """Output, call, index, expected value and error budget of each element to check."""
    if result.of_variant:
        return []  # the recorded errors are those of the variant
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


def wrong_shapes(case: CaseRecord, result: ResultRecord) -> list[tuple[str, int, str]]:
    """Output, call and expected shape of each output that had a wrong shape."""
    known = {output.name for output in case.call.outputs}
    told = [
        (fault.output, fault.step or 0, str(fault.want))
        for fault in result.faults
        if isinstance(fault, WrongShape) and fault.output in known
        if result.verdict == "wrong" and not is_of_the_variant(result)
    ]
    return told[:MOST]


def verdict_if_rejected(case: CaseRecord, result: ResultRecord) -> str:
    """The verdict if the runtime rejects the call."""
    return "unsupported" if contract_of(case, result).demands == "computes" else "pass"


def verdict_if_right(case: CaseRecord, result: ResultRecord) -> str:
    """The verdict if the call runs and every checked element is right."""
    return "accepted" if contract_of(case, result).demands == "rejects" else "pass"


def runs_of(result: ResultRecord) -> int:
    """How many times the program makes the call."""
    return 2 if has_fault(result, "runs_differ") else 1


def has_fault(result: ResultRecord, kind: FaultKind) -> bool:
    """Whether the result has a fault of this kind."""
    return any(fault.kind == kind for fault in result.faults)


def seconds_of(result: ResultRecord) -> float:
    """The time limit of the call, in seconds."""
    return 60.0 if result.time_limit is None else result.time_limit


def expected_list(case: CaseRecord, result: ResultRecord, word: str) -> str:
    """The elements to check, as source code of a list.

    ``word`` is the language: ``python`` or ``javascript``.
    """
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


def is_of_the_variant(result: ResultRecord) -> bool:
    """Whether the fault is in the variant of the call, or in a difference between the two."""
    disagree = result.relation is not None and not result.relation.share <= 1
    return disagree or result.of_variant


def carried_of(call: CallRecord) -> dict[str, str]:
    """For a case with several steps: each past, and the present that it is in the next step."""
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    connected = {tensor.name for tensor in tensors if tensor.state == "connected"}
    if call.steps < 2:
        return {}
    return {p: n for p, n in CARRIED.items() if {p, n} <= connected}
