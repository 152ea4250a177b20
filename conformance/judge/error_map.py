"""Where in an output the error is: small maps, of all heads and of the head with the worst element.

The characters are described at :class:`conformance.results.records.ErrorMap`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.operator.call import Call
from conformance.operator.positions import implied
from conformance.operator.tensors import Step
from conformance.results.records import ErrorMap, HeadMap

MOST_ROWS: Final = 16
MOST_COLUMNS: Final = 48

#: Shares of the budget above which the next digit starts.
_BOUNDS: Final = tuple(10.0**power for power in range(9))
#: A character for each level. The largest level of a block is the one that is shown.
_CHARACTERS: Final = ".-0123456789#!X"
_UNDEFINED, _HIDDEN, _RIGHT = range(3)
_WRONG_IF_HIDDEN, _NOT_FINITE, _WORST = range(12, 15)


class SequenceLimits:
    """What the lengths and masks of a step of a call say of each of its sequences.

    The call is a single node, and its cache is no sliding-window cache. ``starts`` are the places
    of the first queries, ``lengths`` the numbers of tokens after the step.
    """

    def __init__(self, call: Call, step: Step) -> None:
        self.starts = implied(step.sequence_length, step.total_lengths, step.query_lengths).starts
        self.lengths = step.total_lengths
        self._appends = step.new_tokens > 0
        self._causal = call.causal != 0
        self._window = call.local_window_size if call.local_window_size != -1 else None

    def edges(self, output: str) -> dict[str, tuple[int, ...]]:
        """Where in each sequence something begins, as in :attr:`ErrorMap.edges`."""
        if output == "output_qk":
            return {"end": self.lengths}
        if output != "output":
            return {"new": self.starts, "end": self.lengths} if self._appends else {}
        found = {"end": tuple(map(int.__sub__, self.lengths, self.starts))}
        if self._window is not None:
            found["window"] = tuple(max(self._window - start, 0) for start in self.starts)
        return found

    def hidden(self, queries: int, keys: int) -> Array:
        """[B, 1, S, T]: the keys that the lengths and masks hide from each query."""
        starts, lengths = (np.reshape(of, (-1, 1, 1, 1)) for of in (self.starts, self.lengths))
        place = starts + np.arange(queries)[:, None]
        key = np.arange(keys)
        hidden: Array = (key >= lengths) | (self._causal & (key > place))
        return hidden if self._window is None else hidden | (key <= place - self._window)


def error_map(
    output: str,
    share: Array,
    got: Array,
    defined: Array,
    num_heads: int,
    limits: SequenceLimits | None = None,
) -> ErrorMap | None:
    """The maps of one output; None if its shape has no heads and positions.

    Positions are the queries of ``output``, the rows of a present, and the keys of ``output_qk``,
    each shown by its worst query.

    Args:
        output: the output's name.
        share: the error of each element as a share of its budget, of the output's shape.
        got: the output.
        defined: which elements of the output the operator defines.
        num_heads: query heads, which follow one another in the last dim of ``output``.
        limits: the lengths and masks, if the edges that follow from them are to be shown.
    """
    levels = (_RIGHT + np.searchsorted(_BOUNDS, share)).astype(np.int8)  # NaN is after all bounds
    if output == "output_qk" and limits is not None and levels.ndim == 4:
        hidden = limits.hidden(*levels.shape[2:])
        levels[hidden & (levels > _RIGHT)] = _WRONG_IF_HIDDEN
        levels[hidden & (levels == _RIGHT)] = _HIDDEN
    levels[(levels > _RIGHT) & ~np.isfinite(got)] = _NOT_FINITE
    levels.flat[np.argmax(share)] = _WORST
    levels[~defined] = _UNDEFINED
    each = levels
    if output == "output" and levels.ndim == 3 and num_heads and levels.shape[2] % num_heads == 0:
        each = levels.reshape(*levels.shape[:2], num_heads, -1).swapaxes(1, 2)
    if each.ndim != 4:
        return None
    batch, head = map(int, np.argwhere(each == _WORST)[0][:2])
    cells = each[batch, head]
    tokens, elements = cells.shape
    worst = HeadMap(batch=batch, head=head, rows=_drawn(cells), tokens=tokens, elements=elements)
    grid = np.concatenate(each.max(axis=2 if output == "output_qk" else 3))
    heads, positions = grid.shape
    lengths, edges = (limits.lengths, limits.edges(output)) if limits else ((), {})
    return ErrorMap(
        rows=_drawn(grid),
        heads=heads,
        positions=positions,
        lengths=lengths,
        edges=edges,
        worst=worst,
    )


def _drawn(grid: Array) -> tuple[str, ...]:
    """Rows of characters, for blocks of levels, each by its maximum; the last may be shorter."""
    for axis, most in enumerate((MOST_ROWS, MOST_COLUMNS)):
        length = grid.shape[axis]
        starts = range(0, length, math.ceil(length / most))
        grid = np.maximum.reduceat(grid, starts, axis=axis)
    return tuple("".join(_CHARACTERS[level] for level in row) for row in grid)
