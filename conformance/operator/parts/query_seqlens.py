"""query_seqlens: how many query tokens of each sequence are not padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from conformance.operator.call import Call
from conformance.operator.part import (
    AttributeValues,
    Decision,
    Feature,
    Honoured,
    InputRule,
    Objection,
    Part,
    Reader,
    Value,
    quoted,
    specified,
)
from conformance.operator.replacement import (
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    has_the_rows,
)
from conformance.operator.sources import CPU, CUDA, JSEP, WEBGPU
from conformance.operator.tensors import Step


def _query_seqlens(reader: Reader) -> str:
    """In a loop, all calls count: one chunk of a prompt is padded."""
    if not reader.tensor("query_seqlens"):
        return "none"
    chunks = [(step.sequence_length, step.query_lengths or ()) for step in reader.steps]
    if any(0 in queries for _, queries in chunks):
        return "idle"
    return "padded" if any(min(q, default=s) < s for s, q in chunks) else "unpadded"


QUERY_SEQLENS = Feature(
    "query_seqlens",
    {
        "none": Value(),
        "unpadded": Value(
            "query_seqlens",
            "query_seqlens",
            specified(
                "Query row `s` is at absolute position `P + s` … Batched multi-token chunks are"
                " supported."
            ),
        ),
        "padded": Value(
            "padded chunk",
            "query_seqlens padded_chunk",
            specified(
                "Only the valid rows are appended to the cache … For every valid row the result"
                " equals that of the same call with an unpadded chunk of `Q` tokens"
            ),
        ),
        "idle": Value(
            "idle entry",
            "query_seqlens idle",
            specified(
                "`Q = 0` marks an idle entry with an already-populated cache: keep its `seqlens_k`"
                " unchanged and ignore all its output rows."
            ),
        ),
    },
    _query_seqlens,
    off=("query_seqlens", "total_sequence_length"),
    shown_by=("query_seqlens",),
)
_GIVEN: Final = (QUERY_SEQLENS.given,)
_HONOURED: Final = (
    quoted(
        "Currently honored by the CPU and CUDA execution providers; other EPs must reject the node"
        " when this input is set."
    )
    + "."
)


def _numbers(step: Step) -> Sequence[int]:
    """The numbers of the call, or those that hold without the input."""
    return step.query_lengths or [min(step.sequence_length, n) for n in step.total_lengths]


def _impossible(call: Call) -> Iterator[Objection]:
    given = call.query_seqlens is not None
    wrong = given and (call.key_value == "zero_length" or call.cache_kind == "none")
    yield wrong, "query_seqlens", "query_seqlens needs new key and value, and a cache"


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    wrong = call.query_seqlens is not None and call.causal == 0
    yield wrong, "query_seqlens", "causal must be 1 with query_seqlens"


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def queries(change: Callable[[Any, Any], Any]) -> Replace:
        """Other numbers of query tokens, within the limits of chunk, sequence and past."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            call = given.call
            if call.query_lengths is None:
                return None
            most = np.minimum(call.sequence_length, call.lengths)
            counts = np.clip(change(call.query_lengths, call), 0, most)
            same = np.array_equal(counts, call.query_lengths)
            if same or not has_the_rows(replace(call, query_lengths=counts)):
                return None
            return {"query_lengths": counts}

        return changes

    name, presents = "query_seqlens", ("present_key", "present_value")
    yield Replacement(
        name,
        "none",
        "all tokens of query for every sequence that has some",
        queries(lambda counts, call: np.where(counts > 0, call.sequence_length, 0)),
        name,
    )
    yield Replacement(
        name,
        "never_idle",
        "all tokens of query where it is 0",
        queries(lambda counts, call: np.where(counts > 0, counts, call.sequence_length)),
        name,
        outputs=presents,
    )
    yield Replacement(
        name,
        "first",
        "its first element for all sequences",
        queries(lambda counts, call: np.full_like(counts, counts[0])),
        outputs=("output", *presents),
    )
    yield Replacement(
        name,
        "one_less",
        "the index of the last token, not the count",
        queries(lambda counts, call: counts - 1),
        outputs=("output", *presents),
    )


PART = Part(
    features=(QUERY_SEQLENS,),
    inputs={
        "query_seqlens": InputRule(
            lambda call: call.query_seqlens is not None,
            numbers=_numbers,
            meaning="query tokens of each sequence, without padding",
        )
    },
    read_as={"query_lengths": ("batch_size",)},
    effects=("query_seqlens",),
    impossible=_impossible,
    excluded=_excluded,
    honoured=(Honoured(_GIVEN, (CPU, CUDA), _HONOURED, ("query_seqlens",), adds_mentions=True),),
    decisions=(Decision(_GIVEN, (WEBGPU, JSEP), "rejects", _HONOURED, ("query_seqlens",)),),
    replacements=_replacements,
)
