"""The values that a faulty kernel uses in place of a call's own, by which cases are checked.

:mod:`conformance.bundle.effects` measures how far the outputs move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from conformance.operator.features import PARTS
from conformance.operator.replacement import CallChanges, Replacement
from conformance.operator.signature import INPUT_NAMES
from conformance.oracle import Format
from conformance.oracle.read_call import OracleCall
from conformance.oracle.rotary import query_positions

_AXES: Final = {name: axes for part in PARTS for name, axes in part.read_as.items()}
_ORDER: Final = {name: place for place, name in enumerate(INPUT_NAMES)}

#: Every replacement: of attributes, then of inputs, in the operator's order.
REPLACEMENTS: Final[tuple[Replacement, ...]] = tuple(
    sorted(
        (replacement for part in PARTS for replacement in part.replacements()),
        key=lambda replacement: _ORDER.get(replacement.of, -1),
    )
)


def equals(call: OracleCall, changes: Mapping[str, Any]) -> bool:
    """Whether the oracle reads the same call with these ``changes``."""
    if "position_ids" in changes:
        return np.array_equal(query_positions(call), query_positions(replace(call, **changes)))
    return all(_same(getattr(call, name), changed) for name, changed in changes.items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Format) and isinstance(other, Format):
        return _same(one.scale, other.scale)
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def last_heads(call: OracleCall) -> int:
    """The number of query heads of a part of a call: two, whose values can differ in magnitude."""
    return min(call.num_heads // int(call.past_key.shape[1]), 2)


def last_part(call: OracleCall, fields: CallChanges) -> CallChanges:
    """These fields of ``call``, restricted to a part of it.

    The part is the last sequence, with its last key/value head and :func:`last_heads` of the query
    heads. Other fields are the same there.
    """
    last = {"batch_size": 1, "num_heads": last_heads(call), "kv_num_heads": 1}

    def of_part(name: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Format):
            return value if value.scale is None else Format(value.dtype, value.scale[:, -1:])
        if name == "position_ids":
            return query_positions(replace(call, position_ids=value))[-1:]
        starts = (-last[axis] if axis in last else None for axis in _AXES.get(name, ()))
        return value[tuple(slice(start, None) for start in starts)] if name in _AXES else value

    return {name: of_part(name, value) for name, value in fields.items()}
