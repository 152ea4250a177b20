"""The standard Attention, read as the GroupQueryAttention that computes the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onnx import NodeProto, TensorProto, helper

from conformance.graph.describe import Unclear
from conformance.graph.nodes import attributes_in, connected
from conformance.graph.shapes import UNKNOWN, ValueType
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OP_TYPE

#: The inputs of the standard Attention, by the names of GroupQueryAttention's.
STANDARD_INPUTS: Final = (
    *("query", "key", "value", "attention_bias", "past_key", "past_value", "seqlens_k"),
)
#: The number of outputs that both operators have.
_OUTPUTS: Final = 3


def is_standard(node: NodeProto) -> bool:
    """Whether the node is a standard Attention."""
    return node.op_type == "Attention" and node.domain in ("", "ai.onnx")


def as_operator(
    node: NodeProto, types: Mapping[str, ValueType]
) -> tuple[NodeProto, dict[str, ValueType]]:
    """A standard Attention as a GroupQueryAttention of the same values.

    Keys that are not appended to a past are the past. ``nonpad_kv_seqlen``, which counts from 1, is
    in the place of seqlens_k.

    Returns:
        The node, and the types of its values in the layouts of GroupQueryAttention.

    Raises:
        Unclear: the node does not compute what a GroupQueryAttention can, or the graph does not say
            so; half a sentence.
    """
    attributes: Mapping[str, Any] = attributes_in(node)
    inputs = connected(STANDARD_INPUTS, node.input)
    known = {name: types.get(value, UNKNOWN) for name, value in inputs.items()}
    if missing := [name for name in STANDARD_INPUTS[:3] if len(known[name].dims or ()) < 3]:
        raise Unclear(f"the shape of its {missing[0]} is unknown")
    query, key, value = (known[name] for name in STANDARD_INPUTS[:3])
    flat = len(query.dims or ()) == 3
    heads, kv_heads = (
        attributes.get(f"{of}_num_heads") if flat else each.size(1)
        for of, each in (("q", query), ("kv", key))
    )
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or min(heads, kv_heads) < 1:
        raise Unclear("the number of its heads is unknown")
    before, after = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = bool(attributes.get("is_causal")) or after == 0
    lengths = query.dim(-2), key.dim(-2)
    appends, counts = "past_key" in inputs, "seqlens_k" in inputs
    alone = not appends and not counts and (causal or lengths[0] == lengths[1])
    for is_so, why in (
        (any(node.output[_OUTPUTS:]), "its scores are an output"),
        (None not in (key.size(-1), value.size(-1)) and key.size(-1) != value.size(-1),
         "its values have another size than its keys"),
        (attributes.get("scale") == 0 or attributes.get("softcap", 0) < 0,
         "its scale or softcap means something else there"),
        (attributes.get("softmax_precision", 1) not in (TensorProto.FLOAT, TensorProto.DOUBLE),
         "its softmax_precision is lower"),
        (not causal and max(before, after) >= 0, "its window is not causal"),
        (alone and causal and None not in lengths and lengths[0] != lengths[1],
         "with other keys than its tokens' and no past, is_causal hides others"),
        (not appends and not alone and any(node.output[1:]), "it has presents without a past"),
    ):  # fmt: skip
        if is_so:
            raise Unclear(why)
    own = {inputs["query"]: _as_tokens(query, heads)}
    own |= {value: _as_tokens(types.get(value, UNKNOWN), heads) for value in node.output[:1]}
    if appends or alone:
        own |= {inputs[name]: _as_tokens(known[name], kv_heads) for name in ("key", "value")}
    else:
        for name in ("key", "value"):
            inputs[f"past_{name}"] = inputs.pop(name)
            own[inputs[f"past_{name}"]] = _as_rows(known[name], kv_heads)
    kept: dict[str, Any] = {
        name: attributes[name] for name in ("scale", "softcap") if name in attributes
    }
    if not causal:
        kept["causal"] = 0
    if before >= 0:
        kept["local_window_size"] = before + 1
    names = [inputs.get(name, "") for name in INPUT_NAMES]
    outputs = node.output[:_OUTPUTS]
    return helper.make_node(
        OP_TYPE, names, outputs, node.name, domain=DOMAIN, num_heads=heads, kv_num_heads=kv_heads,
        **kept,
    ), own  # fmt: skip


def _as_tokens(known: ValueType, heads: int) -> ValueType:
    """[B, heads, tokens, D] as [B, tokens, heads * D]."""
    if len(known.dims or ()) != 4:
        return known
    size = known.size(3)
    return ValueType(known.dtype, (known.dim(0), known.dim(2), size and heads * size))


def _as_rows(known: ValueType, heads: int) -> ValueType:
    """[B, rows, heads * D] as [B, heads, rows, D]."""
    if len(known.dims or ()) != 3:
        return known
    width = known.size(2)
    return ValueType(known.dtype, (known.dim(0), heads, known.dim(1), width and width // heads))
