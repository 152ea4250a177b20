"""What a program looks at, and which word it says, from what a results file has of a result."""

from __future__ import annotations

import json
import math
import re
from typing import Final

from conformance.report.repro.making import RANKS, index_text, js_number, python_number, quoted
from conformance.results.records import (
    CallInput,
    CallOutput,
    CallRecord,
    CaseRecord,
    OutputErrorRecord,
    ResultRecord,
)

CARRIED: Final = {"past_key": "present_key", "past_value": "present_value"}
#: How judge.py says that a shape, a dtype or a second run differs.
_SHAPE = re.compile(r"\b(\w+)(?: in call (\d+))? has shape \([^)]*\), not (\([\d, ]*\))")
DTYPE = re.compile(" has dtype ")
TWO_RUNS: Final = "two runs on the same input differ"
_OTHER_FORM: Final = "The same call, "
_SECONDS = re.compile(r"No answer within ([\d.]+) s")
#: A long loop has more elements, and more wrong shapes, than anybody reads.
MOST: Final = 8
ELSEWHERE: Final = "the fault that the suite tells of is in another form of this call, not here"


def _checked(result: ResultRecord) -> list[tuple[str, int, tuple[int, ...], float, float]]:
    """Output, call, index, right number and allowed error of the elements that are looked at."""
    if of_the_other_form(result) and result.verdict != "wrong":
        return []
    if result.reason.startswith(_OTHER_FORM) and result.relation is None:
        return []  # the figures are of the other form
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
        (output, int(step or 0), shape)
        for output, step, shape in _SHAPE.findall(result.reason)
        if result.verdict == "wrong" and output in RANKS and not of_the_other_form(result)
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
    return 2 if TWO_RUNS in result.reason else 1


def seconds_of(result: ResultRecord) -> float:
    """After so long a call has timed out."""
    match = _SECONDS.search(result.reason)
    return float(match[1]) if match else 60.0


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
    return disagree or result.reason.startswith(_OTHER_FORM)


def carried_of(call: CallRecord) -> dict[str, str]:
    """Of a loop: past → the present that it is, in the next call."""
    tensors: list[CallInput | CallOutput] = [*call.inputs, *call.outputs]
    connected = {tensor.name for tensor in tensors if tensor.state == "connected"}
    if call.steps < 2:
        return {}
    return {p: n for p, n in CARRIED.items() if {p, n} <= connected}
