"""Where in an output the error is: small maps, of all heads and of the head with the worst element.

The characters are described at :class:`conformance.results.records.ErrorMap`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from conformance.case.call import Call, GraphCall
from conformance.case.positions import implied
from conformance.case.tensors import Step
from conformance.results.records import ErrorMap, HeadMap

Array = np.ndarray[Any, Any]

MOST_ROWS: Final = 16
MOST_COLUMNS: Final = 48

#: Shares of the budget above which the next digit starts.
_BOUNDS: Final = tuple(10.0**power for power in range(9))
#: A character for each level. The largest level of a block is the one that is shown.
_CHARACTERS: Final = ".-0123456789#!X"
_UNDEFINED, _HIDDEN, _RIGHT = range(3)
_WRONG_IF_HIDDEN, _NOT_FINITE, _WORST = range(12, 15)


@dataclass(frozen=True)
class Limits:
    """What the lengths and masks of a call say of each of its sequences.

    ``starts`` are the places of the first queries, ``lengths`` the numbers of tokens after the
    call. ``appends``: whether the call has new keys; ``window`` is infinite if there is none.
    """

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    appends: bool = True
    causal: bool = True
    window: float = math.inf

    @classmethod
    def of(cls, call: Call, step: Step) -> Limits | None:
        """The limits in a step of a call; None for a graph and for a sliding-window cache."""
        if isinstance(call, GraphCall) or call.sliding_window_cache:
            return None
        window = math.inf if call.local_window_size in (None, -1) else call.local_window_size
        starts = implied(step.sequence_length, step.total_lengths, step.query_lengths).starts
        return cls(
            starts, step.total_lengths, step.new_tokens > 0, call.causal != 0, window or math.inf
        )

    def edges(self, output: str) -> dict[str, tuple[int, ...]]:
        """Where in each sequence something begins, as in :attr:`ErrorMap.edges`."""
        if output == "output_qk":
            return {"end": self.lengths}
        if output != "output":
            return {"new": self.starts, "end": self.lengths} if self.appends else {}
        found = {"end": tuple(map(int.__sub__, self.lengths, self.starts))}
        if self.window < math.inf:
            found["window"] = tuple(max(int(self.window) - start, 0) for start in self.starts)
        return found

    def hidden(self, queries: int, keys: int) -> Array:
        """[B, 1, S, T]: the keys that the lengths and masks hide from each query."""
        starts, lengths = (np.reshape(of, (-1, 1, 1, 1)) for of in (self.starts, self.lengths))
        place = starts + np.arange(queries)[:, None]
        key = np.arange(keys)
        hidden: Array = (key >= lengths) | (key <= place - self.window)
        return hidden | (self.causal & (key > place))


def error_map(
    output: str,
    share: Array,
    got: Array,
    defined: Array,
    num_heads: int,
    limits: Limits | None = None,
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
    if output == "output":
        if levels.ndim != 3 or not num_heads or levels.shape[2] % num_heads:
            return None
        each = levels.reshape(*levels.shape[:2], num_heads, levels.shape[2] // num_heads)
        each = each.swapaxes(1, 2)
    elif levels.ndim == 4:
        each = levels
    else:
        return None
    if not each.size:
        return None
    batch, head = map(int, np.argwhere(each == _WORST)[0][:2])
    positions = each.max(axis=2 if output == "output_qk" else 3)
    grid = positions.reshape(-1, positions.shape[2])
    return ErrorMap(
        rows=_drawn(grid),
        heads=grid.shape[0],
        positions=grid.shape[1],
        lengths=limits.lengths if limits else (),
        edges=limits.edges(output) if limits else {},
        worst=HeadMap(
            batch=batch,
            head=head,
            rows=_drawn(each[batch, head]),
            tokens=each.shape[2],
            elements=each.shape[3],
        ),
    )


def _drawn(grid: Array) -> tuple[str, ...]:
    """Rows of characters, for blocks of levels, each by its maximum; the last may be shorter."""
    for axis, most in enumerate((MOST_ROWS, MOST_COLUMNS)):
        length = grid.shape[axis]
        starts = range(0, length, math.ceil(length / most))
        grid = np.maximum.reduceat(grid, starts, axis=axis)
    return tuple("".join(_CHARACTERS[level] for level in row) for row in grid)
