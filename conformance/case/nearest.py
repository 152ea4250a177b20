"""The cases that are most like a call: those that share the most features with it."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from conformance.case.case import Case
from conformance.operator.call import Call
from conformance.operator.features import features_of
from conformance.operator.tensors import Step, attributes_of

V = TypeVar("V")


@dataclass(frozen=True)
class Near:
    """A case near a call.

    ``features`` has each feature in which they differ, with the value of the call and that of the
    case; None for a value that is not listed. ``sizes`` has the sizes in which they differ, in the
    same form.
    """

    case: Case
    features: dict[str, tuple[str | None, str | None]]
    sizes: dict[str, tuple[int | float | None, int | float | None]]


def nearest(
    call: Call, steps: tuple[Step, ...], cases: Iterable[Case], most: int = 5
) -> list[Near]:
    """The ``most`` cases nearest to a call, the nearest first.

    These have the fewest features that differ; among them, the fewest sizes that differ, and then
    the smallest factors between sizes. Takes 0.05 ms a case.
    """
    features, sizes = features_of(call, steps), sizes_of(call, steps)
    beside = (
        Near(
            case,
            _different(features, case.features),
            _different(sizes, sizes_of(case.call, case.steps)),
        )
        for case in cases
    )
    return heapq.nsmallest(most, beside, key=_distance)


def sizes_of(call: Call, steps: tuple[Step, ...]) -> dict[str, int | float | None]:
    """The sizes of a call, None for those that it does not have.

    In a loop the last step counts, in a graph the main node.
    """
    step = steps[-1].node or steps[-1]
    attributes = attributes_of(call)
    window = attributes.get("local_window_size", -1)
    softcap = attributes.get("softcap") or None
    return {
        "batch_size": call.batch_size,
        "sequence_length": step.sequence_length,
        "total_sequence_length": step.total_sequence_length,
        "max_sequence_length": call.max_sequence_length,
        "num_heads": call.num_heads,
        "kv_num_heads": call.kv_num_heads,
        "head_size": call.head_size,
        "rotary_dim": call.rotary_dim,
        "local_window_size": None if window == -1 or isinstance(window, str) else window,
        "softcap": None if isinstance(softcap, str) else softcap,
    }


def _different(ours: Mapping[str, V], theirs: Mapping[str, V]) -> dict[str, tuple[V, V]]:
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


def _distance(near: Near) -> tuple[int, int, float]:
    factors = (abs(_log(ours) - _log(theirs)) for ours, theirs in near.sizes.values())
    return len(near.features), len(near.sizes), sum(factors)


def _log(size: int | float | None) -> float:
    return math.log1p(abs(size or 0))
