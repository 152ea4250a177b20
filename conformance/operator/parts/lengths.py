"""Lengths: how many sequences, tokens and past tokens a call has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from conformance.operator.call import Call
from conformance.operator.part import (
    AttributeValues,
    Feature,
    InputRule,
    Objection,
    Part,
    Reader,
    Value,
    specified,
)
from conformance.operator.parts.key_value import BORROWS, natural_length
from conformance.operator.replacement import (
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    has_the_rows,
)
from conformance.operator.sources import ONNXRUNTIME


def _phase(reader: Reader) -> str | None:
    step, length = reader.step, reader.step.sequence_length
    if reader.call.loop:
        return "loop"
    if not natural_length(reader) or not length:
        return None
    if queries := step.query_lengths:
        if queries == step.total_lengths:
            return "prefill"
    elif length == step.total_sequence_length:
        return "prefill"
    return "decode" if length == 1 else "chunked_prefill"


PHASE = Feature(
    "phase",
    {
        "prefill": Value("prompt", "prefill"),
        "decode": Value("one token on a past", "decode"),
        "chunked_prefill": Value(
            "several tokens on a past",
            "chunked_prefill",
            specified(
                "GQA can take arbitrary length input using seqlens_k as total_sequence_length - 1"
                " and the sequence length of qkv as new_sequence_length",
                f"{ONNXRUNTIME}/pull/21523",
            ),
        ),
        "loop": Value("generation loop", "loop"),
    },
    _phase,
    is_implied=lambda value, features: False,
)
BATCH = Feature(
    "batch",
    {"one": Value(), "more": Value("batch")},
    lambda reader: "one" if reader.call.batch_size == 1 else "more",
    is_implied=lambda value, features: value == "one" or features.get("lengths") == "ragged",
)
LENGTHS = Feature(
    "lengths",
    {
        "equal": Value(),
        "ragged": Value(
            "ragged batch",
            "ragged",
            specified(
                "rows `[Q, S)` are right padding … When `query_seqlens` is omitted, `Q = min(S, T)`"
                " and the behavior is unchanged."
            ),
        ),
    },
    lambda reader: "ragged" if len(set(reader.step.total_lengths)) > 1 else "equal",
    off=("total_sequence_lengths",),
    shown_by=("ragged",),
)


def _impossible(call: Call) -> Iterator[Objection]:
    sentence = "a loop gives the sequence_length of each call itself"
    yield call.loop and call.sequence_length != 1, "sequence_length", sentence


def padded_rows(call: Call) -> int:
    """The most rows that a sequence needs for its past and a whole padded chunk behind it.

    0 without query_seqlens.
    """
    if call.query_seqlens is None:
        return 0
    rows, tokens, written = 0, (call.past_sequence_length,) * call.batch_size, call.written_totals
    for at, length in enumerate(call.loop or (call.sequence_length,)):
        counts = call.query_seqlens[at : at + 1] if call.loop else (call.query_seqlens,)
        if not counts or not isinstance(counts[0], tuple):
            return 0
        added = [count for count in counts[0] if isinstance(count, int)]
        after = (written[at] if at < len(written) else ()) or tuple(map(int.__add__, tokens, added))
        rows = max(rows, *(n - count + length for n, count in zip(after, added, strict=False)))
        tokens = after
    return rows


class MostTokens(NamedTuple):
    """The most tokens of a sequence, as the fields of a call say.

    ``implied``: after the first call, if all past and new tokens count. ``first``: after the first
    call. ``ever``: after any call of a loop.
    """

    implied: int
    first: int
    ever: int


def most_tokens(call: Call) -> MostTokens:
    """The most tokens of a sequence of ``call``."""
    past = call.past_sequence_length
    start, *further = call.loop or (call.sequence_length,)
    no_new = call.key_value in BORROWS or call.kv_sequence_length == 0
    implied = past if no_new else past + (call.kv_sequence_length or start)
    written = call.written_totals
    first = max(written[0], default=implied)
    ever = first if no_new else first + sum(further)
    if len(written) > 1:
        ever = max(chain(*written), default=first)
    return MostTokens(implied, first, ever)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    if call.inputs:  # which may have other lengths
        return
    most, queries = most_tokens(call), (call.loop or (call.sequence_length,))[0]
    sentence = "nothing to attend to: no past, no new keys"
    yield queries and not min(most.ever, most.implied), "key_value", sentence
    longest = max(call.loop or (call.sequence_length,))
    sentence = f"{longest} query tokens are more than the {most.ever} tokens of the sequence"
    yield call.query_seqlens is None and longest > most.ever > 0, "sequence_length", sentence
    if call.query_seqlens is None and call.cache_kind != "static":
        sentence = f"the longest sequence has {most.implied} tokens, past and new, not {most.first}"
        yield most.first != most.implied, "total_sequence_lengths", sentence
        sentence = "only a static cache and query_seqlens have a total_sequence_length of their own"
        own = call.total_sequence_length not in (None, most.ever)
        yield own, "total_sequence_length", sentence


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def lengths(length: Callable[[Any], int]) -> Replace:
        """One length for all sequences; padding of a causal prompt follows all compared tokens."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            call = given.call
            if call.first_prompt and call.causal:
                return None
            changed = {"lengths": np.full_like(call.lengths, length(call))}
            return changed if has_the_rows(replace(call, **changed)) else None

        return changes

    def longest(call: Any) -> int:
        """The largest length; with query_seqlens the total is only a bound of it."""
        return int(call.total if call.query_lengths is None else call.lengths.max())

    def every_total(given: ConnectedCall) -> CallChanges | None:
        ragged = np.any(given.call.lengths < longest(given.call))
        return lengths(longest)(given) if ragged else None

    yield Replacement(
        "seqlens_k", "total", "total_sequence_length for every sequence", every_total, "ragged"
    )
    words = "its first element for all sequences"
    yield Replacement("seqlens_k", "first", words, lengths(lambda call: int(call.lengths[0])))


PART = Part(
    features=(PHASE, BATCH, LENGTHS),
    inputs={
        "seqlens_k": InputRule(
            lambda call: True,
            numbers=lambda step: [length - 1 for length in step.total_lengths],
            meaning="tokens of each sequence, less one",
        ),
        "total_sequence_length": InputRule(
            lambda call: True,
            numbers=lambda step: [step.total_sequence_length],
            meaning="tokens of the longest sequence, or a bound",
        ),
    },
    read_as={"lengths": ("batch_size",)},
    effects=("ragged",),
    impossible=_impossible,
    excluded=_excluded,
    replacements=_replacements,
)
