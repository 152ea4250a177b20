"""Dispatch: faults in the choice of a kernel's branch for a call, or in the number of its tiles."""

import numpy as np
from kernel import Kernel
from registry import mutant

CODES = "Few features meet in this branch, and one theme asks for all of them."


def _free_rows(call):
    """Whether the cache has a row that no sequence uses."""
    return call.has("past_key") and call.rows > int(call.lengths.max())


def _half_split(call):
    half = call.inputs["cos_cache"].shape[1]
    return slice(0, half), slice(half, 2 * half)


@mutant(Kernel.pairs)
def packed_in_a_buffer_half_split(kernel, call):
    """The branch for packed QKV and a cache with free rows ignores rotary_interleaved."""
    if call.packed and _free_rows(call):
        return _half_split(call)
    return Kernel.pairs(kernel, call)


@mutant(Kernel.pairs, only=CODES)
def packed_with_codes_half_split(kernel, call):
    """The branch for packed QKV and codes with free rows ignores rotary_interleaved."""
    if call.packed and _free_rows(call) and kernel.quantised(call, "key"):
        return _half_split(call)
    return Kernel.pairs(kernel, call)


@mutant(Kernel.visible)
def half_of_the_keys_of_prompts(kernel, call, b, tokens):
    """With 32 queries or more, keys 16 to 31 of every 32 are left out: half of a subgroup reads."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if call.queries >= 32:
        seen[:, np.arange(tokens) % 32 >= 16] = False
    return seen


@mutant(Kernel.visible)
def borrowed_tiles_of_the_first_sequence(kernel, call, b, tokens):
    """With a borrowed cache, there are as many tiles of 64 keys as the first sequence has."""
    seen = Kernel.visible(kernel, call, b, tokens)
    if call.borrowed:
        seen[:, -(-int(call.lengths[0]) // 64) * 64 :] = False
    return seen


@mutant(Kernel.finish)
def channels_of_another_tile_without_flash(kernel, call, output):
    """With a window or smooth softmax, rows 12 to 23 repeat the first channels from channel 48."""
    # Both exclude flash attention.
    without_flash = call.get("smooth_softmax", 0) == 1 or 0 <= kernel.window(call) < call.total
    if without_flash:
        output = output.copy()
        output[:, 12:24, :, 48:] = output[:, 12:24, :, : max(call.size - 48, 0)]
    return Kernel.finish(kernel, call, output)
