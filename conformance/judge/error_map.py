"""Where in an output the error is: a small map with heads as rows and positions as columns."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from conformance.results.records import ErrorMap

Array = np.ndarray[Any, Any]

MOST_ROWS: Final = 32
MOST_POSITIONS: Final = 64

#: Shares of the budget above which the next digit starts.
_BOUNDS: Final = tuple(10.0**power for power in range(9))
_UNDEFINED: Final = -1


def error_map(output: str, share: Array, defined: Array, num_heads: int) -> ErrorMap | None:
    """The map of one output; None if its shape has no heads and positions.

    Positions are the queries of ``output``, the rows of a present, and the keys of ``output_qk``,
    each shown by its worst query.

    Args:
        output: the output's name.
        share: the error of each defined element as a share of its budget, in the order of
            ``defined``.
        defined: which elements of the output the operator defines, of the output's shape.
        num_heads: query heads, which follow one another in the last dim of ``output``.
    """
    levels: Array = np.full(defined.shape, _UNDEFINED, np.int8)
    levels[defined] = np.searchsorted(_BOUNDS, share)  # NaN and infinity come after all bounds
    if output == "output":
        if levels.ndim != 3 or not num_heads or levels.shape[2] % num_heads:
            return None
        each = levels.reshape(*levels.shape[:2], num_heads, levels.shape[2] // num_heads)
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
    """At most ``most`` blocks along ``axis``, each by its maximum; the last may be shorter."""
    length = grid.shape[axis]
    starts = range(0, length, math.ceil(length / most))
    blocks: Array = np.maximum.reduceat(grid, starts, axis=axis)
    return blocks
