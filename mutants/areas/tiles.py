"""Tiles and splits: the parts in which a kernel reads the keys, and how it merges their results.

A fault of a tile is declared once for each size. A call with no more keys than one tile is computed
correctly.
"""

import numpy as np
from kernel import Kernel
from registry import declare

SIZES = (16, 64, 256, 1024)


def tiled(*steps):
    """Declares a mutant for each size: the decorated function with its ``size`` replaces steps."""

    def decorate(fault):
        for size in SIZES:

            def replacement(kernel, call, *arguments, size=size):
                return fault(kernel, call, *arguments, size)

            replacement.__name__ = f"{fault.__name__}_of_{size}"
            replacement.__doc__ = f"Tiles of {size} keys: {fault.__doc__}"
            replacement.__module__ = __name__
            declare(replacement, **{step.__name__: replacement for step in steps})
        return fault

    return decorate


def parts_of(kernel, logits, size):
    """The tiles of logits [N, S, tokens], and the maximum [N, S, 1] of each."""
    parts = np.split(logits, range(size, logits.shape[2], size), axis=2)
    return parts, [kernel.top(part, None) for part in parts]


def joined(kernel, parts, tops):
    """[N, S, tokens]: exp of each part relative to the part's maximum."""
    return np.concatenate(
        [kernel.exp(part - top) for part, top in zip(parts, tops, strict=True)], axis=2
    )


def shared_out(kernel, call, weights, total, top):
    """The weights divided by ``total`` [N, S, 1] plus the sink, which is relative to ``top``."""
    sink = kernel.sink(call)
    if sink is not None:
        total = total + kernel.exp(sink[:, None, None] - top)
    return weights / np.where(total == 0, np.float32(1), total)


# Merging


@tiled(Kernel.softmax)
def merged_without_rescaling(kernel, call, b, logits, size):
    """the tiles' sums are added up, each relative to the maximum of its tile."""
    if logits.shape[2] <= size:
        return Kernel.softmax(kernel, call, b, logits)
    weights = joined(kernel, *parts_of(kernel, logits, size))
    top = kernel.top(logits, kernel.sink(call))
    return shared_out(kernel, call, weights, weights.sum(axis=2, keepdims=True), top)


@tiled(Kernel.softmax)
def sums_without_rescaling(kernel, call, b, logits, size):
    """values are rescaled to the maximum of all tiles, sums of the weights are not."""
    if logits.shape[2] <= size:
        return Kernel.softmax(kernel, call, b, logits)
    total = joined(kernel, *parts_of(kernel, logits, size)).sum(axis=2, keepdims=True)
    top = kernel.top(logits, kernel.sink(call))
    return shared_out(kernel, call, kernel.exp(logits - top), total, top)


@tiled(Kernel.softmax)
def merged_without_sums(kernel, call, b, logits, size):
    """each tile counts as much as any other, whatever the sum of its weights."""
    if logits.shape[2] <= size:
        return Kernel.softmax(kernel, call, b, logits)
    right = Kernel.softmax(kernel, call, b, logits)
    tiles = [
        joined(kernel, [part], [kernel.top(part, None)])
        for part in parts_of(kernel, logits, size)[0]
    ]
    sums = [tile.sum(axis=2, keepdims=True) for tile in tiles]
    some = np.maximum(sum((total > 0) for total in sums), 1)
    alike = [
        tile / np.where(total == 0, 1, total) / some
        for tile, total in zip(tiles, sums, strict=True)
    ]
    return np.concatenate(alike, axis=2) * right.sum(axis=2, keepdims=True)


@tiled(Kernel.softmax)
def maximum_from_zero(kernel, call, b, logits, size):
    """the running maximum begins at zero, not at minus infinity."""
    if logits.shape[2] <= size:
        return Kernel.softmax(kernel, call, b, logits)
    top = np.maximum(kernel.top(logits, kernel.sink(call)), 0)
    weights = kernel.exp(logits - top)
    return shared_out(kernel, call, weights, weights.sum(axis=2, keepdims=True), top)


@tiled(Kernel.softmax)
def masked_tile_is_nan(kernel, call, b, logits, size):
    """a tile that a bias hides makes the row NaN: the difference of two infinities."""
    weights = Kernel.softmax(kernel, call, b, logits)
    if logits.shape[2] > size and call.has("attention_bias"):
        unbiased = np.where(kernel.visible(call, b, logits.shape[2]), np.float32(0), -np.inf)
        for part, open_part in zip(
            parts_of(kernel, logits, size)[0],
            parts_of(kernel, unbiased[None], size)[0],
            strict=True,
        ):
            hidden = np.isneginf(part).all(axis=2) & ~np.isneginf(open_part).all(axis=2)
            weights[hidden] = np.nan
    return weights


@tiled(Kernel.softmax)
def accumulator_reset(kernel, call, b, logits, size):
    """the weighted values restart with the last tile; their sum does not."""
    weights = Kernel.softmax(kernel, call, b, logits)
    last = (logits.shape[2] - 1) // size * size
    reached = ~np.isneginf(logits[:, :, last:]).all(axis=2, keepdims=True)
    weights[:, :, :last] *= ~reached
    return weights


@tiled(Kernel.softmax)
def sink_in_each_tile(kernel, call, b, logits, size):
    """the sink is added to the sum of each tile."""
    sink = kernel.sink(call)
    if sink is None or logits.shape[2] <= size:
        return Kernel.softmax(kernel, call, b, logits)
    top = kernel.top(logits, sink)
    weights = kernel.exp(logits - top)
    more = (-(-logits.shape[2] // size) - 1) * kernel.exp(sink[:, None, None] - top)
    return shared_out(kernel, call, weights, weights.sum(axis=2, keepdims=True) + more, top)


@tiled(Kernel.softmax)
def nan_where_the_last_is_whole(kernel, call, b, logits, size):
    """the result is NaN where the keys fill the last tile."""
    weights = Kernel.softmax(kernel, call, b, logits)
    return weights if logits.shape[2] % size else np.full_like(weights, np.nan)


# Which keys are read


@tiled(Kernel.visible)
def last_tile_not_read(kernel, call, b, tokens, size):
    """the last tile is left out unless it is whole."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if tokens > size:
        seen[:, tokens // size * size :] = False
    return seen


@tiled(Kernel.visible)
def second_tile_not_read(kernel, call, b, tokens, size):
    """the second of three or more tiles is left out."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if tokens > 2 * size:
        seen[:, size : 2 * size] = False
    return seen


@tiled(Kernel.visible)
def half_of_the_last_tile_not_read(kernel, call, b, tokens, size):
    """the second half of the last tile is left out."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if tokens > size:
        seen[:, (tokens - 1) // size * size + size // 2 :] = False
    return seen


@tiled(Kernel.visible)
def first_key_of_the_second_tile_not_read(kernel, call, b, tokens, size):
    """the first key of the second tile is left out."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, size : size + 1] = False
    return seen


@tiled(Kernel.softmax)
def last_key_of_the_first_tile_twice(kernel, call, b, logits, size):
    """the last key of the first tile counts twice."""
    if logits.shape[2] > size:
        logits = logits.copy()
        logits[:, :, size - 1] += np.log(np.float32(2))
    return Kernel.softmax(kernel, call, b, logits)


@tiled(Kernel.weigh)
def values_of_the_tile_before(kernel, call, weights, value, size):
    """the values of the second tile are those of the first, still in fast memory."""
    if value.shape[1] > size:
        value = value.copy()
        second = value[:, size : 2 * size]
        second[...] = value[:, : second.shape[1]]
    return Kernel.weigh(kernel, call, weights, value)


@tiled(Kernel.weigh)
def values_one_key_late_from_the_second_tile_on(kernel, call, weights, value, size):
    """from the second tile on, each value is that of the key before."""
    if value.shape[1] > size:
        value = np.concatenate([value[:, :size], value[:, size - 1 : -1]], axis=1)
    return Kernel.weigh(kernel, call, weights, value)


@tiled(Kernel.visible)
def window_begins_with_a_tile(kernel, call, b, tokens, size):
    """the tokens before a window count if they are in its first tile."""
    seen = Kernel.visible(kernel, call, b, tokens)
    window = kernel.window(call)
    if window != -1 and tokens > size:
        i = kernel.query_places(call, b)[:, None]
        j = kernel.first_place(call, b) + np.arange(tokens)
        begins = np.maximum(i - window + 1, 0) // size * size
        seen |= (begins <= j) & (j <= i - window)
    return seen


@tiled(Kernel.visible)
def as_many_as_the_first_sequence(kernel, call, b, tokens, size):
    """every sequence has as many tiles as the first sequence."""
    seen = Kernel.visible(kernel, call, b, tokens)
    seen[:, -(-int(call.lengths[0]) // size) * size :] = False
    return seen


@tiled(Kernel.add_bias)
def bias_of_the_first_tile(kernel, call, b, logits, size):
    """the bias of the first tile is added to the scores of all tiles."""
    if not call.has("attention_bias") or logits.shape[2] <= size:
        return Kernel.add_bias(kernel, call, b, logits)
    first = kernel.first_place(call, b)
    place = first + np.arange(logits.shape[2])
    return logits + kernel.bias(call, b).astype(np.float32)[:, :, place % size]
