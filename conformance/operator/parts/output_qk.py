"""output_qk: the scores or probabilities as an output."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.operator.call import Call
from conformance.operator.part import (
    AttributeValues,
    Decision,
    Feature,
    Objection,
    Part,
    Reader,
    Value,
    must_be,
    quoted,
    specified,
)
from conformance.operator.sources import CUDA, JSEP, SCORES, WEBGPU

_WORDS = specified(
    "controls if attention scores should be saved before or after softmax is applied", SCORES
)


def _output_qk(reader: Reader) -> str | None:
    if "output_qk" not in reader.step.connected_outputs:
        return "none"
    mode = reader.attributes.get("qk_output", 0)
    return {1: "before_softmax", 2: "after_softmax"}.get(mode if isinstance(mode, int) else 0)


OUTPUT_QK = Feature(
    "output_qk",
    {
        "none": Value(),
        "before_softmax": Value("scores put out", "output_qk before_softmax", _WORDS),
        "after_softmax": Value("probabilities put out", "output_qk after_softmax", _WORDS),
    },
    _output_qk,
    off=("qk_output",),
)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    yield must_be(attributes, "qk_output", 0, 1, 2)


PART = Part(
    features=(OUTPUT_QK,),
    outputs={"output_qk": lambda call: call.qk_output},
    excluded=_excluded,
    decisions=(
        Decision(
            (OUTPUT_QK.given,),
            (CUDA, WEBGPU, JSEP),
            "either",
            quoted("Added asserts on other EPs if this feature is used") + ".",
            ("output_qk", "qk_output"),
            SCORES,
        ),
    ),
)
