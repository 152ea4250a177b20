"""The session of a call: which calls it has run before."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operator.call import Call
from conformance.operator.part import Feature, Objection, Part, Value

EARLIER_CALLS = Feature(
    "earlier_calls",
    {
        "none": Value(paired=False),
        "given": Value("after other calls", "after_other_calls", paired=False),
        "refused": Value("after a refused call", "after_refused_call", paired=False),
    },
    lambda reader: _kind(reader.call),
    off=("earlier_calls",),
)


def _kind(call: Call) -> str:
    if any(each.refused for each in call.earlier_calls):
        return "refused"
    return "given" if call.earlier_calls else "none"


def _impossible(call: Call) -> Iterator[Objection]:
    by_hand = bool(call.inputs or call.outputs)
    sentence = "inputs and outputs written by hand are of one call"
    yield by_hand and bool(call.earlier_calls), "earlier_calls", sentence
    for number, each in enumerate(call.earlier_calls):
        field, constant = f"earlier_calls.{number}.inputs", {*each.inputs} & {*call.constants}
        sentence = "only a refused call has inputs written by hand; add refused: true"
        yield bool(each.inputs) and not each.refused, field, sentence
        yield bool(constant), field, "a constant of the model is the same in all calls"


PART = Part(features=(EARLIER_CALLS,), impossible=_impossible)
