"""head_gain: a factor for the scores of each query head. No release has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.operator.part import Feature, InputRule, Part, Value, established, uniform

HEAD_GAIN = Feature(
    "head_gain",
    {
        "none": Value(),
        "given": Value(
            "head_gain", "head_gain", established("what a gain multiplies", "https://example.com")
        ),
    },
    lambda reader: "given" if reader.tensor("head_gain") else "none",
    off=("head_gain",),
    shown_by=("head_gain",),
)


def _replacements() -> Iterator[Any]:
    from conformance.operator.replacement import Replacement, filled, first

    yield Replacement("head_gain", "ones", "ones", filled("gain", 1.0), "head_gain")
    yield Replacement("head_gain", "first", "the first head's for all", first("gain", 0))


PART = Part(
    features=(HEAD_GAIN,),
    inputs={
        "head_gain": InputRule(
            lambda call: call.head_gain, values=lambda call, keys: uniform(0.25, 2.0)
        )
    },
    read_as={"gain": ("num_heads",)},
    effects=("head_gain",),
    of_node=lambda node: {"head_gain": True} if "head_gain" in node.inputs else {},
    replacements=_replacements,
)
