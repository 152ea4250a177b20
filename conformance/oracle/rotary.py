"""Rotary position embedding: the positions of the tokens, and the rotation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance.oracle.errors import OracleError
from conformance.oracle.numbers import Float, Int
from conformance.oracle.read_call import OracleCall


@dataclass(frozen=True, eq=False)
class Rotated:
    """Heads after the RMS norm and the rotary embedding, or unchanged if the call has neither.

    ``value`` and ``magnitude`` have the shape [B, tokens, heads, D]. ``magnitude`` is the sum of
    the absolute values of an element's terms, |x1 cos| + |x2 sin|; the rounding error of the
    rotation is proportional to it. It is |x| for an element that was normed and not rotated, and 0
    for a copy of the input; None if all are copies.
    """

    value: Float
    magnitude: Float | None


def query_positions(call: OracleCall) -> Int:
    """Return the positions [B, S] of the queries.

    Without position_ids, the position of a token is its place in its sequence, which follows from
    seqlens_k. With position_ids, a first prompt uses only "the first element": the first element of
    the whole input is the position of the first token of every sequence. In another reading, the
    first element of each row is the position of that row's first token. The other tokens count up
    from it. Any other call uses every element; with query_seqlens, another reading treats sequences
    without past tokens as first prompts.
    """
    steps = np.arange(call.sequence_length)
    if call.position_ids is None:
        return call.query_starts[:, None] + steps
    if call.first_prompt:
        rows = slice(None) if call.reading == "position_ids_of_each_row" else slice(1)
        return np.broadcast_to(call.position_ids[rows, :1] + steps, call.position_ids.shape)
    if call.reading == "prompts_of_query_seqlens":
        is_prompt = (call.past_lengths == 0)[:, None]
        return np.where(is_prompt, call.position_ids[:, :1] + steps, call.position_ids)
    return call.position_ids


def key_positions(call: OracleCall) -> Int:
    """Return the positions [B, L] of the new keys.

    New keys belong to the same tokens as the queries and have their positions. If there are more
    keys than queries, they are all keys of the sequences and start at position 0.
    """
    if call.kv_sequence_length == call.sequence_length:
        return query_positions(call)
    shape = (call.batch_size, call.kv_sequence_length)
    return np.broadcast_to(np.arange(call.kv_sequence_length), shape)


def normed(heads: Float, weight: Float | None, epsilon: float) -> Float:
    """Return heads [B, tokens, heads, D], each divided by its root mean square, times weight [D].

    x / sqrt(mean(x^2) + epsilon) * weight; without a weight, the heads are returned unchanged.
    """
    if weight is None:
        return heads
    with np.errstate(invalid="ignore", divide="ignore"):  # padding may hold anything
        square = np.mean(heads**2, axis=-1, keepdims=True)
        scaled: Float = heads / np.sqrt(square + epsilon) * weight
    return scaled


def apply_rotary(
    heads: Float, positions: Int, tokens: Int, call: OracleCall, normed: bool = False
) -> Rotated:
    """Rotate heads [B, tokens, heads, D] by positions [B, tokens]; without rotary, copy them.

    Only the first rotary_dim = 2 * (width of cos_cache) elements of a head are rotated. Half-split
    pairs element i with element i + rotary_dim / 2, interleaved pairs 2i with 2i + 1; each pair
    (x1, x2) becomes (x1 cos - x2 sin, x1 sin + x2 cos).

    Args:
        heads: the heads before the rotation.
        positions: for each token, its row in cos_cache and sin_cache.
        tokens: [B], the number of leading tokens of each sequence that are not padding; it may
            exceed the number of tokens. Positions of padding may lie outside the caches.
        call: the call, for its caches and its pairing of elements.
        normed: whether the heads come from the RMS norm, so that they are not copies of an input.

    Raises:
        OracleError: a token's position has no row in the caches.
    """
    if call.cos is None or call.sin is None:
        return Rotated(heads, np.abs(heads) if normed else None)
    rows = call.cos.shape[0]
    exists = np.arange(positions.shape[1]) < tokens[:, None]
    inside = (positions >= 0) & (positions < rows)
    outside = exists & ~inside
    if outside.any() and call.reading != "beyond_the_tables_unrotated":
        position = positions[outside][0]
        raise OracleError(f"Position {position} has no row in cos_cache, which has {rows}.")
    row = np.where(exists & inside, positions, 0)
    turned = ~outside[:, :, None]
    cos = np.where(turned, call.cos[row], 1.0)[:, :, None, :]
    sin = np.where(turned, call.sin[row], 0.0)[:, :, None, :]

    half = call.cos.shape[1]
    if call.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    x1, x2 = heads[..., first], heads[..., second]
    value, magnitude = heads.copy(), np.abs(heads) if normed else np.zeros_like(heads)
    with np.errstate(invalid="ignore"):  # padding may hold anything, infinities too
        for part, (a, b) in ((first, (x1 * cos, -x2 * sin)), (second, (x1 * sin, x2 * cos))):
            value[..., part] = a + b
            magnitude[..., part] = np.abs(a) + np.abs(b)
    return Rotated(value, magnitude)
