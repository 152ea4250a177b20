"""position_ids: the positions by which tokens are rotated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from conformance.operator.call import Call
from conformance.operator.part import (
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
from conformance.operator.replacement import CallChanges, ConnectedCall, Replace, Replacement
from conformance.operator.sources import KERNELS

#: The value for position_ids that equal the implied positions; they show no more than none.
IMPLIED: Final = "implied"


def _position_ids(reader: Reader) -> str:
    if not reader.tensor("position_ids"):
        return "none"
    return IMPLIED if reader.call.position_ids == IMPLIED else "given"


POSITION_IDS = Feature(
    "position_ids",
    {
        "none": Value(),
        "given": Value(
            "position_ids",
            "position_ids",
            established(
                "whether each token after the first prompt has its own position",
                f"{KERNELS}/cpu/bert/rotary_embedding.cc",
            ),
        ),
        IMPLIED: Value("implied position_ids", "position_ids implied", paired=False),
    },
    _position_ids,
    off=("position_ids",),
    plainer=({"position_ids": IMPLIED},),
    shown_by=("position_ids",),
)


def _impossible(call: Call) -> Iterator[Objection]:
    wrong = call.rotary == "none" and call.position_ids
    yield wrong, "position_ids", "position_ids need rotary, which is none"


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def positions(change: Callable[[Any], Any]) -> Replace:
        """Other position_ids; those of a first prompt always count on from its first one."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            ids = given.call.position_ids
            if given.call.cos is None or ids is None:
                return None
            changed = {"position_ids": change(ids)}
            prompt = given.call.first_prompt
            return changed if changed["position_ids"] is None or not prompt else None

        return changes

    # In a first prompt all positions move together, which only the rotated keys show.
    for name, words, change in (
        ("implied", "the positions that follow from the lengths", lambda ids: None),
        (
            "first_sequence",
            "the first sequence's for all",
            lambda ids: np.broadcast_to(ids[:1], ids.shape),
        ),
        (
            "counted_on",
            "each sequence's first one, counted on",
            lambda ids: ids[:, :1] + np.arange(ids.shape[1]),
        ),
    ):
        effect = "position_ids" if name == "implied" else None
        outputs = ("output", "present_key")
        yield Replacement("position_ids", name, words, positions(change), effect, outputs=outputs)


def _of_node(node: OperatorNode) -> FieldChanges:
    """Positions as exporters write them."""
    given = "position_ids" in node.inputs and node.attributes.get("do_rotary")
    return {"position_ids": IMPLIED} if given else {}


PART = Part(
    features=(POSITION_IDS,),
    inputs={
        "position_ids": InputRule(
            lambda call: call.position_ids,
            numbers=lambda step: step.positions.numbers(step.sequence_length),
            meaning="positions of the new tokens",
        )
    },
    effects=("position_ids",),
    of_node=_of_node,
    impossible=_impossible,
    replacements=_replacements,
)
