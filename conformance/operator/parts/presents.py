"""The presents: which of present_key and present_value are connected."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operator.call import Call
from conformance.operator.part import (
    Feature,
    FieldChanges,
    Objection,
    OperatorNode,
    Part,
    Reader,
    Value,
    specified,
)
from conformance.operator.sources import OMITTED_PRESENTS


def _presents(reader: Reader) -> str:
    outputs = reader.step.connected_outputs
    return ("none", "one", "both")[("present_key" in outputs) + ("present_value" in outputs)]


PRESENTS = Feature(
    "presents",
    {
        "both": Value(),
        "none": Value(
            "no presents",
            ground=specified(
                "Marked the `present_key` and `present_value` outputs as optional",
                OMITTED_PRESENTS,
            ),
        ),
        "one": Value("one of two presents"),
    },
    _presents,
    off=("presents",),
)


def _impossible(call: Call) -> Iterator[Objection]:
    needs = call.shared_buffer or call.loop
    sentence = "a shared buffer and a loop need both presents"
    yield needs and call.presents != "both", "presents", sentence


def _of_node(node: OperatorNode) -> FieldChanges:
    key, value = (f"present_{each}" in node.outputs for each in ("key", "value"))
    if key and value:
        return {}
    kinds = {(True, False): "key_only", (False, True): "value_only"}
    return {"presents": kinds.get((key, value), "none")}


PART = Part(
    features=(PRESENTS,),
    outputs={
        "present_key": lambda call: call.presents in ("both", "key_only"),
        "present_value": lambda call: call.presents in ("both", "value_only"),
    },
    of_node=_of_node,
    impossible=_impossible,
)
