"""The content of present_key and present_value."""

import numpy as np
from kernel import Kernel
from registry import declare, mutant


def _results(change):
    """A replacement of `Kernel.results` that changes both presents [B, K, rows, width]."""

    def results(kernel, call, query, keys, values):
        made = [(read, change(call, present)) for read, present in (keys, values)]
        return Kernel.results(kernel, call, query, *made)

    return results


@mutant()
class present_key_not_turned(Kernel):
    """present_key holds the new keys without rotary."""

    def turn_key(self, call, key):
        self.memory["key"] = key
        return Kernel.turn_key(self, call, key)

    def results(self, call, query, keys, values):
        present = Kernel.join(self, call, "key", self.memory["key"])[1]
        return Kernel.results(self, call, query, (keys[0], present), values)


@mutant(Kernel.results)
def present_key_turned_twice(kernel, call, query, keys, values):
    """The new keys in present_key are rotated once more."""
    present = keys[1]
    if call.get("do_rotary", 0) and not kernel.quantised(call, "key") and not call.sliding:
        places = np.broadcast_to(np.arange(call.rows), (call.batch, call.rows))
        turned = Kernel.turn(kernel, call, present.swapaxes(1, 2), places).swapaxes(1, 2)
        present = present.copy()
        for b in range(call.batch):
            old = call.lengths[b] - kernel.new_length(call, b)
            present[b, :, old:] = turned[b, :, old:]
    return Kernel.results(kernel, call, query, (keys[0], present), values)


@mutant(Kernel.kept)
def present_without_past(kernel, call, side, b, space, tokens):
    """The present holds the new tokens; the rows of the past are zeros."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens).copy()
    old = kernel.past_length(call, b)
    if not call.sliding and not call.borrowed:
        rows[:, :old] = 0
    return rows


@mutant(Kernel.kept)
def present_of_borrowed_empty(kernel, call, side, b, space, tokens):
    """A borrowed cache is not copied to the present."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens)
    return np.zeros_like(rows) if call.borrowed else rows


@mutant(Kernel.kept)
def present_without_new(kernel, call, side, b, space, tokens):
    """The present holds the past; the rows of the new tokens are zeros."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens).copy()
    old = kernel.past_length(call, b)
    if not call.sliding:
        rows[:, old:tokens] = 0
    return rows


@mutant(Kernel.kept)
def present_begins_with_new(kernel, call, side, b, space, tokens):
    """The present holds the new tokens first, then the past."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens).copy()
    old = kernel.past_length(call, b)
    if not call.sliding:
        rows[:, :tokens] = np.roll(rows[:, :tokens], tokens - old, axis=1)
    return rows


@mutant(Kernel.results)
def presents_swapped(kernel, call, query, keys, values):
    """present_key and present_value are swapped."""
    return Kernel.results(kernel, call, query, (keys[0], values[1]), (values[0], keys[1]))


@mutant(Kernel.results)
def present_value_is_key(kernel, call, query, keys, values):
    """present_value holds the keys."""
    return Kernel.results(kernel, call, query, keys, (values[0], keys[1]))


@mutant(Kernel.kept)
def presents_empty(kernel, call, side, b, space, tokens):
    """The presents are never written."""
    return np.zeros_like(Kernel.kept(kernel, call, side, b, space, tokens))


@mutant(Kernel.kept)
def present_last_row_missing(kernel, call, side, b, space, tokens):
    """The last token of each sequence is not copied to the present."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens).copy()
    last = (kernel.resident(call, int(call.lengths[b])) if call.sliding else tokens) - 1
    rows[:, max(last, 0) : last + 1] = 0
    return rows


@mutant(Kernel.kept)
def present_of_the_first_head_alone(kernel, call, side, b, space, tokens):
    """Only the first head of the present is written."""
    rows = Kernel.kept(kernel, call, side, b, space, tokens).copy()
    rows[1:] = 0
    return rows


def present_one_row_short(call, present):
    """The presents are one row too short."""
    return present[:, :, :-1]


def present_one_row_longer(call, present):
    """The presents are one row too long."""
    return np.concatenate([present, present[:, :, -1:]], axis=2)


def present_grows_the_buffer(call, present):
    """The present of a static cache is the buffer and the new tokens, not the buffer."""
    extra = call.new if call.past and call.total <= call.past else 0
    return np.pad(present, ((0, 0), (0, 0), (0, extra), (0, 0)))


def present_cut_to_the_tokens(call, present):
    """The present of a static cache has as many rows as there are tokens."""
    return present if call.sliding else present[:, :, : call.total]


def present_laid_out_by_tokens(call, present):
    """The presents hold the heads of a token side by side."""
    by_tokens = np.ascontiguousarray(present.swapaxes(1, 2))
    return by_tokens.reshape(present.shape)


def present_of_the_first_sequence(call, present):
    """The presents of all sequences are those of the first sequence."""
    return np.ascontiguousarray(np.broadcast_to(present[:1], present.shape))


def present_rounded_to_half(call, present):
    """float32 presents are rounded to float16."""
    if present.dtype != np.float32:
        return present
    return present.astype(np.float16).astype(np.float32)


for change in (
    present_one_row_short,
    present_one_row_longer,
    present_grows_the_buffer,
    present_cut_to_the_tokens,
    present_laid_out_by_tokens,
    present_of_the_first_sequence,
    present_rounded_to_half,
):
    declare(change, results=_results(change))


@mutant(Kernel.bind)
def shared_buffer_not_written(kernel, buffer, present):
    """If past and present share a buffer, the new tokens are not written to it."""


@mutant(Kernel.bind)
def shared_buffer_cleared(kernel, buffer, present):
    """If past and present share a buffer, it is cleared before the copy."""
    old = buffer.copy()
    buffer[...] = np.where(old == present, np.zeros_like(old), present)
