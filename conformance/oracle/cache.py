"""The key and value caches: the tokens that a call attends to, and the rows of its presents.

The *place* of a token is its index in its sequence, from 0. Attention is defined on places. Past
and present are buffers: row 0 holds the token at some first place, and the next rows hold the
tokens at the following places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.oracle.numbers import Bool, Float, Int
from conformance.oracle.quantisation import Format
from conformance.oracle.read_call import OracleCall
from conformance.oracle.rotary import Rotated


@dataclass(frozen=True, eq=False)
class Tokens:
    """Keys or values of consecutive tokens, each [B, K, tokens, D]; zeros where there is no token.

    ``exact`` is the number before it is stored, and ``value`` is the number that the cache's format
    stores for it. Attention uses ``value``. For a past token the two are equal. The other fields
    are for the error model.
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
        past_row = np.where(there, np.take_along_axis(self.past_row, index, axis=1), -1)
        value = _rows(self.value, places)
        return Tokens(
            value,
            value if self.exact is self.value else _rows(self.exact, places),
            _rows(self.magnitude, places),
            past_row,
            self.format,
            self.dtype,
            self.normed,
        )

    def part(self, batch: slice, heads: slice, tokens: slice) -> Tokens:
        """Return the tokens in slices of B, K and tokens. The scale in `format` is not cut."""
        return replace(
            self,
            value=self.value[batch, heads, tokens],
            exact=self.exact[batch, heads, tokens],
            magnitude=self.magnitude[batch, heads, tokens],
            past_row=self.past_row[batch, tokens],
        )


def _rows(numbers: Float, rows: Int) -> Float:
    """Return the ``rows`` [B, n] of numbers [B, K, tokens, D]; zeros where the row is -1."""
    found = np.zeros((*numbers.shape[:2], rows.shape[1], numbers.shape[3]))
    _copy_rows(found, numbers, rows)
    return found


def _copy_rows(to: Float, numbers: Float, rows: Int) -> None:
    """Copy the ``rows`` of numbers, as above, except where the row is -1."""
    for copies, given, wanted in zip(to, numbers, rows, strict=True):
        (places,) = np.nonzero(wanted >= 0)
        copied = wanted[places]
        if not places.size:
            continue
        first, row = places[0], copied[0]
        run = np.arange(places.size)
        if np.array_equal(places, first + run) and np.array_equal(copied, row + run):
            copies[:, first : first + run.size] = given[:, row : row + run.size]  # much faster
        else:
            copies[:, places] = given[:, copied]


@dataclass(frozen=True, eq=False)
class Cache:
    """Keys and values of every sequence after the call, by place: T tokens each.

    Where a sliding-window cache evicted tokens before the call, there are zeros. ``unused_finite``
    [B, K]: whether all numbers in rows that hold no token are finite: rows of the past beyond a
    sequence's own tokens, and the padding of a prompt. With query_seqlens they do not count, since
    the documentation says that such rows are padding, or "unspecified" after the call before.
    """

    key: Tokens
    value: Tokens
    unused_finite: Bool


def build_cache(call: OracleCall, new_key: Rotated) -> Cache:
    """Join the past and the new tokens of each sequence.

    Concatenated, static and sliding-window caches differ only in the rows of the buffers: the new
    tokens of a sequence always follow its own last token. Rows of the past buffer beyond a
    sequence's own tokens are never read, nor is the padding of a prompt.
    """
    places = np.arange(call.total)
    old, first = call.past_lengths[:, None], call.first_past_places[:, None]
    is_past = (places >= first) & (places < old)
    is_new = (places >= old) & (places < call.lengths[:, None])
    past_row, new_row = np.where(is_past, places - first, -1), np.where(is_new, places - old, -1)

    def joined(past: Float, new: Float) -> Float:
        """The numbers of past tokens and of new ones, by place; zeros elsewhere."""
        found = _rows(past, past_row)
        _copy_rows(found, new, new_row)
        return found

    def of_new(tokens: Float) -> Float:
        return tokens.swapaxes(1, 2)

    magnitude = _rows(of_new(new_key.magnitude), new_row)
    unused_finite = np.ones(call.past_key.shape[:2], bool)
    past_unused = np.arange(call.past_sequence_length) >= old - first
    new_unused = np.arange(call.kv_sequence_length) >= call.lengths[:, None] - old
    for numbers, unused in (
        (call.past_key, past_unused),
        (call.past_value, past_unused),
        (of_new(new_key.value), new_unused),
        (of_new(call.value), new_unused),
    ):
        if call.query_lengths is None and unused.any():
            finite = np.isfinite(numbers).all(axis=3) | ~unused[:, None]
            unused_finite &= finite.all(axis=2)

    def stored(exact: Float, magnitude: Float, format: Format, normed: bool) -> Tokens:
        value = format.decode(format.encode(exact))
        return Tokens(value, exact, magnitude, past_row, format, call.dtype, normed)

    key = joined(call.past_key, of_new(new_key.value))
    value = joined(call.past_value, of_new(call.value))
    return Cache(
        stored(key, magnitude, call.key_format, call.k_norm is not None),
        stored(value, np.zeros_like(value), call.value_format, False),
        unused_finite,
    )


def present_places(call: OracleCall) -> Int:
    """Return [B, rows]: the place of the token in each row of the present, or -1."""
    rows = np.arange(call.present_sequence_length)
    places = call.first_present_places[:, None] + rows
    kept: Int = np.where(places < call.lengths[:, None], places, -1)
    return kept
