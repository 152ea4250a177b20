"""sliding_window_cache: which tokens remain, in which rows, and at which places."""

import numpy as np
from kernel import Kernel
from registry import declare, mutant


@mutant(Kernel.resident)
def evicts_one_at_a_time(kernel, call, tokens):
    """A full window cache evicts one row at a time, not all beyond the window."""
    return min(tokens, call.past)


@mutant(Kernel.resident)
def evicts_to_the_window(kernel, call, tokens):
    """Tokens outside the window are evicted even if there is room for them."""
    return min(tokens, int(call.get("local_window_size", -1)))


@mutant(Kernel.resident)
def evicts_one_row_too_many(kernel, call, tokens):
    """An eviction removes one token too many."""
    resident = Kernel.resident(kernel, call, tokens)
    return resident if tokens <= call.past else resident - 1


def _sliding(change):
    """A replacement of `Kernel.kept` that changes the rows of a sliding window cache."""

    def kept(kernel, call, side, b, space, tokens):
        rows = Kernel.kept(kernel, call, side, b, space, tokens)
        return change(kernel, call, b, rows) if call.sliding else rows

    return kept


def window_cache_as_a_ring(kernel, call, b, rows):
    """Token t is in row t % C, as in a ring buffer."""
    count = kernel.resident(call, int(call.lengths[b]))
    first = int(call.lengths[b]) - count
    return np.roll(rows, first % call.rows, axis=1)


def window_cache_at_the_buffers_end(kernel, call, b, rows):
    """The tokens of the cache are in the last rows of the buffer."""
    return np.roll(rows, call.rows - kernel.resident(call, int(call.lengths[b])), axis=1)


def window_cache_oldest_last(kernel, call, b, rows):
    """The tokens of the cache are in reverse order, the newest first."""
    count = kernel.resident(call, int(call.lengths[b]))
    return np.concatenate([rows[:, :count][:, ::-1], rows[:, count:]], axis=1)


for change in (
    window_cache_as_a_ring,
    window_cache_at_the_buffers_end,
    window_cache_oldest_last,
):
    declare(change, kept=_sliding(change))


@mutant(Kernel.start)
def window_cache_positions_in_the_buffer(kernel, call, b):
    """Tokens are rotated by their rows in the buffer, not at their places in the sequence."""
    start = Kernel.start(kernel, call, b)
    if call.sliding and not call.first_prompt:
        return min(start, kernel.past_length(call, b))
    return start


@mutant(Kernel.first_place)
def window_cache_keys_placed_from_zero(kernel, call, b):
    """The keys of the cache are placed from 0 on for masks and bias, whatever was evicted."""
    return 0


@mutant(Kernel.add_bias)
def window_cache_bias_by_row(kernel, call, b, logits):
    """The columns of attention_bias are counted from the first row of the cache."""
    if not call.sliding or not call.has("attention_bias"):
        return Kernel.add_bias(kernel, call, b, logits)
    return logits + kernel.bias(call, b).astype(np.float32)[:, :, : logits.shape[2]]


@mutant()
class window_cache_evicts_first(Kernel):
    """Tokens are evicted before the call's own queries have read them."""

    def readable(self, call, b, tokens):
        return tokens

    def visible(self, call, b, tokens):
        seen = Kernel.visible(self, call, b, tokens)
        if call.sliding:
            seen[:, : tokens - min(tokens, call.past)] = False
        return seen


@mutant(Kernel.kept)
def window_cache_evicts_by_step(kernel, call, side, b, space, tokens):
    """The remaining tokens depend on the step: eviction starts from the cache, not from T."""
    if not call.sliding:
        return Kernel.kept(kernel, call, side, b, space, tokens)
    rows = np.zeros((space.shape[0], call.rows, space.shape[2]), space.dtype)
    count = min(tokens, call.past) if tokens <= call.past else int(call.get("local_window_size", 1))
    kernel.put(rows, 0, space[:, tokens - count : tokens])
    return rows
