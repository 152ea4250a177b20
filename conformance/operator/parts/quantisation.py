"""A quantised cache: codes of int8, int4 or float8, with scales for tensors or channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from conformance.operator.call import Call, Values
from conformance.operator.part import (
    AttributeValues,
    Feature,
    InputRule,
    Objection,
    Part,
    Reader,
    Value,
    established,
    uniform,
)
from conformance.operator.replacement import (
    EDGE_THRESHOLD,
    SCALE_THRESHOLD,
    THRESHOLD,
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
)
from conformance.operator.signature import Axis
from conformance.operator.sources import ONNXRUNTIME
from conformance.operator.tensors import BIT_WIDTHS

_WORDS = established(
    "The operator's documentation has no arithmetic for codes; CUDA's page has.",
    f"{ONNXRUNTIME}/blob/main/docs/contrib_ops/cuda/gqa.md",
)
#: The number that a code stands for, by the cache's dtype.
NUMBERS: Final = {"int8": "int8", "uint8": "int4", "float8e4m3fn": "float8"}


def is_quantised(call: Call) -> bool:
    """Whether past and present hold codes."""
    return call.cache_dtype in NUMBERS


def packs_two(call: Call) -> bool:
    """Whether past and present hold two values in each byte."""
    return call.cache_dtype == "uint8" and call.kv_cache_bit_width == 4


def stored_head_size(call: Call) -> Axis:
    """The last dim of past and present."""
    return (call.head_size + 1) // 2 if packs_two(call) else "head_size"


def _quantised(reader: Reader) -> str | None:
    kinds = [reader.attributes.get(f"{side}_quant_type", "NONE") for side in ("k", "v")]
    if kinds == ["NONE", "NONE"]:
        return "none"
    number = NUMBERS.get(reader.call.cache_dtype or "")
    if kinds[0] != kinds[1] or number is None:
        return None
    return f"{number}_{'channel' if kinds[0] == 'PER_CHANNEL' else 'tensor'}"


QUANTISED = Feature(
    "quantised",
    {
        "none": Value(),
        **{
            f"{number}_{scales}": Value(
                f"{per}{number} cache", f"quantised_cache {number}_{scales}", _WORDS
            )
            for number in NUMBERS.values()
            for scales, per in (("tensor", ""), ("channel", "per-channel "))
        },
    },
    _quantised,
    off=("cache_dtype", "k_quant_type", "v_quant_type", "kv_cache_bit_width"),
    plainer=({"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"},),
)


def _scale(side: str) -> InputRule:
    """The rule of k_scale or v_scale."""

    def kind(call: Call) -> str:
        return getattr(call, f"{side}_quant_type") or "NONE"

    def axes(call: Call) -> tuple[Axis, ...]:
        return (1, "kv_num_heads", 1, "head_size") if kind(call) == "PER_CHANNEL" else (1,)

    def values(call: Call, keys: int) -> Values:
        return uniform(0.1, 0.2) if packs_two(call) else uniform(0.01, 0.02)

    return InputRule(lambda call: kind(call) != "NONE", axes, values, same_in_a_loop=True)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    kinds = [attributes.get(f"{side}_quant_type", "NONE") != "NONE" for side in "kv"]
    said = attributes.get("kv_cache_bit_width")
    codes, width = call.cache_dtype, BIT_WIDTHS.get(call.cache_dtype or "")
    if width is None:
        sentence = "a quantised cache needs cache_dtype int8, uint8 or float8e4m3fn"
        yield any(kinds), "k_quant_type", sentence
        yield said, "kv_cache_bit_width", "only a quantised cache has a bit width"
    else:
        yield not all(kinds), "cache_dtype", f"{codes} needs k_quant_type and v_quant_type"
        sentence = f"{codes} needs kv_cache_bit_width: {width}"
        yield all(kinds) and said != width, "kv_cache_bit_width", sentence


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    #: Scales that a kernel can use in place of the right ones.
    scales: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
        ("doubled", "twice its value", lambda scale: 2.0 * scale),
        ("shifted", "that of the channel before", lambda scale: np.roll(scale, 1, axis=-1)),
        ("first", "the first one for all channels", lambda scale: scale[:, :1, :, :1]),
        ("first_head", "the first head's for all", lambda scale: scale[:, :1]),
    )
    #: The scales among them that a case must show, and the thresholds.
    required: Mapping[str, tuple[str, float]] = {
        "doubled_new": ("quantisation", THRESHOLD),
        "shifted_new": ("quantisation", THRESHOLD),
        "doubled_past": ("dequantisation", SCALE_THRESHOLD),
        "shifted_past": ("channels", EDGE_THRESHOLD),
    }

    def other_scale(
        field: str, when: str, change: Callable[[Any], Any], *, by_channel: bool
    ) -> Replace:
        """Another scale, for storing new tokens and for reading the past.

        ``by_channel``: only if the scales of the channels differ.
        """

        def changes(given: ConnectedCall) -> CallChanges | None:
            call, format = given.call, getattr(given.call, f"{field}_format")
            if format.scale is None or (by_channel and not np.ptp(format.scale)):
                return None
            stores = f"present_{field}" in given.outputs and getattr(call, field).any()
            if not (stores if when == "new" else call.past_lengths.any()):
                return None
            scale = np.broadcast_to(change(format.scale), format.scale.shape)
            return {
                f"{field}_format": replace(format, scale=scale),
                f"past_{field}": getattr(call, f"past_{field}") * (scale / format.scale),
            }

        return changes

    for field in ("key", "value"):
        for when, words, output in (
            ("new", "when new tokens are stored", f"present_{field}"),
            ("past", "when the past is read", "output"),
        ):
            for short, used, change in scales:
                name = f"{short}_{when}"
                effect, threshold = required.get(name, (None, THRESHOLD))
                changes = other_scale(field, when, change, by_channel=short != "doubled")
                yield Replacement(
                    f"{field[0]}_scale",
                    name,
                    f"{used} {words}",
                    changes,
                    effect,
                    threshold,
                    (output,),
                )


PART = Part(
    features=(QUANTISED,),
    inputs={"k_scale": _scale("k"), "v_scale": _scale("v")},
    effects=("quantisation", "dequantisation", "channels"),
    excluded=_excluded,
    replacements=_replacements,
)
