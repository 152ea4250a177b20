"""The attention sink: one more term of the softmax, by head_sink or smooth_softmax."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operator.call import Call, Values
from conformance.operator.part import (
    AttributeValues,
    Feature,
    FieldChanges,
    InputRule,
    Objection,
    OperatorNode,
    Part,
    Reader,
    Value,
    must_be,
    specified,
    uniform,
)
from conformance.operator.replacement import Replace, Replacement, filled, first
from conformance.operator.sources import ONNXRUNTIME

_WORDS = specified(
    "For h-th head, `head_sink[h]` is used as smooth factor s. When head_sink is not provided,"
    " constant 0 is used as smooth factor s.",
    f"{ONNXRUNTIME}/pull/25269",
)


def _sink(reader: Reader) -> str:
    if reader.tensor("head_sink"):
        return "head_sink"
    return "smooth_softmax" if reader.attributes.get("smooth_softmax") == 1 else "none"


SINK = Feature(
    "sink",
    {
        "none": Value(),
        "head_sink": Value("head_sink", "sink head_sink", _WORDS),
        "smooth_softmax": Value("smooth softmax", "sink smooth_softmax", _WORDS),
    },
    _sink,
    off=("head_sink", "smooth_softmax"),
    shown_by=("head_sink", "smooth_softmax"),
)


def _values(call: Call, keys: int) -> Values:
    weight = keys.bit_length() / 2.0  # then its weight is about that of all keys together
    return uniform(weight, weight + 3.0)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    yield must_be(attributes, "smooth_softmax", -1, 0, 1)


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    none = filled("sink", -np.inf)

    def if_connected(change: Replace, connected: bool) -> Replace:
        return lambda given: change(given) if ("head_sink" in given.inputs) is connected else None

    yield Replacement("smooth_softmax", "", "no sink", if_connected(none, False), "smooth_softmax")
    yield Replacement("head_sink", "none", "no sink", if_connected(none, True), "head_sink")
    changes = if_connected(first("sink", 0), True)
    yield Replacement("head_sink", "first", "its first element for all heads", changes)


def _of_node(node: OperatorNode) -> FieldChanges:
    return {"head_sink": True} if "head_sink" in node.inputs else {}


PART = Part(
    features=(SINK,),
    inputs={"head_sink": InputRule(lambda call: call.head_sink, values=_values)},
    read_as={"sink": ("num_heads",)},
    effects=("head_sink", "smooth_softmax"),
    of_node=_of_node,
    excluded=_excluded,
    replacements=_replacements,
)
