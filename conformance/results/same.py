"""Whether records of several files describe the same run, the same target, or the same case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from conformance.results.records import CaseRecord, Header, TargetRecord

#: The parts of a target's description that may differ: those of the machine, and what its runner
#: can do, since runners learn more.
_MAY_DIFFER: Final = ("device", "platform", "processor", "features")


def headers_differ(
    one: Header, other: Header, compared: Sequence[str] = ("suite", "corpus")
) -> str | None:
    """Half a sentence about suites or corpora that differ: "the suite is …, not …".

    None if they are the same in all that is ``compared``.
    """
    for what in compared:
        mine, theirs = getattr(one, what), getattr(other, what)
        if mine != theirs:
            return f"the {what} is {theirs}, not {mine}"
    return None


def targets_differ(one: TargetRecord, other: TargetRecord) -> str | None:
    """Half a sentence about a difference between two targets with one name; None if they are the
    same."""
    mine, theirs = _compared(one), _compared(other)
    for name in mine | theirs:
        if mine.get(name) != theirs.get(name):
            return f"its {name} is {theirs.get(name)!r}, not {mine.get(name)!r}"
    return None


def _compared(target: TargetRecord) -> dict[str, Any]:
    facts = target.model_dump(mode="json", exclude={"name", "describe"})
    if target.describe is not None:
        described = target.describe.model_dump(mode="json")
        versions = {f"version of {k}": v for k, v in described.pop("versions").items()}
        facts |= described | versions
    left_out = {*_MAY_DIFFER, *(f"version of {name}" for name in _MAY_DIFFER)}
    return {name: value for name, value in facts.items() if name not in left_out}


#: The parts of a contract that explain it, and demand nothing.
EXPLANATIONS: Final = {"source", "why", "disputed"}


def is_same_case(one: CaseRecord, other: CaseRecord) -> bool:
    """Whether two records describe the same case, by its call and the demands of its contract.

    Explanations are not compared, except descriptions of input values for which there is no recipe.
    Nor are trailing inputs and outputs, which the operator may not have had when a file was
    written.
    """
    if _outline(one) != _outline(other):
        return False
    pairs = zip(one.call.inputs, other.call.inputs, strict=False)
    return all(
        mine.recipe == its.recipe if mine.recipe and its.recipe else mine.values == its.values
        for mine, its in pairs
    )


def _outline(case: CaseRecord) -> object:
    call = case.call
    inputs = [(t.name, t.state, t.shape, t.dtype) for t in call.inputs if t.state != "trailing"]
    outputs = [(t.name, t.state, t.dtype) for t in call.outputs if t.state != "trailing"]
    contract = case.contract.model_dump(exclude={*EXPLANATIONS, "providers"})
    providers = case.contract.providers
    own = {name: each.model_dump(exclude=EXPLANATIONS) for name, each in providers.items()}
    return inputs, outputs, repr(call.attributes), call.steps, contract, own, repr(call.graph)
