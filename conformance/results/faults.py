"""Sentences about faults: for people only; programs read the fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from conformance.case.variants import RELATIONS, RelationName
from conformance.results.records import (
    BeyondBudget,
    Fault,
    RelationBroken,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)


def faults_text(faults: Iterable[Fault]) -> str:
    """All ``faults`` in one clause without a full stop, which can follow "It ran, but"."""
    return "; ".join(map(fault_text, faults))


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
            exact = "it must be exact"
            how = exact if fault.budget == 0 else f"{fault.share:.3g} of the error budget"
            index = list(fault.index)
            return f"{place} is {fault.got:.9g} at {index}, not {fault.want:.9g} ({how})"
        case RelationBroken():
            relation = RELATIONS.get(cast(RelationName, fault.name))
            what = f"the same call {relation.what}" if relation else fault.name
            why = f"; {relation.law}" if relation else ""
            return f"the variant ({what}) gives other results: {difference_text(fault)}{why}"


def difference_text(fault: RelationBroken) -> str:
    """Where a case and its variant differ most, as a clause."""
    exact = "they must be equal"
    how = exact if fault.budget == 0 else f"{fault.share:.3g} of the bound"
    index = list(fault.index)
    return f"{fault.output} is {fault.got:.9g} and {fault.other:.9g} at {index} ({how})"
