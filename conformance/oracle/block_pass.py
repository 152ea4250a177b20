"""The output of a large call and bounds of its error budget, in one pass over blocks of scores.

The arrays of a block fit into the processor's cache, and it has only keys that its queries may
see. How far errors of the logits move an output is a sum over keys of gain_j |v_j - o|. It takes
more time than everything else, and it matters only for elements that may be the worst. So it is
bounded here by products of matrices; :mod:`conformance.oracle.tolerance` has the exact sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from conformance.oracle.attention import Attention, AttentionInputs, Watched
from conformance.oracle.numbers import Bool, Float, Int
from conformance.oracle.tolerance import (
    attended_error,
    budget_and_gains,
    may_leave_range,
    weighted_distances,
)

#: Scores of a block.
_BLOCK: Final = 1 << 16
#: A block has at least so many queries of a key/value head, or its keys take more time than these.
_ROWS: Final = 64
#: For fewer queries of a head, the sum itself takes no more time than its bounds.
_FEW: Final = 8
#: The share of the sums that roundings in their bounds may reach, with room to spare.
_ROUNDED: Final = 1e-10


@dataclass(frozen=True, eq=False)
class BoundedOutput:
    """An output [B, K, G, S, D], and bounds of its unit budget as flat arrays of [B, S, N * D].

    ``defined`` and ``watched`` are those of :class:`Attention`. ``key_error`` and ``value_error``
    are [B, K, T, D].
    """

    inputs: AttentionInputs
    key_error: Float
    value_error: Float
    output: Float
    defined: Bool
    watched: Mapping[Watched, Bool]
    low: Float
    high: Float

    def exact(self, places: Int) -> Float:
        """The exact unit budgets of elements, by their indices in the flat output."""
        batch_size, kv_num_heads, group, length, head_size = self.output.shape
        shape = batch_size, length, kv_num_heads, group, head_size
        batches, rows, heads, members, columns = np.unravel_index(places, shape)
        exact = np.empty(places.shape)
        near = np.stack([batches, heads, rows // max(1, _ROWS // group)])
        blocks, of_block = np.unique(near, axis=1, return_inverse=True)
        for number, (batch, head, _) in enumerate(blocks.T.tolist()):
            (mine,) = np.nonzero(of_block.reshape(-1) == number)
            queries, row = np.unique(rows[mine], return_inverse=True)
            at, column = (0, 0, members[mine], row), columns[mine]
            b, h = slice(batch, batch + 1), slice(head, head + 1)
            keys = self.inputs.keys_of(batch, queries)
            part, of_keys = self.inputs.attention(b, h, queries, keys), np.s_[b, h, keys]
            errors = self.key_error[of_keys], self.value_error[of_keys]
            rest, gain, sink_gain = budget_and_gains(part, self.inputs.call.dtype, *errors)
            if may_leave_range(gain, sink_gain):
                moved = weighted_distances(part, gain, sink_gain)[(*at, column)]
            else:
                output = part.output[(*at, column)]
                distance = np.abs(part.value[0, 0].T[column] - output[:, None])
                moved = np.einsum("nt,nt->n", gain[at], distance)
                moved += sink_gain[(*at, 0)] * np.abs(output)
            exact[mine] = rest[(*at, column)] + moved
        return exact


def output_in_blocks(inputs: AttentionInputs) -> BoundedOutput:
    """The output of a call that is not in a loop, whose past has no errors."""
    shape, dtype = inputs.query.shape, inputs.call.dtype
    output, low, high = (np.zeros(shape) for _ in range(3))
    defined, masked, nothing = (np.zeros(shape[:-1], bool) for _ in range(3))
    key_error, value_error = (
        attended_error(tokens, inputs.call.prompts, None) for tokens in (inputs.keys, inputs.values)
    )
    for batch, heads, rows, keys in _blocks(inputs):
        part = inputs.attention(batch, heads, rows, keys)
        of_keys, at = np.s_[batch, heads, keys], np.s_[batch, heads, :, rows]
        rest, *gains = budget_and_gains(part, dtype, key_error[of_keys], value_error[of_keys])
        least, most = _bounds(part, *gains)
        output[at], low[at], high[at] = part.output, rest + least, rest + most
        defined[at] = part.defined
        masked[at], nothing[at] = part.watched["masked"], part.watched["nothing"]
    watched: dict[Watched, Bool] = {"masked": masked, "nothing": nothing}
    flat = (each.transpose(0, 3, 1, 2, 4).reshape(-1) for each in (low, high))
    return BoundedOutput(inputs, key_error, value_error, output, defined, watched, *flat)


def _blocks(inputs: AttentionInputs) -> Iterator[tuple[slice, slice, slice, slice]]:
    """Slices of B, K, S and T; every query is in one of them."""
    batch_size, kv_num_heads, group, length, _ = inputs.query.shape
    window = inputs.call.window or inputs.call.total
    of_query = group * min(inputs.call.total, 2 * window)
    heads = max(1, min(kv_num_heads, _BLOCK // (of_query * length)))
    number = max(_ROWS // group, min(window, length, _BLOCK // (of_query * heads)), 1)
    for b in range(batch_size):
        for start in range(0, length, number):
            rows = slice(start, start + number)
            keys = inputs.keys_of(b, rows)
            for head in range(0, kv_num_heads, heads):
                yield slice(b, b + 1), slice(head, head + heads), rows, keys


def _bounds(attention: Attention, gain: Float, sink_gain: Float) -> tuple[Float, Float]:
    """Bounds of the sum over keys of gain_j |v_j - o|, each [B, K, G, S, D].

    By the triangle inequality it differs from the sum of gain_j |v_j| by at most |o| times the sum
    of gain_j, which is close if most values are small. By that of Cauchy and Schwarz it is at most
    the root of the sums of gain_j and of gain_j (v_j - o)^2, which is close if few are.
    """
    if gain.shape[-2] < _FEW or may_leave_range(gain, sink_gain):
        exact = weighted_distances(attention, gain, sink_gain)
        return exact, exact
    value, output = attention.value[:, :, None], attention.output
    size, total = np.abs(output), gain.sum(axis=-1, keepdims=True)
    first, second, sizes = (gain @ each for each in (value, np.square(value), np.abs(value)))
    squares = second - 2 * output * first + np.square(output) * total
    squares += _ROUNDED * (second + np.square(output) * total)
    noise = _ROUNDED * (sizes + size * total)
    least = np.maximum(np.abs(sizes - size * total), np.abs(first - output * total)) - noise
    most = np.minimum(np.sqrt(total * squares.clip(0.0)), sizes + size * total) + noise
    of_sink = sink_gain * size
    return least.clip(0.0) + of_sink, most + of_sink
