"""The rotary embedding: its layout, its arithmetic, and what is rotated."""

import numpy as np
from kernel import Kernel
from registry import mutant


def _half_split(call):
    half = call.inputs["cos_cache"].shape[1]
    return slice(0, half), slice(half, 2 * half)


def _interleaved(call):
    half = call.inputs["cos_cache"].shape[1]
    return slice(0, 2 * half, 2), slice(1, 2 * half, 2)


@mutant(Kernel.pairs)
def rotary_always_half_split(kernel, call):
    """rotary_interleaved is ignored."""
    return _half_split(call)


@mutant(Kernel.pairs)
def rotary_always_interleaved(kernel, call):
    """Pairs are always neighbours, whatever rotary_interleaved is."""
    return _interleaved(call)


@mutant(Kernel.pairs)
def rotary_layouts_swapped(kernel, call):
    """The two layouts are swapped."""
    return _half_split(call) if call.get("rotary_interleaved", 0) else _interleaved(call)


@mutant(Kernel.pairs)
def rotary_pairs_across_the_whole_head(kernel, call):
    """Half-split pairs are half a head apart, although only a part of the head is rotated."""
    if call.get("rotary_interleaved", 0):
        return Kernel.pairs(kernel, call)
    half, middle = call.inputs["cos_cache"].shape[1], call.size // 2
    return slice(0, half), slice(middle, middle + half)


@mutant(Kernel.turn)
def rotary_of_the_tail(kernel, call, heads, positions):
    """The last rotary_dim elements of a head are rotated, not the first."""
    width = 2 * call.inputs["cos_cache"].shape[1]
    return np.roll(Kernel.turn(kernel, call, np.roll(heads, width, axis=-1), positions), -width, -1)


@mutant(Kernel.turn)
def rotary_whole_head(kernel, call, heads, positions):
    """A head that must be rotated in part is rotated as a whole, with the tables repeated."""
    turned = Kernel.turn(kernel, call, heads, positions)
    width = 2 * call.inputs["cos_cache"].shape[1]
    for start in range(width, call.size - width + 1, width):
        part = np.roll(heads, -start, axis=-1)
        turned[..., start : start + width] = Kernel.turn(kernel, call, part, positions)[..., :width]
    return turned


@mutant(Kernel.turn)
def rotary_tail_dropped(kernel, call, heads, positions):
    """The part of a head that is not rotated is not copied."""
    turned = Kernel.turn(kernel, call, heads, positions)
    turned[..., 2 * call.inputs["cos_cache"].shape[1] :] = 0
    return turned


@mutant(Kernel.rotate)
def rotary_backwards(kernel, x1, x2, cos, sin):
    """Heads are rotated in the wrong direction."""
    return Kernel.rotate(kernel, x1, x2, cos, -sin)


@mutant(Kernel.rotate)
def rotary_sign_lost(kernel, x1, x2, cos, sin):
    """The rotation adds where it must subtract."""
    return x1 * cos + x2 * sin, x1 * sin + x2 * cos


@mutant(Kernel.rotate)
def rotary_in_place(kernel, x1, x2, cos, sin):
    """The second element of a pair is computed from the first after its rotation."""
    x1 = x1 * cos - x2 * sin
    return x1, x1 * sin + x2 * cos


@mutant(Kernel.rotate)
def rotary_tables_swapped(kernel, x1, x2, cos, sin):
    """cos_cache and sin_cache are swapped."""
    return Kernel.rotate(kernel, x1, x2, sin, cos)


@mutant(Kernel.rotate)
def rotary_one_angle(kernel, x1, x2, cos, sin):
    """Every pair is rotated by the angle of the first pair."""
    return Kernel.rotate(kernel, x1, x2, cos[..., :1], sin[..., :1])


@mutant(Kernel.turn_query)
def rotary_of_keys_alone(kernel, call, query):
    """Queries are not rotated."""
    return query


@mutant(Kernel.turn_key)
def rotary_of_queries_alone(kernel, call, key):
    """Keys are not rotated."""
    return key


@mutant(Kernel.turn_query)
def rotary_twice(kernel, call, query):
    """Queries are rotated twice."""
    once = Kernel.turn_query(kernel, call, query)
    return Kernel.turn_query(kernel, call, once)


@mutant(Kernel.split)
def rotary_of_values_too(kernel, call):
    """Values are rotated like keys."""
    query, key, value = Kernel.split(kernel, call)
    return query, key, Kernel.turn_key(kernel, call, value)


@mutant(Kernel.turn)
def rotary_of_the_first_head(kernel, call, heads, positions):
    """Only the first head of a token is rotated."""
    turned = Kernel.turn(kernel, call, heads, positions)
    turned[:, :, 1:] = heads[:, :, 1:]
    return turned


def _turned_again(kernel, call, side, b):
    """The past keys of a sequence, rotated at their places."""
    rows = Kernel.past_rows(kernel, call, side, b)
    if side != "key" or not call.get("do_rotary", 0) or kernel.quantised(call, side):
        return rows
    places = np.arange(rows.shape[1])[None]
    return Kernel.turn(kernel, call, rows.swapaxes(0, 1)[None], places)[0].swapaxes(0, 1)


@mutant(Kernel.past_rows)
def rotary_of_borrowed_keys_again(kernel, call, side, b):
    """The keys of a borrowed cache are rotated once more."""
    if call.borrowed:
        return _turned_again(kernel, call, side, b)
    return Kernel.past_rows(kernel, call, side, b)


@mutant(Kernel.past_rows)
def rotary_of_past_keys_again(kernel, call, side, b):
    """The keys of the past are rotated again with every call."""
    return _turned_again(kernel, call, side, b)


@mutant(Kernel.tables)
def rotary_angles_of_its_own(kernel, call, positions):
    """The tables are not read; the angles are those of the base 10,000."""
    half = call.inputs["cos_cache"].shape[1]
    angles = np.asarray(positions)[..., None] * 10000.0 ** (-np.arange(half) / max(half, 1))
    return np.cos(angles)[:, :, None], np.sin(angles)[:, :, None]


@mutant(Kernel.tables)
def rotary_rows_of_a_whole_head(kernel, call, positions):
    """A row of the tables is read as if it were half a head long."""
    cos, sin = (call.inputs[name].astype(np.float32) for name in ("cos_cache", "sin_cache"))
    first = positions[..., None] * (call.size // 2) + np.arange(cos.shape[1])
    first = np.clip(first, 0, cos.size - 1)
    return cos.reshape(-1)[first][:, :, None], sin.reshape(-1)[first][:, :, None]
