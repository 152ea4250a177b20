"""The rows of the cache: where new tokens are written, and which rows are read."""

import numpy as np
from kernel import Kernel
from registry import mutant


@mutant(Kernel.place)
def append_at_the_buffers_end(kernel, call, b):
    """New tokens are written to the last rows of the buffer, not to the rows after the past."""
    place = Kernel.place(kernel, call, b)
    return place if call.first_prompt or call.sliding else call.rows - call.new


@mutant(Kernel.place)
def append_one_row_late(kernel, call, b):
    """New tokens are written one row after their place."""
    return Kernel.place(kernel, call, b) + 1


@mutant(Kernel.place)
def append_one_row_early(kernel, call, b):
    """New tokens are written one row before their place, over the last token of the past."""
    return Kernel.place(kernel, call, b) - 1


@mutant(Kernel.place)
def append_behind_the_longest(kernel, call, b):
    """New tokens of every sequence are written to the rows after the past of the longest."""
    if call.first_prompt or call.sliding:
        return Kernel.place(kernel, call, b)
    return call.total - call.new


@mutant(Kernel.place)
def append_behind_the_first_sequence(kernel, call, b):
    """New tokens of every sequence are written to the rows after the past of the first."""
    return Kernel.place(kernel, call, 0)


@mutant(Kernel.place)
def append_at_the_beginning(kernel, call, b):
    """New tokens overwrite the first rows of the past."""
    return 0


@mutant(Kernel.put)
def only_one_token_appended(kernel, space, at, rows):
    """Of several tokens on a past, only the first is written to the cache."""
    Kernel.put(kernel, space, at, rows[:, :1] if at else rows)


@mutant(Kernel.put)
def new_tokens_in_reverse(kernel, space, at, rows):
    """Several tokens on a past are written to the cache in reverse order."""
    Kernel.put(kernel, space, at, rows[:, ::-1] if at else rows)


@mutant(Kernel.past_rows)
def past_ignored(kernel, call, side, b):
    """The past is not read; its rows are zeros."""
    return np.zeros_like(Kernel.past_rows(kernel, call, side, b))


@mutant(Kernel.past_rows)
def past_one_row_off(kernel, call, side, b):
    """The past is read from its second row on."""
    return np.roll(Kernel.past_rows(kernel, call, side, b), -1, axis=1)


@mutant(Kernel.past_rows)
def past_key_and_value_swapped(kernel, call, side, b):
    """past_key and past_value are swapped."""
    other = "value" if side == "key" else "key"
    return Kernel.past_rows(kernel, call, other, b).astype(kernel.cache_dtype(call, side))


@mutant(Kernel.past_rows)
def past_value_is_key(kernel, call, side, b):
    """past_key is also read as past_value."""
    return Kernel.past_rows(kernel, call, "key", b)


@mutant(Kernel.readable)
def newest_token_not_read(kernel, call, b, tokens):
    """Attention reads the cache as it was before the last token."""
    return max(tokens - 1, 1)


@mutant(Kernel.weigh)
def last_value_of_the_cache_twice(kernel, call, weights, value):
    """The value of the last token is that of the token before it."""
    if value.shape[1] > 1:
        value = np.concatenate([value[:, :-1], value[:, -2:-1]], axis=1)
    return Kernel.weigh(kernel, call, weights, value)


@mutant()
class stale_tail_read(Kernel):
    """Attention also reads the content of the buffer after a sequence's last token."""

    def readable(self, call, b, tokens):
        whole = call.past and not call.sliding and not call.has("attention_bias")
        return max(tokens, call.rows) if whole else tokens

    def visible(self, call, b, tokens):
        seen = Kernel.visible(self, call, b, tokens)
        if not call.sliding:
            seen[:, int(call.lengths[b]) :] = True
        return seen


@mutant(Kernel.readable)
def cache_read_in_whole_tiles(kernel, call, b, tokens):
    """In a cache of more than 16 tokens, only whole tiles of 16 are read."""
    return tokens // 16 * 16 if tokens > 16 else tokens
