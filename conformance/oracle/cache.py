"""The key and value caches: the tokens that a call attends to, and the rows of its presents.

The *place* of a token is its index in its sequence, from 0. Attention is defined on places. Past
and present are buffers: row 0 holds the token at some first place, and the next rows hold the
tokens at the following places.
"""

from __future__ import annotations

from collections.abc import Sequence
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

    ``exact`` is the number before it is stored, ``codes`` is what the cache's format makes of it,
    and ``value`` is the number that this represents. Attention uses ``value``. For a past token
    ``value`` is equal to ``exact``. The other fields are for the error model.
    """

    value: Float
    exact: Float
    codes: Float
    magnitude: Float | None
    """Magnitudes of elements rotated or normed by this call (:class:`Rotated`); 0 for copies. None
    if all are copies."""
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
        runs, shape = _runs(places), (*self.value.shape[:2], places.shape[1], self.value.shape[3])
        value = _gathered(shape, (self.value, runs))
        return Tokens(
            value,
            value if self.exact is self.value else _gathered(shape, (self.exact, runs)),
            value if self.codes is self.value else _gathered(shape, (self.codes, runs)),
            None if self.magnitude is None else _gathered(shape, (self.magnitude, runs)),
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
            codes=self.codes[batch, heads, tokens],
            magnitude=None if self.magnitude is None else self.magnitude[batch, heads, tokens],
            past_row=self.past_row[batch, tokens],
        )


#: For each sequence, to where in its tokens rows are copied, and which: consecutive ones.
_Runs = Sequence[tuple[slice, slice]]


def _runs(rows: Int) -> _Runs:
    """The copies that give ``rows`` [B, n]: consecutive ones, and -1, which stands for none."""
    found = []
    for wanted in rows:
        (places,) = np.nonzero(wanted >= 0)
        first, row = (int(places[0]), int(wanted[places[0]])) if places.size else (0, 0)
        found.append((slice(first, first + places.size), slice(row, row + places.size)))
    return found


def _gathered(shape: tuple[int, ...], *parts: tuple[Float, _Runs]) -> Float:
    """Return an array [B, K, tokens, D] with copies of numbers [B, K, rows, D]; zeros elsewhere."""
    copied = sum(to.stop - to.start for _, runs in parts for to, _ in runs)
    found = (np.empty if copied == shape[0] * shape[2] else np.zeros)(shape)
    for numbers, runs in parts:
        for copies, given, (to, rows) in zip(found, numbers, runs, strict=True):
            copies[:, to] = given[:, rows]
    return found


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
    of_past, of_call = _runs(past_row), _runs(new_row)
    batch_size, kv_num_heads, _, head_size = call.past_key.shape
    shape = batch_size, kv_num_heads, call.total, head_size

    def of_new(tokens: Float) -> Float:
        return tokens.swapaxes(1, 2)

    magnitude = new_key.magnitude
    if magnitude is not None:
        magnitude = _gathered(shape, (of_new(magnitude), of_call))
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

    def stored(
        past: Float, new: Float, magnitude: Float | None, format: Format, normed: bool
    ) -> Tokens:
        exact = _gathered(shape, (past, of_past), (of_new(new), of_call))
        codes = format.encode(exact)
        return Tokens(
            format.decode(codes), exact, codes, magnitude, past_row, format, call.dtype, normed
        )

    normed = call.k_norm is not None
    return Cache(
        stored(call.past_key, new_key.value, magnitude, call.key_format, normed),
        stored(call.past_value, call.value, None, call.value_format, False),
        unused_finite,
    )


def present_places(call: OracleCall) -> Int:
    """Return [B, rows]: the place of the token in each row of the present, or -1."""
    rows = np.arange(call.present_sequence_length)
    places = call.first_present_places[:, None] + rows
    kept: Int = np.where(places < call.lengths[:, None], places, -1)
    return kept
