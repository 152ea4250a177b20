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
_PRECISE: Final = (TensorProto.FLOAT, TensorProto.DOUBLE)


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
    query, key, value = (types.get(inputs.get(n, ""), UNKNOWN) for n in STANDARD_INPUTS[:3])
    of_heads = len(query.dims or ()) == 4
    heads, kv_heads = (
        each.size(1) if of_heads else attributes.get(f"{of}_num_heads")
        for of, each in (("q", query), ("kv", key))
    )
    width, (new, rows) = query.size(-1), (query.dim(-2), key.dim(-2))
    if not heads or not kv_heads or not width:
        raise Unclear("the sizes of its inputs are not in the graph")
    before, after = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = bool(attributes.get("is_causal")) or after == 0
    appends = "past_key" in inputs
    alone = not appends and "seqlens_k" not in inputs and (causal or new == rows)
    for is_so, why in (
        (any(node.output[3:]), "its scores are an output"),
        (key.size(-1) != value.size(-1), "its values have another size than its keys"),
        (attributes.get("scale") == 0, "its scale of 0 means something else there"),
        (attributes.get("softcap", 0) < 0, "its negative softcap means something else there"),
        (attributes.get("softmax_precision", 1) not in _PRECISE, "its softmax_precision is lower"),
        (not causal and max(before, after) >= 0, "its window is not causal"),
        (alone and new != rows, "its is_causal counts keys from the first, and it has no past"),
        (not appends and not alone and any(node.output[1:]), "it has presents without a past"),
    ):
        if is_so:
            raise Unclear(why)
    size = width if of_heads else width // heads
    batch, dtype = query.dim(0), query.dtype
    own = dict.fromkeys(
        (inputs["query"], node.output[0]), ValueType(dtype, (batch, new, heads * size))
    )
    tokens = ValueType(dtype, (batch, rows, kv_heads * size))
    if not appends and not alone:
        inputs |= {f"past_{name}": inputs.pop(name) for name in ("key", "value")}
        tokens = ValueType(dtype, (batch, kv_heads, rows, size))
    kv_inputs = ("key", "value") if appends or alone else ("past_key", "past_value")
    own |= dict.fromkeys((inputs[name] for name in kv_inputs), tokens)
    kept = {name: attributes[name] for name in ("scale", "softcap") if name in attributes}
    kept |= {} if causal else {"causal": 0}
    kept |= {} if before < 0 else {"local_window_size": before + 1}
    sizes = {"num_heads": heads, "kv_num_heads": kv_heads}
    names = [inputs.get(name, "") for name in INPUT_NAMES]
    made = helper.make_node(OP_TYPE, names, node.output[:3], node.name, domain=DOMAIN)
    made.attribute.extend(helper.make_attribute(*each) for each in {**sizes, **kept}.items())
    return made, own
