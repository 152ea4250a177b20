"""Whether records of several files are of one run, of one target, or of one case."""

from __future__ import annotations

from typing import Any, Final

from conformance.results.records import CaseRecord, Header, TargetRecord

#: Of a target's description, what may differ between two machines on which it is the same target.
OF_THE_MACHINE: Final = ("device", "platform")


def headers_differ(one: Header, other: Header) -> str | None:
    """Half a sentence about suite or corpus, where they differ: "the suite is …, not …"."""
    for what, mine, theirs in (
        ("suite", one.suite, other.suite),
        ("corpus", one.corpus, other.corpus),
    ):
        if mine != theirs:
            return f"the {what} is {theirs}, not {mine}"
    return None


def targets_differ(one: TargetRecord, other: TargetRecord) -> str | None:
    """Half a sentence about two targets of one name that are not the same; None if they are."""
    mine, theirs = _compared(one), _compared(other)
    for name in mine | theirs:
        if mine.get(name) != theirs.get(name):
            return f"its {name} is {theirs.get(name)!r}, not {mine.get(name)!r}"
    return None


def _compared(target: TargetRecord) -> dict[str, Any]:
    found = target.model_dump(mode="json", exclude={"name", "describe"})
    if target.describe is not None:
        described = target.describe.model_dump(mode="json")
        versions = {f"version of {k}": v for k, v in described.pop("versions").items()}
        found |= described | versions
    left_out = {*OF_THE_MACHINE, *(f"version of {name}" for name in OF_THE_MACHINE)}
    return {name: value for name, value in found.items() if name not in left_out}


#: The parts of a contract that are words about it.
_WORDS: Final = {"source", "why", "disputed"}


def is_same_case(one: CaseRecord, other: CaseRecord) -> bool:
    """Whether results files of any age describe one case: its call, and what its contract demands.

    Words are left out, but where only they say which values an input has; and so are trailing
    inputs and outputs, since the operator of an older file has fewer of them.
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
    contract = case.contract.model_dump(exclude={*_WORDS, "providers"})
    own = {name: each.model_dump(exclude=_WORDS) for name, each in case.contract.providers.items()}
    return inputs, outputs, repr(call.attributes), call.steps, contract, own, repr(call.graph)
