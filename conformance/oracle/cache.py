"""The key and value caches: the tokens that a call attends to, and the rows of its presents.

The *place* of a token is its index in its sequence, from 0. Attention is defined on places. Past
and present are buffers: row 0 holds the token at some first place, and the next rows hold the
tokens at the following places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.oracle.call import OracleCall
from conformance.oracle.numbers import Bool, Float, Int
from conformance.oracle.quantisation import Format
from conformance.oracle.rotary import Rotated


@dataclass(frozen=True, eq=False)
class Tokens:
    """Keys or values of consecutive tokens, each [B, K, tokens, D]; zeros where there is no token.

    ``exact`` is the number before it is stored, and ``value`` is what the cache's format makes of
    it. Attention uses ``value``. For a past token the two are equal. The other fields are for the
    error model.
    """

    value: Float
    exact: Float
    magnitude: Float
    """Magnitudes of elements rotated or normed by this call (:class:`Rotated`); 0 for copies."""
    past_row: Int
    """[B, tokens]: the row of the past that holds the token, or -1 for a new token."""
    format: Format
    dtype: np.dtype[Any]
    """The type T of the numbers before they are stored."""
    normed: bool
    """Whether the RMS norm was applied to the new tokens."""

    def at(self, places: Int) -> Tokens:
        """Return the tokens at places [B, n]; zeros where the place is -1."""
        there = places >= 0
        index = np.where(there, places, 0)

        def rows(numbers: Float) -> Float:
            found = np.take_along_axis(numbers, index[:, None, :, None], axis=2)
            kept: Float = np.where(there[:, None, :, None], found, 0.0)
            return kept

        past_row = np.where(there, np.take_along_axis(self.past_row, index, axis=1), -1)
        return Tokens(
            rows(self.value),
            rows(self.exact),
            rows(self.magnitude),
            past_row,
            self.format,
            self.dtype,
            self.normed,
        )


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys and values of every sequence after the call, by place: T tokens each.

    ``resident`` [B, T] marks the places that a query can attend to: all places of a sequence except
    those that a sliding-window cache evicted before the call. ``unused_finite`` [B, K]: whether all
    numbers in rows that hold no token are finite: rows of the past beyond a sequence's own tokens,
    and the padding of a prompt.
    """

    key: Tokens
    value: Tokens
    resident: Bool
    unused_finite: Bool


def build_cache(call: OracleCall, new_key: Rotated) -> Cache:
    """Join the past and the new tokens of each sequence.

    Concatenated, static and sliding-window caches differ only in the rows of the buffers: the new
    tokens of a sequence always follow its own last token. Rows of the past buffer beyond a
    sequence's own tokens are never read, nor is the padding of a prompt.
    """
    batch_size, kv_num_heads, _, head_size = call.past_key.shape
    shape = (batch_size, kv_num_heads, call.total, head_size)
    key, key_magnitude, value = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    past_row = np.full((batch_size, call.total), -1)
    resident = np.zeros((batch_size, call.total), bool)
    unused_finite = np.ones((batch_size, kv_num_heads), bool)
    for b in range(batch_size):
        first, old, length = call.first_past_places[b], call.past_lengths[b], call.lengths[b]
        new, rows = length - old, old - first
        key[b, :, first:old] = call.past_key[b, :, :rows]
        value[b, :, first:old] = call.past_value[b, :, :rows]
        past_row[b, first:old] = np.arange(rows)
        key[b, :, old:length] = new_key.value[b, :new].swapaxes(0, 1)
        key_magnitude[b, :, old:length] = new_key.magnitude[b, :new].swapaxes(0, 1)
        value[b, :, old:length] = call.value[b, :new].swapaxes(0, 1)
        resident[b, first:length] = True
        for past in (call.past_key[b, :, rows:], call.past_value[b, :, rows:]):
            unused_finite[b] &= np.isfinite(past).all(axis=(1, 2))
        for padding in (new_key.value[b, new:], call.value[b, new:]):
            unused_finite[b] &= np.isfinite(padding).all(axis=(0, 2))

    def stored(exact: Float, magnitude: Float, format: Format, normed: bool) -> Tokens:
        value = format.decode(format.encode(exact))
        return Tokens(value, exact, magnitude, past_row, format, call.dtype, normed)

    return Cache(
        stored(key, key_magnitude, call.key_format, call.k_norm is not None),
        stored(value, np.zeros(shape), call.value_format, False),
        resident,
        unused_finite,
    )


def present_places(call: OracleCall) -> Int:
    """Return [B, rows]: the place of the token in each row of the present, or -1."""
    rows = np.arange(call.present_sequence_length)
    places = call.first_present_places[:, None] + rows
    kept: Int = np.where(places < call.lengths[:, None], places, -1)
    return kept
