"""Sizes and types: the heads and their size, the dtype, and how a graph declares its dims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from conformance.operator.call import Call
from conformance.operator.part import AttributeValues, Feature, Objection, Part, Reader, Value

_HEAD_SIZES: Final = ("16", "8", "40", "64", "80", "128", "256", "512")


def _heads(reader: Reader) -> str:
    if reader.call.num_heads == reader.call.kv_num_heads:
        return "mha"
    return "mqa" if reader.call.kv_num_heads == 1 else "gqa"


def _head_size(reader: Reader) -> str:
    size = reader.call.head_size
    if str(size) in _HEAD_SIZES:
        return str(size)
    return (
        "other" if size % 16 == 0 else "no_multiple_of_16" if size % 8 == 0 else "no_multiple_of_8"
    )


HEADS = Feature(
    "heads",
    {"gqa": Value(search="gqa"), "mha": Value("MHA", "mha"), "mqa": Value("MQA", "mqa")},
    _heads,
)
HEAD_SIZE = Feature(
    "head_size",
    {
        **{size: Value(f"head_size {size}") for size in _HEAD_SIZES},
        # Pairs with these values are not required.
        "other": Value("unusual head_size", paired=False),
        "no_multiple_of_16": Value("head_size that 16 does not divide", paired=False),
        "no_multiple_of_8": Value("head_size that 8 does not divide", paired=False),
    },
    _head_size,
)
DTYPE = Feature(
    "dtype",
    {
        "float32": Value(search="float32"),
        "float16": Value("float16", "float16"),
        "bfloat16": Value("bfloat16", "bfloat16"),
    },
    lambda reader: reader.call.dtype,
    off=("dtype",),
)
DIMS = Feature(
    "dims",
    {"symbolic": Value(), "static": Value("fixed dims", "static_dims")},
    lambda reader: reader.call.dims,
    off=("dims",),
)


def _excluded(call: Call, attributes: AttributeValues) -> Iterator[Objection]:
    heads, kv_heads = call.num_heads, call.kv_num_heads
    sentence = f"num_heads {heads} is not a multiple of kv_num_heads {kv_heads}"
    yield heads % kv_heads, "num_heads", sentence


PART = Part(features=(HEADS, HEAD_SIZE, DTYPE, DIMS), excluded=_excluded)
