"""Key and value: new ones of their own, packed into query, or those of a borrowed cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from conformance.operator.call import Call, Values
from conformance.operator.part import (
    Feature,
    FieldChanges,
    Ground,
    InputRule,
    Objection,
    OperatorNode,
    Part,
    Reader,
    Value,
    specified,
)
from conformance.operator.parts.quantisation import is_quantised
from conformance.operator.parts.scores import query_values
from conformance.operator.replacement import Replacement, filled, of_tokens
from conformance.operator.sources import BORROWING, OMITTING

#: The values of ``key_value`` without new keys: the tokens of the past are borrowed.
BORROWS: Final = ("zero_length", "omitted")
_MARKED: Final = Values(kind="marked")
_PLAIN: Final = Values()
_ZEROS: Final = Values(kind="constant", value=0.0)


def token_values(call: Call) -> Values:
    """The default values of keys and values: marked or, if quantised, all codes equally likely."""
    return _PLAIN if is_quantised(call) else _MARKED


def natural_length(reader: Reader) -> bool:
    """Whether key and value are as long as query, or as ``key_value`` says."""
    return reader.call.kv_sequence_length in (None, reader.step.sequence_length)


def new_tokens(call: Call, sequence_length: int) -> int:
    """The number of new key/value tokens of each sequence, padding included."""
    if call.key_value in BORROWS:
        return 0
    if call.kv_sequence_length is not None:
        return call.kv_sequence_length
    return sequence_length


KEY_VALUE = Feature(
    "key_value",
    {
        "new": Value(),
        "packed": Value(
            "packed QKV",
            "packed_qkv",
            specified(
                "packed QKV with shape(batch_size, sequence_length, d) where d is (num_heads *"
                " head_size + 2 * kv_num_heads * head_size)."
            ),
        ),
        "zero_length": Value(
            "borrowed cache",
            "zero_length_kv borrowed shared_kv",
            specified(
                "allowing `kv_sequence_length=0` when `past_key`/`past_value` contain the borrowed"
                " KV cache",
                BORROWING,
            ),
        ),
        "zero_valued": Value("key and value of zeros", "zero_valued_kv"),
        "omitted": Value(
            "key and value left out",
            "omitted_kv borrowed shared_kv",
            Ground(
                "requested",
                OMITTING,
                "Asked for; the operator reads omitted key and value as packed QKV.",
            ),
        ),
    },
    lambda reader: reader.call.key_value if natural_length(reader) else None,
    off=("key_value", "kv_sequence_length"),
)


def _are_given(call: Call) -> bool:
    return call.key_value in ("new", "zero_length", "zero_valued")


def _values(call: Call, keys: int) -> Values:
    return _ZEROS if call.key_value == "zero_valued" else token_values(call)


def _query_axes(call: Call) -> tuple[str, ...]:
    packed = call.key_value == "packed"
    return "batch_size", "sequence_length", "packed_hidden_size" if packed else "hidden_size"


def _impossible(call: Call) -> Iterator[Objection]:
    own = call.key_value in ("packed", "zero_length") and call.kv_sequence_length is not None
    sentence = f"key_value {call.key_value} decides the length of key and value"
    yield own, "kv_sequence_length", sentence


def _replacements() -> Iterator[Replacement]:
    yield from of_tokens("query", "query")
    for name in ("key", "value"):
        yield from of_tokens(name, name)
        yield Replacement(name, "zeros", "zeros", filled(name, 0.0))


def _of_node(node: OperatorNode) -> FieldChanges:
    heads, kv_heads = (node.attributes.get(name, 0) for name in ("num_heads", "kv_num_heads"))
    if "key" in node.inputs:
        return {"key_value": "zero_length"} if node.type("key").dim(1) == 0 else {}
    query, size = node.type("query").size(-1), node.type("past_key").size(3)
    if size is not None and node.type("past_key").dtype == "uint8":
        size *= 2  # elements, two in a byte
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    borrowed = size is not None and query == heads * size != (heads + 2 * kv_heads) * size
    return {"key_value": "omitted" if borrowed else "packed"}


PART = Part(
    features=(KEY_VALUE,),
    inputs={
        "query": InputRule(lambda call: True, _query_axes, query_values),
        "key": InputRule(_are_given, values=_values),
        "value": InputRule(_are_given, values=_values),
    },
    outputs={"output": lambda call: True},
    read_as={
        "query": ("batch_size", "sequence_length", "num_heads", "head_size"),
        **dict.fromkeys(
            ("key", "value"), ("batch_size", "kv_sequence_length", "kv_num_heads", "head_size")
        ),
    },
    of_node=_of_node,
    impossible=_impossible,
    replacements=_replacements,
)
