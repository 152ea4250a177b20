"""attention_bias: a number that is added to the score of each query and key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.operator.call import Call
from conformance.operator.part import (
    Decision,
    Feature,
    FieldChanges,
    InputRule,
    OperatorNode,
    Part,
    Reader,
    Value,
    quoted,
    specified,
    uniform,
)
from conformance.operator.parts.quantisation import QUANTISED
from conformance.operator.parts.sink import SINK
from conformance.operator.replacement import (
    CallChanges,
    ConnectedCall,
    Replace,
    Replacement,
    filled,
    first,
)
from conformance.operator.signature import Axis
from conformance.operator.sources import BIAS_ON_CUDA, CUDA

_WORDS = specified(
    "additional add to QxK' with shape (batch_size or 1, num_heads or 1, sequence_length,"
    " total_sequence_length)."
)


def _attention_bias(reader: Reader) -> str | None:
    bias = reader.tensor("attention_bias")
    if bias is None:
        return "none"
    if bias.shape is None or len(bias.shape) != 4:
        return None
    one_batch = bias.shape[0] < reader.call.batch_size
    one_head = bias.shape[1] < reader.call.num_heads
    return {
        (False, False): "full",
        (True, False): "one_batch",
        (False, True): "one_head",
        (True, True): "one_batch_one_head",
    }[one_batch, one_head]


ATTENTION_BIAS = Feature(
    "attention_bias",
    {
        "none": Value(),
        "full": Value("attention bias", "attention_bias", _WORDS),
        "one_batch": Value("one bias for the batch", "attention_bias", _WORDS),
        "one_head": Value("one bias for all heads", "attention_bias", _WORDS),
        "one_batch_one_head": Value("one bias for all", "attention_bias", _WORDS),
    },
    _attention_bias,
    off=("attention_bias",),
    plainer=({"attention_bias": "full"},),
    shown_by=("attention_bias",),
)


def _axes(call: Call) -> tuple[Axis, ...]:
    return (
        1 if call.attention_bias in ("one_batch", "one_batch_one_head") else "batch_size",
        1 if call.attention_bias in ("one_head", "one_batch_one_head") else "num_heads",
        "sequence_length",
        "total_sequence_length",
    )


def _replacements() -> Iterator[Replacement]:
    import numpy as np

    def with_columns(number: Any) -> Replace:
        """Rows of the bias, read with another number of columns."""

        def changes(given: ConnectedCall) -> CallChanges | None:
            call, columns = given.call, number(given.call)
            if call.bias is None or columns == call.total:
                return None
            batch_size, heads, queries, total = call.bias.shape
            rows = np.arange(batch_size * heads * queries).reshape(batch_size, heads, queries, 1)
            places = rows * columns + np.arange(total)
            return {"bias": np.take(call.bias, places, mode="wrap")}

        return changes

    name = "attention_bias"
    yield Replacement(
        "total_sequence_length",
        "longest",
        "the longest length of seqlens_k",
        with_columns(lambda call: int(call.lengths.max())),
    )
    yield Replacement(
        "total_sequence_length",
        "rows",
        "the rows of the past and the new tokens",
        with_columns(lambda call: call.past_sequence_length + call.kv_sequence_length),
    )
    yield Replacement(name, "none", "no bias", filled("bias", 0.0), name)
    yield Replacement(name, "first_sequence", "the first sequence's for all", first("bias", 0))
    yield Replacement(name, "first_head", "the first head's for all", first("bias", 1))
    yield Replacement(name, "first_token", "the first query's for all", first("bias", 2))


_CLEAR = quoted(
    "`NOT_IMPLEMENTED` (explicit, clear errors instead of the previous blanket rejection)"
)


def _of_node(node: OperatorNode) -> FieldChanges:
    if "attention_bias" not in node.inputs:
        return {}
    one_batch, one_head = (node.type("attention_bias").dim(axis) == 1 for axis in (0, 1))
    one_batch = one_batch and node.type("query").dim(0) != 1
    kinds = {(True, True): "one_batch_one_head", (True, False): "one_batch"}
    kind = kinds.get((one_batch, one_head), "one_head" if one_head else "full")
    return {"attention_bias": kind}


PART = Part(
    features=(ATTENTION_BIAS,),
    inputs={
        "attention_bias": InputRule(
            lambda call: call.attention_bias != "none",
            _axes,
            lambda call, keys: uniform(-2.0, 2.0),
        )
    },
    read_as={"bias": ("batch_size", "num_heads", "sequence_length", "total_sequence_length")},
    effects=("attention_bias",),
    of_node=_of_node,
    decisions=tuple(
        Decision(
            (ATTENTION_BIAS.given, other),
            (CUDA,),
            "either",
            f"It kept {_CLEAR} for {words}.",
            ("attention_bias",),
            BIAS_ON_CUDA,
        )
        for other, words in (
            (SINK.given, quoted("bias × smooth-softmax/head_sink")),
            (QUANTISED.given, "a bias with a quantised cache, too"),
        )
    ),
    replacements=_replacements,
)
