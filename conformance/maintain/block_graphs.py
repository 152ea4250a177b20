"""The graphs of ``cases/blocks.yaml``: small parts of decoders as exporters write them, weightless.

Every weight is a constant whose data is left out, so a case draws it by its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import onnx
from onnx import TensorProto, helper

from conformance.base.signature import DOMAIN, OP_TYPE

#: The sizes of all graphs: one key/value head of 16 for 4 query heads, as in a tiny Gemma 4.
HEADS, KV_HEADS, SIZE, WINDOW = 4, 1, 16, 8
HIDDEN, INNER, VOCABULARY, POSITIONS = 64, 128, 96, 64
#: Block size of quantised weights.
BLOCK: Final = 32

_KIND: Final = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
#: The version of the standard operators: one that tract is tested with; Attention needs another.
_OPSET, _ATTENTION_OPSET, _IR = 18, 23, 10


class _Builder:
    """Collects the nodes, inputs, outputs and weights of a graph of one floating-point type."""

    def __init__(self, dtype: str) -> None:
        self.kind = _KIND[dtype]
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: list[TensorProto] = []

    def input(self, name: str, dims: list[Any], kind: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind or self.kind, dims))
        return name

    def output(self, name: str, dims: list[Any]) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, self.kind, dims))
        return name

    def weight(self, name: str, dims: list[int], kind: int | None = None) -> str:
        """A constant without data."""
        tensor = TensorProto(name=name, dims=dims, data_type=kind or self.kind)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights")
        self.constants.append(tensor)
        return name

    def number(self, name: str, numbers: list[int], kind: int = TensorProto.INT64) -> str:
        dims = [len(numbers)]
        self.constants.append(helper.make_tensor(name, kind, dims, numbers))
        return name

    def node(
        self, op: str, given: list[str], made: str | list[str], domain: str = "", **attributes: Any
    ) -> str:
        """Add a node, named after what it makes; returns its first output."""
        outputs = [made] if isinstance(made, str) else made
        node = helper.make_node(op, given, outputs, f"{outputs[0]}_node", domain=domain)
        node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
        self.nodes.append(node)
        return outputs[0]

    def attention(self, given: list[str], made: list[str], **attributes: Any) -> str:
        """A GroupQueryAttention with the sizes of this module."""
        fixed = {"num_heads": HEADS, "kv_num_heads": KV_HEADS}
        return self.node(OP_TYPE, given, made, DOMAIN, **fixed, **attributes)

    def matmul(
        self, given: str, made: str, terms: int, columns: int, int4: bool, **more: Any
    ) -> str:
        """A product with a weight: a MatMul, or a MatMulNBits of 4 bits."""
        if not int4:
            return self.node(
                "MatMul", [given, self.weight(f"{made}.weight", [terms, columns])], made
            )
        blocks = terms // BLOCK
        weights = [
            self.weight(f"{made}.codes", [columns, blocks, BLOCK // 2], TensorProto.UINT8),
            self.weight(f"{made}.scales", [columns, blocks]),
        ]
        sizes = {"K": terms, "N": columns, "bits": 4, "block_size": BLOCK}
        return self.node("MatMulNBits", [given, *weights], made, DOMAIN, **sizes, **more)

    def model(self, opset: int = _OPSET) -> bytes:
        graph = helper.make_graph(
            self.nodes, "block", self.inputs, self.outputs, initializer=self.constants
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="gqa-conformance")
        model.ir_version = _IR
        return bytes(model.SerializeToString(deterministic=True))


_TOKENS: Final = ["batch_size", "sequence_length"]
_PAST: Final = ["batch_size", KV_HEADS, "past_sequence_length", SIZE]
_PRESENT: Final = ["batch_size", KV_HEADS, "total_sequence_length", SIZE]


def _lengths(b: _Builder) -> list[str]:
    """seqlens_k and total_sequence_length as inputs."""
    return [
        b.input("seqlens_k", ["batch_size"], TensorProto.INT32),
        b.input("total_sequence_length", [], TensorProto.INT32),
    ]


def _lengths_of_mask(b: _Builder) -> list[str]:
    """seqlens_k and total_sequence_length as exporters compute them from attention_mask."""
    mask = b.input("attention_mask", ["batch_size", "total_sequence_length"], TensorProto.INT64)
    one = b.number("one", [1])
    count = b.node("ReduceSum", [mask, one], "tokens", keepdims=0)
    less = b.node("Sub", [count, one], "last_token")
    seqlens = b.node("Cast", [less], "seqlens_k", to=TensorProto.INT32)
    shape = b.node("Shape", [mask], "mask_shape")
    index = b.number("axis_1", [1])
    total = b.node("Gather", [shape, index], "total")
    return [seqlens, b.node("Cast", [total], "total_sequence_length", to=TensorProto.INT32)]


def _tables(b: _Builder) -> list[str]:
    return [b.weight(name, [POSITIONS, SIZE // 2]) for name in ("cos_cache", "sin_cache")]


def _no_tokens(b: _Builder, like: str) -> str:
    """Key and value of length 0, as exporters write a layer that borrows a cache."""
    shape = b.node("Shape", [like], f"{like}_shape", start=0, end=1)
    rest = b.number("no_tokens", [0, KV_HEADS * SIZE])
    dims = b.node("Concat", [shape, rest], "no_tokens_shape", axis=0)
    zero = helper.make_tensor("value", b.kind, [1], [0.0])
    return b.node("ConstantOfShape", [dims], "no_key_value", value=zero)


_WIDE: Final = [*_TOKENS, HEADS * SIZE]


def _layer(b: _Builder, **attributes: Any) -> tuple[list[str], list[str], list[str]]:
    """A layer with a cache: its presents, the lengths and the tables."""
    narrow = [*_TOKENS, KV_HEADS * SIZE]
    tokens = [b.input("query", _WIDE), b.input("key", narrow), b.input("value", narrow)]
    past = [b.input("past_key", _PAST), b.input("past_value", _PAST)]
    lengths, tables = _lengths(b), _tables(b)
    present = [b.output("present_key", _PRESENT), b.output("present_value", _PRESENT)]
    first = b.output("output", _WIDE)
    given = [*tokens, *past, *lengths, *tables]
    b.attention(given, [first, *present], do_rotary=1, **attributes)
    return present, lengths, tables


def borrowing(dtype: str, window: bool = True, presents: bool = True) -> bytes:
    """A layer with a cache, and a layer that borrows it: its past is the first one's present."""
    b = _Builder(dtype)
    attributes = {"local_window_size": WINDOW} if window else {}
    present, lengths, tables = _layer(b, **attributes)
    query = b.input("borrower_query", _WIDE)
    nothing = _no_tokens(b, query)
    made = [b.output("borrower_output", _WIDE)]
    if presents:
        made += [b.output(f"borrower_{name}", _PRESENT) for name in present]
    given = [query, nothing, nothing, *present, *lengths, *tables]
    b.attention(given, made, do_rotary=1, **attributes)
    return b.model()


def mixed(dtype: str) -> bytes:
    """The same, but the second layer is a standard Attention with a mask, as exporters wrote it
    before GroupQueryAttention could borrow (microsoft/onnxruntime#28188)."""
    b = _Builder(dtype)
    present, _, tables = _layer(b, local_window_size=WINDOW)
    query = b.input("borrower_query", _WIDE)
    positions = b.input("position_ids", _TOKENS, TensorProto.INT64)
    turned = b.node("RotaryEmbedding", [query, positions, *tables], "rotated", DOMAIN)
    heads = b.node("Reshape", [turned, b.number("heads", [0, 0, HEADS, SIZE])], "query_heads")
    by_head = b.node("Transpose", [heads], "query_bnsh", perm=[0, 2, 1, 3])
    # The key at j is seen by the query at i if i - WINDOW < j <= i.
    length = b.node("Shape", [present[0]], "rows", start=2, end=3)
    none = b.node("Squeeze", [b.number("zero", [0])], "first")
    count = b.node("Squeeze", [length], "count")
    step = b.node("Squeeze", [b.number("one", [1])], "step")
    keys = b.node("Range", [none, count, step], "key_positions")
    queries = b.node("Unsqueeze", [positions, b.number("axes", [1, 3])], "query_positions")
    late = b.node("LessOrEqual", [keys, queries], "not_later")
    start = b.node("Sub", [queries, b.number("window", [WINDOW])], "before_window")
    mask = b.node("And", [late, b.node("Greater", [keys, start], "in_window")], "mask")
    attended = b.node("Attention", [by_head, *present, mask], "attended")
    back = b.node("Transpose", [attended], "attended_rows", perm=[0, 2, 1, 3])
    flat = b.number("flat", [0, 0, HEADS * SIZE])
    b.node("Reshape", [back, flat], b.output("borrower_output", _WIDE))
    return b.model(_ATTENTION_OPSET)


def projected(dtype: str, int4: bool = True, accuracy_level: int = 0) -> bytes:
    """One product that makes query, key and value packed, the attention, and its projection."""
    b = _Builder(dtype)
    more = {"accuracy_level": accuracy_level} if accuracy_level else {}
    hidden = b.input("hidden_states", [*_TOKENS, HIDDEN])
    past = [b.input("past_key", _PAST), b.input("past_value", _PAST)]
    lengths, tables = _lengths(b), _tables(b)
    width = (HEADS + 2 * KV_HEADS) * SIZE
    packed = b.matmul(hidden, "qkv_proj", HIDDEN, width, int4, **more)
    present = [b.output("present_key", _PRESENT), b.output("present_value", _PRESENT)]
    given = [packed, "", "", *past, *lengths, *tables]
    attended = b.attention(given, ["attention", *present], do_rotary=1)
    b.matmul(attended, b.output("o_proj", [*_TOKENS, HIDDEN]), HEADS * SIZE, HIDDEN, int4, **more)
    return b.model()


def decoder(dtype: str, int4: bool = False) -> bytes:
    """A whole decoder block, from token ids to logits, as onnxruntime-genai's builder writes it."""
    b = _Builder(dtype)
    ids = b.input("input_ids", _TOKENS, TensorProto.INT64)
    past = [b.input("past_key_values.0.key", _PAST), b.input("past_key_values.0.value", _PAST)]
    lengths, tables = _lengths_of_mask(b), _tables(b)
    if int4:
        given = [
            b.weight("embed_tokens.codes", [VOCABULARY, HIDDEN // 2], TensorProto.UINT8),
            ids,
            b.weight("embed_tokens.scales", [VOCABULARY, HIDDEN // BLOCK]),
        ]
        sizes = {"bits": 4, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        hidden = b.node("GatherBlockQuantized", given, "embed_tokens", DOMAIN, **sizes)
    else:
        table = b.weight("embed_tokens.weight", [VOCABULARY, HIDDEN])
        hidden = b.node("Gather", [table, ids], "embed_tokens")

    def norm(given: str, made: str) -> str:
        weight = b.weight(f"{made}.weight", [HIDDEN])
        attributes: dict[str, Any] = {"axis": -1, "epsilon": 1e-6, "stash_type": 1}
        return b.node("SimplifiedLayerNormalization", [given, weight], made, **attributes)

    def added(hidden: str, new: str, made: str) -> tuple[str, str]:
        """The norm of a sum, and the sum."""
        given = [hidden, new, b.weight(f"{made}.weight", [HIDDEN])]
        outputs = [made, "", "", f"{made}.sum"]
        b.node("SkipSimplifiedLayerNormalization", given, outputs, DOMAIN, epsilon=1e-6)
        return made, f"{made}.sum"

    normed = norm(hidden, "input_layernorm")
    widths = {"q_proj": HEADS * SIZE, "k_proj": KV_HEADS * SIZE, "v_proj": KV_HEADS * SIZE}
    tokens = [b.matmul(normed, name, HIDDEN, width, int4) for name, width in widths.items()]
    present = [b.output(f"present.0.{name}", _PRESENT) for name in ("key", "value")]
    given = [*tokens, *past, *lengths, *tables]
    attended = b.attention(given, ["attention", *present], do_rotary=1)
    projected = b.matmul(attended, "o_proj", HEADS * SIZE, HIDDEN, int4)
    normed, hidden = added(hidden, projected, "post_attention_layernorm")
    gate = b.matmul(normed, "gate_proj", HIDDEN, INNER, int4)
    up = b.matmul(normed, "up_proj", HIDDEN, INNER, int4)
    silu = b.node("Mul", [gate, b.node("Sigmoid", [gate], "gate_sigmoid")], "gate_silu")
    inner = b.node("Mul", [silu, up], "gated")
    down = b.matmul(inner, "down_proj", INNER, HIDDEN, int4)
    normed, _ = added(hidden, down, "final_norm")
    b.matmul(normed, b.output("logits", [*_TOKENS, VOCABULARY]), HIDDEN, VOCABULARY, int4)
    return b.model()


_IN_EACH_TYPE: Final[Mapping[str, Callable[[str], bytes]]] = {
    "borrowing": partial(borrowing, window=False),
    "borrowing_window": borrowing,
    "borrowing_window_output": partial(borrowing, presents=False),
    "mixed": mixed,
    "qkv_matmul": partial(projected, int4=False),
    "qkv_int4": projected,
}
#: The files, and how they are made.
GRAPHS: Final[Mapping[str, Callable[[], bytes]]] = {
    **{
        f"cases/blocks/{name}_{dtype}.onnx": partial(make, dtype)
        for name, make in _IN_EACH_TYPE.items()
        for dtype in _KIND
    },
    "cases/blocks/qkv_int4_int8_float32.onnx": partial(projected, "float32", accuracy_level=4),
    "cases/blocks/decoder_float32.onnx": partial(decoder, "float32"),
    "cases/blocks/decoder_int4_float16.onnx": partial(decoder, "float16", int4=True),
}
