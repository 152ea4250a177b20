"""One attention node as standard operators: plain dense attention, in float32.

What is computed follows docs/oracle.md for GroupQueryAttention, ``onnx.reference`` for the standard
Attention, and the operator's documentation in ONNX Runtime 1.32 for MultiHeadAttention. Sizes: B
sequences of equal lengths, S queries, L new keys, P keys of the past, T = P + L keys, N query
heads, K key/value heads, G = N / K, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from onnx import NodeProto, TensorProto

from conformance.graph.nodes import attributes_in, connected, is_attention
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OUTPUT_NAMES
from conformance.rewriting.node_writer import NodeWriter

#: Which rows of a past are keys: none of them, all, or all if there are no new keys.
PastUse = Literal["none", "all", "without new keys"]

_STANDARD: Final = ("query", "key", "value", "attn_mask", "past_key", "past_value")
_MULTI_HEAD: Final = (
    *("query", "key", "value", "bias", "key_padding_mask", "attention_bias"),
    *("past_key", "past_value"),
)
#: A softcap that changes no score, and whose quotients would be lost below the smallest number.
_NO_CAP: Final = 1e30
#: The types of codes that are floating-point numbers: bits of the mantissa, smallest exponent.
_FLOAT8: Final[Mapping[int, tuple[int, int]]] = {
    TensorProto.FLOAT8E4M3FN: (3, -6),
    TensorProto.FLOAT8E4M3FNUZ: (3, -7),
    TensorProto.FLOAT8E5M2: (2, -14),
    TensorProto.FLOAT8E5M2FNUZ: (2, -15),
}


@dataclass(frozen=True)
class CodeScale:
    """What a cache is quantised by.

    ``scale`` is the name of its scales, float32, which are reshaped to ``dims`` to broadcast to
    [B, K, T, D]; None if they do. ``kind`` is the ONNX type of the codes.
    """

    scale: str
    kind: int
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AttentionCall:
    """What the model says about a node beyond the node itself.

    ``past_use``: see :data:`PastUse`. ``packed``: query holds keys and values, too. ``ranks`` are
    the numbers of dims of its inputs, where they are known. ``codes`` are the quantisations of
    past_key and past_value, if these are codes that the node itself dequantises. New keys and
    values are rounded to the steps of ``rounding``, and all that attention stores to the type
    ``stored``, 0 for none.
    """

    past_use: PastUse = "none"
    packed: bool = False
    mask_is_bool: bool = False
    ranks: Mapping[str, int] = field(default_factory=dict)
    codes: Mapping[str, CodeScale] = field(default_factory=dict)
    rounding: Mapping[str, CodeScale] = field(default_factory=dict)
    stored: int = 0


@dataclass(frozen=True)
class Masks:
    """What a query at the place ``offset`` + i attends to among T keys, and what is added."""

    offset: str
    causal: bool
    before: int | None = None
    """The number of keys before its own."""
    after: int | None = None
    bias: str = ""
    bias_is_bool: bool = False
    visible: str = ""
    """What is visible, bool, broadcasts to [B, N, S, T]; "": what follows from the fields above."""


def inputs_of(node: NodeProto) -> dict[str, str]:
    """The connected inputs of an attention node, by names that all attention operators share."""
    names = _MULTI_HEAD if node.domain == DOMAIN else _STANDARD
    return connected(INPUT_NAMES if is_attention(node) else names, node.input)


def is_rewritten(node: NodeProto) -> bool:
    """Whether :func:`write_attention` knows the node's operator."""
    names = (("", "Attention"), ("ai.onnx", "Attention"), (DOMAIN, "MultiHeadAttention"))
    return is_attention(node) or (node.domain, node.op_type) in names


def write_attention(node: NodeProto, call: AttentionCall, write: NodeWriter) -> None:
    """Write what the node computes, under the names of its outputs.

    Its outputs are those of the operator, but for the presents: float32 [B, K, T, D], all keys,
    rotated, and all values, not quantised. Lengths, positions and codes are not looked at.

    Raises KeyError for an attribute or input that the operator requires and the node lacks, and
    ArithmeticError or ValueError for an attribute with a value that no operator has.
    """
    if is_attention(node):
        _write_grouped(node, call, write)
    elif node.domain == DOMAIN:
        _write_multi_head(node, call, write)
    else:
        _write_standard(node, call, write)


# The operators


def _write_grouped(node: NodeProto, call: AttentionCall, write: NodeWriter) -> None:
    inputs, attributes = inputs_of(node), attributes_in(node)
    heads, kv_heads = (int(attributes[name]) for name in ("num_heads", "kv_num_heads"))
    if kv_heads < 1 or heads < 1 or heads % kv_heads:
        raise ValueError("the numbers of heads")
    query, key, value = split_heads(inputs, heads, kv_heads, call.packed, write)
    size = write.size(query, 3)
    shared = attributes.get("qk_norm_epsilon", 1e-6)
    if "q_norm_weight" in inputs:
        epsilon = attributes.get("q_norm_epsilon", shared)
        query = normed(query, inputs["q_norm_weight"], float(epsilon), write)
        epsilon = attributes.get("k_norm_epsilon", shared)
        key = normed(key, inputs["k_norm_weight"], float(epsilon), write)
    query, key, value = (
        write.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, key, value)
    )
    pasts = _pasts(inputs, call, write.size(key, 2), size, write)
    new = write.size(key, 2)
    total = write.node("Add", write.size(pasts[0], 2), new) if pasts else new
    first = write.node("Sub", total, write.size(query, 2))
    if attributes.get("do_rotary"):
        interleaved = bool(attributes.get("rotary_interleaved"))
        tables = inputs["cos_cache"], inputs["sin_cache"]
        places = write.steps(first, total)
        query = rotated(query, gathered(tables, places, write), interleaved, write)
        places = write.steps(write.node("Sub", total, new), total)
        key = rotated(key, gathered(tables, places, write), interleaved, write)
    key, value = _joined(key, value, pasts, call, node, write)
    window = int(attributes.get("local_window_size", -1))
    masks = Masks(
        first,
        bool(attributes.get("causal", 1)),
        window - 1 if window > 0 else None,
        bias=inputs.get("attention_bias", ""),
    )
    sink = inputs.get("head_sink", "")
    if not sink and attributes.get("smooth_softmax") == 1:
        sink = write.number(0.0)
    outputs = connected(OUTPUT_NAMES, node.output)
    output, before, after = attended(query, key, value, attributes, masks, sink, call, write)
    if "output" in outputs:
        write.node("Identity", side_by_side(output, write), output=outputs["output"])
    if "output_qk" in outputs:
        chosen = after if attributes.get("qk_output") == 2 else before
        write.node("Identity", chosen, output=outputs["output_qk"])


def _write_standard(node: NodeProto, call: AttentionCall, write: NodeWriter) -> None:
    inputs, attributes = inputs_of(node), attributes_in(node)
    numbers = [int(attributes.get(f"{of}_num_heads", 0)) for of in ("q", "kv", "kv")]

    def heads_of(name: str, number: int) -> str:
        flat = call.ranks.get(name, 3 if number else 4) == 3
        return _heads(inputs[name], number, write) if flat else inputs[name]

    query, key, value = map(heads_of, ("query", "key", "value"), numbers)
    size = write.size(query, 3)
    pasts = _pasts(inputs, call, write.size(key, 2), size, write)
    offset = write.size(pasts[0], 2) if pasts else write.constant([0])
    key, value = _joined(key, value, pasts, call, node, write)
    before, after = (int(attributes.get(f"{of}_window_size", -1)) for of in ("left", "right"))
    masks = Masks(
        offset,
        bool(attributes.get("is_causal")),
        before if before >= 0 else None,
        after if after >= 0 else None,
        inputs.get("attn_mask", ""),
        call.mask_is_bool,
    )
    output, *scores = attended(query, key, value, attributes, masks, "", call, write)
    if call.ranks.get("query", 3 if numbers[0] else 4) == 3:
        output = side_by_side(output, write)
    write.node("Identity", output, output=node.output[0])
    if len(node.output) > 3 and node.output[3]:
        after_softmax = attributes.get("qk_matmul_output_mode") == 3
        write.node("Identity", scores[after_softmax], output=node.output[3])


def _write_multi_head(node: NodeProto, call: AttentionCall, write: NodeWriter) -> None:
    inputs, attributes = inputs_of(node), attributes_in(node)
    heads = int(attributes["num_heads"])
    biases = ["", "", ""]
    if "bias" in inputs and "value" in inputs:
        width = write.size(inputs["query"], 2)
        twice = write.node("Add", width, width)
        ends = (0, width, twice, np.iinfo(np.int64).max)
        biases = [write.slice(inputs["bias"], 0, ends[at], ends[at + 1]) for at in range(3)]

    def part(name: str, at: int) -> str:
        """[B, heads, tokens, elements]; a fifth dim has queries, keys and values, or the latter."""
        if name not in inputs:
            name, number = ("key", at - 1) if "key" in inputs else ("query", at)
            return part_of(inputs[name], number)
        if call.ranks.get(name) == 5:
            return part_of(inputs[name], 0)
        if call.ranks.get(name) == 4:
            return inputs[name]
        given = write.node("Add", inputs[name], biases[at]) if biases[at] else inputs[name]
        return _heads(given, heads, write)

    def part_of(packed: str, number: int) -> str:
        one = write.slice(packed, 3, number, number + 1)
        one = write.node("Squeeze", one, write.constant([3]))
        return write.node("Transpose", one, perm=[0, 2, 1, 3])

    query, key, value = (part(name, at) for at, name in enumerate(("query", "key", "value")))
    pasts = _pasts(inputs, call, write.size(key, 2), write.size(query, 3), write)
    key, value = _joined(key, value, pasts, call, node, write)
    first = write.node("Sub", write.size(key, 2), write.size(query, 2))
    causal = bool(attributes.get("unidirectional"))
    masks = Masks(first, causal, bias=inputs.get("attention_bias", ""))
    output, *scores = attended(query, key, value, attributes, masks, "", call, write)
    write.node("Identity", side_by_side(output, write), output=node.output[0])
    if len(node.output) > 3 and node.output[3]:
        write.node("Identity", scores[0], output=node.output[3])


# Parts of them


def _heads(flat: str, heads: int, write: NodeWriter) -> str:
    """[B, tokens, heads * D] as [B, heads, tokens, D]."""
    size = write.node("Div", write.size(flat, 2), write.constant([heads]))
    split = write.node("Reshape", flat, write.shape(0, 0, heads, size))
    return write.node("Transpose", split, perm=[0, 2, 1, 3])


def split_heads(
    inputs: Mapping[str, str], heads: int, kv_heads: int, packed: bool, write: NodeWriter
) -> tuple[str, str, str]:
    """Queries [B, S, N, D], and new keys and values [B, L, K, D]; ``packed``: query holds all."""
    every = heads + 2 * kv_heads if packed else heads
    query = write.node("Reshape", inputs["query"], write.constant([0, 0, every, -1]))
    if packed:
        ends = (0, heads, heads + kv_heads, every)
        query, key, value = (write.slice(query, 2, ends[at], ends[at + 1]) for at in range(3))
    elif "key" in inputs:
        shape = write.shape(0, 0, kv_heads, write.size(query, 3))
        key, value = (write.node("Reshape", inputs[name], shape) for name in ("key", "value"))
    else:
        key = value = write.slice(write.slice(query, 1, 0, 0), 2, 0, kv_heads)
    return query, key, value


def side_by_side(heads: str, write: NodeWriter) -> str:
    """[B, heads, tokens, D] as [B, tokens, heads * D]."""
    rows = write.node("Transpose", heads, perm=[0, 2, 1, 3])
    return write.node("Reshape", rows, write.constant([0, 0, -1]))


def normed(heads: str, weight: str, epsilon: float, write: NodeWriter) -> str:
    """x / sqrt(mean(x^2) + epsilon) * weight, over the last axis."""
    mean = write.over_last_axis("ReduceMean", write.node("Mul", heads, heads))
    root = write.node("Sqrt", write.node("Add", mean, write.number(epsilon)))
    return write.node("Mul", write.node("Div", heads, root), weight)


def gathered(tables: tuple[str, str], places: str, write: NodeWriter) -> tuple[str, str]:
    """The rows ``places`` of the tables of cosines and sines."""
    cos, sin = (write.node("Gather", table, places, axis=0) for table in tables)
    return cos, sin


def rotated(heads: str, angles: tuple[str, str], interleaved: bool, write: NodeWriter) -> str:
    """Heads [B, heads, tokens, D], rotated by the cosines and sines of ``angles``.

    They broadcast to [B, heads, tokens, pairs]. The pairs are the first elements of a head, two
    each.
    """
    cos, sin = angles
    half = write.size(cos, -1)
    both = write.node("Add", half, half)
    if interleaved:
        one, two = (write.slice(heads, 3, at, both, 2) for at in (0, 1))
    else:
        one, two = write.slice(heads, 3, 0, half), write.slice(heads, 3, half, both)
    rest = write.slice(heads, 3, both, np.iinfo(np.int64).max)
    products = (write.node("Mul", one, cos), write.node("Mul", two, sin))
    first = write.node("Sub", *products)
    second = write.node("Add", write.node("Mul", one, sin), write.node("Mul", two, cos))
    if not interleaved:
        return write.node("Concat", first, second, rest, axis=3)
    last = write.constant([4])
    pairs = (write.node("Unsqueeze", each, last) for each in (first, second))
    shape = write.shape(0, 0, 0, both)
    turned = write.node("Reshape", write.node("Concat", *pairs, axis=4), shape)
    return write.node("Concat", turned, rest, axis=3)


def _pasts(
    inputs: Mapping[str, str], call: AttentionCall, new: str, size: str, write: NodeWriter
) -> tuple[str, str] | None:
    """Keys and values of the past that are attended to: float32 [B, K, P, D].

    ``new`` and ``size``, int64 [1], are the number of new keys and D.
    """
    if call.past_use == "none" or not {"past_key", "past_value"} <= inputs.keys():
        return None
    found = []
    for name in ("past_key", "past_value"):
        past = inputs[name]
        if name in call.codes:
            past = decoded(past, call.codes[name], size, write)
        if call.past_use == "without new keys":
            nothing = write.node("Equal", new, write.constant([0]))
            which = write.node("Cast", nothing, to=TensorProto.INT64)
            past = write.slice(past, 2, 0, write.node("Mul", write.size(past, 2), which))
        found.append(past)
    return found[0], found[1]


def _joined(
    key: str,
    value: str,
    pasts: tuple[str, str] | None,
    call: AttentionCall,
    node: NodeProto,
    write: NodeWriter,
) -> tuple[str, str]:
    """All keys and values, which are the node's presents."""
    found = []
    for at, each in enumerate((key, value)):
        scale = call.rounding.get(("past_key", "past_value")[at])
        every = each if scale is None else _rounded(each, scale, write)
        if pasts:
            every = write.node("Concat", pasts[at], every, axis=2)
        if len(node.output) > at + 1 and node.output[at + 1]:
            write.node("Identity", every, output=node.output[at + 1])
        found.append(every)
    return found[0], found[1]


def spread(scale: CodeScale, write: NodeWriter) -> str:
    """The scales in a shape that broadcasts to [B, K, T, D]."""
    if scale.dims is None:
        return scale.scale
    return write.node("Reshape", scale.scale, write.constant(scale.dims))


def decoded(codes: str, scale: CodeScale, size: str, write: NodeWriter) -> str:
    """The numbers that the codes stand for; a byte of 4-bit codes has the even one low."""
    if scale.kind == TensorProto.UINT8:
        numbers = write.node("Cast", codes, to=TensorProto.INT32)
        sixteen, last = write.constant(16, np.int32), write.constant([4])
        halves = [write.node(each, numbers, sixteen) for each in ("Mod", "Div")]
        pairs = write.node(
            "Concat", *(write.node("Unsqueeze", each, last) for each in halves), axis=4
        )
        twice = write.node("Mul", write.size(codes, 3), write.constant([2]))
        flat = write.node("Reshape", pairs, write.shape(0, 0, 0, twice))
        codes = write.node("Sub", write.slice(flat, 3, 0, size), write.constant(8, np.int32))
    numbers = write.node("Cast", codes, to=TensorProto.FLOAT)
    return write.node("Mul", numbers, spread(scale, write))


def _rounded(numbers: str, scale: CodeScale, write: NodeWriter) -> str:
    """The numbers, rounded to the steps of the codes, without the limits of their range."""
    steps = spread(scale, write)
    quotients = write.node("Div", numbers, steps)
    if scale.kind not in _FLOAT8:
        return write.node("Mul", write.node("Round", quotients), steps)
    mantissa, lowest = _FLOAT8[scale.kind]
    least = write.node("Max", write.node("Abs", quotients), write.number(2.0**lowest))
    octaves = write.node("Div", write.node("Log", least), write.number(np.log(2.0)))
    exponent = write.node("Sub", write.node("Floor", octaves), write.number(mantissa))
    unit = write.node("Pow", write.number(2.0), exponent)
    whole = write.node("Round", write.node("Div", quotients, unit))
    return write.node("Mul", write.node("Mul", whole, unit), steps)


def _stored(numbers: str, call: AttentionCall, write: NodeWriter) -> str:
    """The numbers as the type that kernels store them in has them, in float32."""
    if not call.stored:
        return numbers
    return write.node("Cast", write.node("Cast", numbers, to=call.stored), to=TensorProto.FLOAT)


def attended(
    query: str,
    key: str,
    value: str,
    attributes: Mapping[str, Any],
    masks: Masks,
    sink: str,
    call: AttentionCall,
    write: NodeWriter,
) -> tuple[str, str, str]:
    """The output [B, N, S, D], and the scores before and after the softmax, [B, N, S, T].

    Takes query [B, N, S, D], and keys and values [B, K, T, D]. Scores are scale * q.k, softcapped,
    then the bias is added. A query that the bias hides every key from has an output of 0.
    """
    query, key, value = (_stored(each, call, write) for each in (query, key, value))
    queries, size, total = write.size(query, 2), write.size(query, 3), write.size(key, 2)
    heads = attributes.get("num_heads") or write.size(query, 1)
    # The queries of all heads that share a key follow each other.
    in_groups = _rows_of_heads(attributes.get("kv_num_heads") or write.size(key, 1), write)
    in_heads = _rows_of_heads(heads, write)
    grouped = write.node("Reshape", query, in_groups)
    scores = write.node("MatMul", grouped, write.node("Transpose", key, perm=[0, 1, 3, 2]))
    if scale := float(attributes.get("scale", 0.0)):
        scores = write.node("Mul", scores, write.number(scale))
    else:
        root = write.node("Sqrt", write.node("Cast", size, to=TensorProto.FLOAT))
        scores = write.node("Div", scores, root)
    scores = write.node("Reshape", scores, in_heads)
    scores = _stored(scores, call, write)
    cap = abs(float(attributes.get("softcap", 0.0)))
    if 0 < cap < _NO_CAP:
        scores = write.node("Tanh", write.node("Div", scores, write.number(cap)))
        scores = write.node("Mul", scores, write.number(cap))
    hidden = write.number(-np.inf)
    if masks.bias:
        bias = write.slice(masks.bias, -2, 0, queries)
        bias = write.slice(bias, -1, 0, total)
        if masks.bias_is_bool:
            scores = write.node("Where", bias, scores, hidden)
        else:
            scores = write.node("Add", scores, bias)
    if visible := masks.visible or _visible(masks, queries, total, write):
        scores = write.node("Where", visible, scores, hidden)
    if sink:
        column = write.node("Reshape", sink, write.constant([1, -1, 1, 1]))
        column = write.node("Expand", column, write.shape(write.size(query, 0), heads, queries, 1))
        every = write.node("Concat", scores, column, axis=3)
        shares = write.node("Softmax", every, axis=-1)
        shares = write.slice(shares, 3, 0, total)
    else:
        shares = write.node("Softmax", scores, axis=-1)
        if masks.bias:
            nothing = write.node("Equal", write.over_last_axis("ReduceMax", scores), hidden)
            shares = write.node("Where", nothing, write.number(0.0), shares)
    output = write.node("MatMul", write.node("Reshape", shares, in_groups), value)
    return write.node("Reshape", output, in_heads), scores, shares


def _rows_of_heads(heads: int | str, write: NodeWriter) -> str:
    """The shape that gives a value of rank 4 so many heads, for Reshape."""
    if isinstance(heads, int):
        return write.constant([0, heads, -1, 0])
    copied = write.constant([0])
    return write.node("Concat", copied, heads, write.constant([-1]), copied, axis=0)


def _visible(masks: Masks, queries: str, total: str, write: NodeWriter) -> str:
    """bool [S, T]: the keys that the masks leave to each query; "" if there are no masks."""
    end = write.node("Add", masks.offset, queries)
    last = write.constant([1])
    places = write.node("Unsqueeze", write.steps(masks.offset, end), last)
    keys = write.steps(write.constant([0]), total)
    after = 0 if masks.causal else masks.after
    rules = []
    if after is not None:
        limit = write.node("Add", places, write.constant(after))
        rules.append(write.node("LessOrEqual", keys, limit))
    if masks.before is not None:
        limit = write.node("Sub", places, write.constant(masks.before))
        rules.append(write.node("GreaterOrEqual", keys, limit))
    return write.node("And", *rules) if len(rules) == 2 else "".join(rules)
