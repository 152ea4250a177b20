"""The features of a call, each with one of a few values, in the order of a title's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from conformance.operator.call import Call
from conformance.operator.part import Feature, Part, Reader
from conformance.operator.parts import (
    attention_bias,
    cache,
    key_value,
    lengths,
    mask,
    output_qk,
    position_ids,
    presents,
    qk_norm,
    quantisation,
    query_seqlens,
    rotary,
    scores,
    session,
    sink,
    sizes,
)
from conformance.operator.signature import INPUT_NAMES, OUTPUT_NAMES
from conformance.operator.tensors import Step

#: All parts, in the order in which their decisions and their errors count.
PARTS: Final[tuple[Part, ...]] = (
    mask.PART,
    output_qk.PART,
    cache.PART,
    attention_bias.PART,
    presents.PART,
    lengths.PART,
    key_value.PART,
    sizes.PART,
    rotary.PART,
    position_ids.PART,
    scores.PART,
    sink.PART,
    quantisation.PART,
    qk_norm.PART,
    query_seqlens.PART,
    session.PART,
)

FEATURES: Final[tuple[Feature, ...]] = (
    lengths.PHASE,
    cache.CACHE,
    key_value.KEY_VALUE,
    presents.PRESENTS,
    lengths.BATCH,
    lengths.LENGTHS,
    sizes.HEADS,
    sizes.HEAD_SIZE,
    rotary.ROTARY,
    position_ids.POSITION_IDS,
    qk_norm.QK_NORM,
    mask.CAUSAL,
    mask.WINDOW,
    scores.SCALE,
    scores.SOFTCAP,
    attention_bias.ATTENTION_BIAS,
    sink.SINK,
    output_qk.OUTPUT_QK,
    quantisation.QUANTISED,
    sizes.DTYPE,
    sizes.DIMS,
    query_seqlens.QUERY_SEQLENS,
    session.EARLIER_CALLS,
)
assert {*FEATURES} == {feature for part in PARTS for feature in part.features}

BY_NAME: Final = {feature.name: feature for feature in FEATURES}
#: The rule of each input.
INPUT_RULES: Final = {
    name: next(part.inputs[name] for part in PARTS if name in part.inputs) for name in INPUT_NAMES
}
#: Whether each output is connected.
OUTPUT_RULES: Final = {
    name: next(part.outputs[name] for part in PARTS if name in part.outputs)
    for name in OUTPUT_NAMES
}
#: The names of what a case must show of its call, unless it is insensitive to it.
EFFECTS: Final = tuple(sorted(effect for part in PARTS for effect in part.effects))


def features_of(call: Call, steps: tuple[Step, ...]) -> dict[str, str | None]:
    """The value of each feature of a call; None for a feature without a listed value."""
    reader = Reader(call, lambda: steps)
    return {feature.name: feature.read(reader) for feature in FEATURES}


def words(features: Mapping[str, str | None]) -> str:
    """A call in words: ``Prompt, sliding-window cache, batch, partial rotary``.

    ``features`` are those of `features_of`. A feature that is None or missing is left out, and so
    is one whose value is plain or implied by another feature.
    """
    titles = (
        BY_NAME[name].values[value].title
        for name, value in features.items()
        if value is not None and not BY_NAME[name].implied(value, features)
    )
    text = ", ".join(titles) or "call"
    return text[:1].upper() + text[1:]
