"""Where in an output the error sits, as a small picture: heads down, positions across."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from conformance.results.records import ErrorMap

Array = np.ndarray[Any, Any]

MOST_ROWS: Final = 32
MOST_POSITIONS: Final = 64

#: Shares of the budget above which the next digit begins.
_BOUNDS: Final = tuple(10.0**power for power in range(9))
_UNDEFINED: Final = -1


def error_map(output: str, share: Array, defined: Array, num_heads: int) -> ErrorMap | None:
    """The map of one output; None if it does not have the shape of one with heads and positions.

    Positions are what tells most of each: the queries of ``output``, the rows of a present, and of
    ``output_qk``, whose queries are those of ``output``, the keys, each by its worst query.

    Args:
        output: the output's name.
        share: the error of each defined element as a share of its budget, in the order of
            ``defined``.
        defined: which elements of the output the operator defines, of the output's shape.
        num_heads: query heads, of which ``output`` holds one after the other.
    """
    levels: Array = np.full(defined.shape, _UNDEFINED, np.int8)
    levels[defined] = np.searchsorted(_BOUNDS, share)  # NaN and infinity come after all bounds
    if output == "output":
        if levels.ndim != 3 or not num_heads or levels.shape[2] % num_heads:
            return None
        batch_size, length, hidden_size = levels.shape
        each = levels.reshape(batch_size, length, num_heads, hidden_size // num_heads)
        each = each.swapaxes(1, 2)
    elif levels.ndim == 4:
        each = levels.swapaxes(2, 3) if output == "output_qk" else levels
    else:
        return None
    heads, positions = each.shape[0] * each.shape[1], each.shape[2]
    if not each.size:
        return None
    grid = each.max(axis=3).reshape(heads, positions)
    grid = _blocks(_blocks(grid, 0, MOST_ROWS), 1, MOST_POSITIONS)
    rows = tuple("".join("." if level < 0 else str(level) for level in row) for row in grid)
    return ErrorMap(rows=rows, heads=heads, positions=positions)


def _blocks(grid: Array, axis: int, most: int) -> Array:
    """At most ``most`` blocks along ``axis``, each its largest; the last one may be shorter."""
    length = grid.shape[axis]
    starts = range(0, length, math.ceil(length / most))
    blocks: Array = np.maximum.reduceat(grid, starts, axis=axis)
    return blocks
