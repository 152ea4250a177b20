"""The lengths of each call of a case: its new tokens, its past, and what is taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal

from conformance.base.dtypes import INTEGER_RANGE
from conformance.operator.call import Call
from conformance.operator.parts.key_value import new_tokens
from conformance.operator.positions import are_drawn, drawn, implied
from conformance.operator.tensors import ShapeError, Step


def lengths_of(call: Call) -> Iterator[tuple[Step, int]]:
    """Each step without its tensors, and the number of rows of a past without a buffer.

    Raises :class:`ShapeError`.
    """
    positions_of = partial(drawn, call) if are_drawn(call) else implied
    past, total = call.past_sequence_length, 0
    totals: tuple[int, ...] = ()
    for index, sequence_length in enumerate(call.loop or (call.sequence_length,)):
        new = new_tokens(call, sequence_length)
        queries = _written_numbers(call, "query_seqlens", index)
        written = _written_numbers(call, "total_sequence_lengths", index)
        added = queries or (new,) * call.batch_size
        before = totals or (past,) * call.batch_size
        totals = written or tuple(map(int.__add__, before, added))
        rows = past = max(past, total)
        if index and written:
            past = _kept(index + 1, before, added, totals)
        keep = past if past < rows and call.cache_kind == "concatenated" else None
        total = _total_of(call, sequence_length, totals, queries)
        if max(total, *totals) > INTEGER_RANGE["int32"][1]:
            raise ShapeError("past_sequence_length", f"{total} tokens exceed the range of int32")
        positions = positions_of(sequence_length, totals, queries)
        step = Step(
            index, sequence_length, new, totals, total, positions, (), (), index > 0, queries, keep
        )
        yield step, past


def _kept(call: int, before: Sequence[int], added: Sequence[int], totals: Sequence[int]) -> int:
    """The most tokens of a sequence that a later call keeps. Raises :class:`ShapeError`."""
    for sequence, (old, new, total) in enumerate(zip(before, added, totals, strict=True)):
        if total > old + new:
            sentence = (
                f"sequence {sequence} has {old} tokens before call {call} and gets {new}, so it"
                f" cannot have {total} after it"
            )
            raise ShapeError("total_sequence_lengths", sentence)
    return max(0, *map(int.__sub__, totals, added))


def _written_numbers(
    call: Call, field: Literal["query_seqlens", "total_sequence_lengths"], index: int
) -> tuple[int, ...] | None:
    """What a field says of a call of a loop, or of the single call; None if it says nothing.

    Raises :class:`ShapeError` unless there is a number for each sequence.
    """
    counts = getattr(call, field)
    if counts is None:
        return None
    lists = [each for each in counts if isinstance(each, tuple)]
    if lists and not call.loop:
        raise ShapeError(field, "only a loop has a list for each call")
    if call.loop and (lists or field == "query_seqlens"):
        if not len(lists) == len(counts) == len(call.loop):
            sentence = f"a loop of {len(call.loop)} calls needs as many lists of numbers"
            raise ShapeError(field, sentence)
        counts = lists[index]
    elif index:
        return None
    if len(counts) != call.batch_size:
        raise ShapeError(field, f"{len(counts)} numbers for a batch of {call.batch_size}")
    return tuple(counts)


def _total_of(
    call: Call, sequence_length: int, totals: Sequence[int], queries: Sequence[int] | None
) -> int:
    """The input total_sequence_length of a call.

    With query_seqlens the rows of the padding must fit, too, except into a sliding-window cache: a
    growing cache gets as many rows as the input says.
    """
    if call.total_sequence_length is not None:
        return call.total_sequence_length
    longest = max(totals, default=0)
    if queries is None or call.sliding_window_cache == 1:
        return longest
    if call.cache_kind == "static":
        return max(longest, sequence_length)
    starts = (total - query for total, query in zip(totals, queries, strict=False))
    return max(longest, *(start + sequence_length for start in starts))
