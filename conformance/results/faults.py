"""Descriptions of faults for people; programs read the fields."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from conformance.base.words import listed
from conformance.case.relations import RELATIONS
from conformance.results.records import (
    BeyondBudget,
    Fault,
    OutputErrorRecord,
    RelationBroken,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.wrong_outputs import wrong_names


def faults_text(faults: Sequence[Fault], errors: Iterable[OutputErrorRecord] = ()) -> str:
    """All ``faults`` in one clause without a full stop, which can follow "It ran, but".

    A broken relation is described only if it is the first fault. All other outputs that are wrong,
    by ``faults`` or by ``errors``, are named at the end.
    """
    described = [f for f in faults if f is faults[0] or not isinstance(f, RelationBroken)]
    named = {fault.output for fault in described}
    others = [name for name in wrong_names(faults, errors) if name not in named]
    clauses = [fault_text(fault) for fault in described]
    if others:
        clauses.append(f"{listed(others)} {'is' if len(others) == 1 else 'are'} wrong, too")
    return "; ".join(clauses)


def fault_text(fault: Fault) -> str:
    """One fault as a clause without a full stop."""
    place = fault.output if fault.step is None else f"{fault.output} in step {fault.step}"
    match fault:
        case RunsDiffer():
            return f"two runs on the same input differ in {place}"
        case WrongDtype():
            return f"{place} has dtype {fault.got}, not {fault.want}"
        case WrongShape():
            return f"{place} has shape {fault.got}, not {fault.want}"
        case BeyondBudget():
            how = _times(fault.share, fault.budget, "the error budget", "it must be exact")
            index = list(fault.index)
            return f"{place} is {fault.got:.9g} at {index}, not {fault.want:.9g} ({how})"
        case RelationBroken():
            relation = RELATIONS.get(fault.name)
            what = f"the same call {relation.what}" if relation else fault.name
            why = f"; {relation.law}" if relation else ""
            return f"the variant ({what}) gives other results: {difference_text(fault)}{why}"


def difference_text(fault: RelationBroken) -> str:
    """Where a case and its variant differ most, as a clause."""
    how = _times(fault.share, fault.budget, "the bound", "they must be equal")
    index = list(fault.index)
    return f"{fault.output} is {fault.got:.9g} and {fault.other:.9g} at {index} ({how})"


def _times(share: float, budget: float, what: str, exact: str) -> str:
    """How many times an error exceeds ``what``, its budget; ``exact`` if the budget is 0."""
    if budget == 0:
        return exact
    return f"{factor(share)} times {what}" if math.isfinite(share) else "never allowed"


def factor(number: float) -> str:
    """A ratio for people: ``0.25``, ``37``, ``1230``, ``2.5e6``, ``inf``, ``nan``.

    No other number is rounded to 1, because a share of the budget above 1 is wrong.
    """
    if math.isfinite(number) and abs(number) >= 10_000:
        mantissa, exponent = f"{number:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    short = f"{number:.3g}"
    for digits in range(4, 18):
        if (float(short) > 1, float(short) < 1) == (number > 1, number < 1):
            break
        short = f"{number:.{digits}g}"
    return f"{float(short):g}" if "e+" in short else short
