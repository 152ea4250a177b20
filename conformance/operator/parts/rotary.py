"""Rotary embedding: the tables, and which elements of a head they rotate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from conformance.operator.call import Call
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
    established,
)
from conformance.operator.parts.lengths import most_tokens
from conformance.operator.replacement import (
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    filled,
    first,
)
from conformance.operator.sources import KERNELS, ONNXRUNTIME

#: Base of the rotary angles, and the factor by which positions are stretched. Both occur in models,
#: but neither is the usual one (10,000 and 1), so a kernel that computes the angles itself instead
#: of reading the tables is wrong.
ROTARY_BASE: Final = 500.0
ROTARY_FACTOR: Final = 0.75


def _rotary(reader: Reader) -> str | None:
    table = reader.tensor("cos_cache")
    if reader.attributes.get("do_rotary", 0) != 1:
        return "none"
    if table is None or table.shape is None or len(table.shape) != 2:
        return None
    layout = "interleaved" if reader.attributes.get("rotary_interleaved") else "half_split"
    return layout if 2 * table.shape[1] >= reader.call.head_size else f"partial_{layout}"


_PAIRS = established(
    "which elements of a head rotary embedding pairs", f"{KERNELS}/cpu/bert/rotary_embedding.cc"
)
_NARROW = established(
    "that a narrow cos_cache leaves the rest of a head unrotated", f"{ONNXRUNTIME}/pull/19874"
)
ROTARY = Feature(
    "rotary",
    {
        "none": Value(),
        "half_split": Value("rotary", "rotary half_split", _PAIRS),
        "interleaved": Value("interleaved rotary", "rotary interleaved", _PAIRS),
        "partial_half_split": Value("partial rotary", "rotary partial_half_split", _NARROW),
        "partial_interleaved": Value(
            "partial interleaved rotary", "rotary partial_interleaved", _NARROW
        ),
    },
    _rotary,
    off=("rotary", "rotary_dim", "rotary_cache_length", "position_ids"),
    plainer=({"rotary_dim": None}, {"rotary": "half_split"}),
    shown_by=("rotary",),
)


def _impossible(call: Call) -> Iterator[Objection]:
    given = call.rotary_dim or call.rotary_cache_length
    field = "rotary_dim" if call.rotary_dim else "rotary_cache_length"
    yield call.rotary == "none" and given, field, f"{field} is given, but rotary is none"


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    rotated, size = call.rotary_dim or 0, call.head_size
    is_odd = call.rotary != "none" and (rotated or size) % 2
    yield is_odd, "rotary_dim", "rotary_dim must be even, since pairs of elements rotate"
    yield rotated > size, "rotary_dim", f"rotary_dim {rotated} is more than head_size {size}"
    if not call.inputs:  # which may have other lengths
        keys = most_tokens(call).ever
        table = call.rotary_cache_length or keys
        yield table < keys, "rotary_cache_length", f"{keys} tokens need as many rows"


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def unturned(given: ConnectedCall) -> CallChanges | None:
        return None if given.call.cos is None else {"cos": None, "sin": None}

    def other_layout(given: ConnectedCall) -> CallChanges | None:
        return None if given.call.cos is None else {"interleaved": not given.call.interleaved}

    def row_0(field: str, of_angle_0: float) -> Replace:
        """Row 0 of a table, unless it is that of the angle 0, which is another replacement."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            table = getattr(given.call, field)
            if table is None or np.all(table[0] == of_angle_0):
                return None
            return first(field, 0)(given)

        return changes

    yield Replacement("rotary", "", "no rotation", unturned, "rotary")
    words = "the other layout"
    yield Replacement("rotary_interleaved", "", words, other_layout, "rotary_interleaved")
    turned = ("output", "present_key")
    for field, word, number in (("cos", "ones", 1.0), ("sin", "zeros", 0.0)):
        name, changes = f"{field}_cache", row_0(field, number)
        yield Replacement(name, word, word, filled(field, number), outputs=turned)
        yield Replacement(name, "row_0", "row 0 at every position", changes, outputs=turned)


def _table(of_angles: str) -> InputRule:
    return InputRule(
        lambda call: call.rotary != "none",
        meaning=f"{of_angles} of {ROTARY_FACTOR:g} position x {ROTARY_BASE:g}^(-2i/rotary_dim)",
        same_in_a_loop=True,
    )


def _of_node(node: OperatorNode) -> FieldChanges:
    if not node.attributes.get("do_rotary"):
        return {}
    interleaved = node.attributes.get("rotary_interleaved")
    return {"rotary": "interleaved" if interleaved else "half_split"}


PART = Part(
    features=(ROTARY,),
    inputs={"cos_cache": _table("cosines"), "sin_cache": _table("sines")},
    effects=("rotary", "rotary_interleaved"),
    of_node=_of_node,
    impossible=_impossible,
    excluded=_excluded,
    replacements=_replacements,
)
