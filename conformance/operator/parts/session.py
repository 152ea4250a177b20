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
    },
    lambda reader: "given" if reader.call.earlier_calls else "none",
    off=("earlier_calls",),
)


def _impossible(call: Call) -> Iterator[Objection]:
    by_hand = bool(call.inputs or call.outputs)
    sentence = "inputs and outputs written by hand are of one call"
    yield by_hand and bool(call.earlier_calls), "earlier_calls", sentence


PART = Part(features=(EARLIER_CALLS,), impossible=_impossible)
