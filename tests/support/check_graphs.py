"""Small decoders as graphs, truthful ones and ones with one thing made wrong, and what is true.

Truth is what plain onnxruntime does with the graph in a program's calls, held against attention in
NumPy. It shares nothing with the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

HEADS, KV_HEADS, SIZE, WIDTH, ROWS = 4, 2, 16, 32, 32
Array = np.ndarray


@dataclass(frozen=True)
class Kind:
    """What a decoder has."""

    name: str
    dtype: type = np.float32
    window: int = 0
    rotary: bool = False
    static: bool = False
    projected: bool = False
    masked: bool = False
    layers: int = 1

    @property
    def element(self) -> int:
        return int(h.np_dtype_to_tensor_dtype(np.dtype(self.dtype)))


KINDS = (
    Kind("plain"),
    Kind("rotary", rotary=True),
    Kind("projected", projected=True, rotary=True),
    Kind("masked", projected=True, masked=True, rotary=True, layers=2),
    Kind("static", static=True),
    Kind("window", window=4, rotary=True),
    Kind("half", dtype=np.float16, rotary=True, masked=True),
)


def tables() -> tuple[Array, Array]:
    angles = np.outer(np.arange(64), 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
    return np.cos(angles), np.sin(angles)


def weights(layer: int) -> dict[str, Array]:
    draws = np.random.default_rng(layer)
    widths = {"q": HEADS * SIZE, "k": KV_HEADS * SIZE, "v": KV_HEADS * SIZE}
    return {name: draws.standard_normal((WIDTH, width)) * 0.3 for name, width in widths.items()}


#: What exporters make of the mask: the last position of each sequence, and the longest length.
LENGTHS = """
    count = ReduceSum <keepdims = 0> (attention_mask, one)
    last = Sub (count, one)
    seqlens_k = Cast <to = 6> (last)
    mask_shape = Shape (attention_mask)
    width = Gather (mask_shape, first)
    total = Cast <to = 6> (width)
"""


def graph_of(kind: Kind) -> onnx.ModelProto:
    """A truthful graph."""
    of = "float16" if kind.dtype == np.float16 else "float"
    rows, after = (ROWS, ROWS) if kind.static else ("past", "all_rows")
    takes = [f"{of}[batch, new, {WIDTH}] x"] if kind.projected else []
    takes += ["int64[batch, all] attention_mask"] if kind.masked else []
    takes += [] if kind.masked else ["int32[batch] seqlens_k", "int32 total"]
    constants = {"one": np.array([1]), "first": np.array(1)} if kind.masked else {}
    if kind.rotary:
        constants |= {name: tables()[place] for place, name in enumerate(("cos", "sin"))}
    attributes = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}"
    attributes += f", local_window_size = {kind.window}" if kind.window else ""
    attributes += ", do_rotary = 1" if kind.rotary else ""
    gives, made = [], LENGTHS if kind.masked else ""
    for layer in range(kind.layers):
        for part, weight in weights(layer).items():
            if kind.projected:
                constants[f"w{part}.{layer}"] = weight
                made += f"{part}__{layer} = MatMul (x, w{part}__{layer})\n"
            else:
                takes.append(f"{of}[batch, new, {weight.shape[1]}] {part}__{layer}")
        cache = f"{{}}__{layer}__key", f"{{}}__{layer}__value"
        pasts, presents = ([each.format(name) for each in cache] for name in ("past", "present"))
        takes += [f"{of}[batch, {KV_HEADS}, {rows}, {SIZE}] {name}" for name in pasts]
        gives.append(f"{of}[batch, new, {HEADS * SIZE}] out__{layer}")
        gives += [f"{of}[batch, {KV_HEADS}, {after}, {SIZE}] {name}" for name in presents]
        given = [*(f"{part}__{layer}" for part in "qkv"), *pasts, "seqlens_k", "total"]
        given += ["cos", "sin"] if kind.rotary else []
        attention = f"com.microsoft.GroupQueryAttention <{attributes}> ({', '.join(given)})"
        made += f"out__{layer}, {', '.join(presents)} = {attention}\n"
    graph = parsed(f"main ({', '.join(takes)}) => ({', '.join(gives)}) {{ {made} }}")
    for name, array in constants.items():
        whole = array.dtype.kind == "i"
        graph.initializer.append(nh.from_array(array if whole else array.astype(kind.dtype), name))
    for layer, node in enumerate(node for node in graph.node if node.domain):
        node.name = f"/model/layers.{layer}/attn"
    opsets = [h.make_opsetid("", 21), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10)


def parsed(text: str) -> onnx.GraphProto:
    """A graph in ONNX's own language, which has no dots in names: they are written as ``__``."""
    graph = onnx.parser.parse_graph(text)
    for value in (*graph.input, *graph.output):
        value.name = value.name.replace("__", ".")
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("__", ".") for name in names]
    return graph


def nodes(text: str) -> list[onnx.NodeProto]:
    """Nodes in ONNX's own language."""
    return [*parsed(f"g () => () {{ {text} }}").node]


def put_in_front(
    model: onnx.ModelProto,
    made: Sequence[onnx.NodeProto],
    *,
    renamed: Mapping[str, str] | None = None,
    **constants: object,
) -> None:
    """Put nodes in front of those of the model, which then read values that are ``renamed``.

    ``constants`` are values of integers that they read.
    """
    graph, names = model.graph, renamed or {}
    graph.initializer.extend(nh.from_array(np.array(v, np.int64), n) for n, v in constants.items())
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    every = [*made, *graph.node]
    del graph.node[:]
    graph.node.extend(every)


def changes(truthful: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Copies with one thing made wrong, or at least other, in each."""

    def copied() -> onnx.ModelProto:
        copy = onnx.ModelProto()
        copy.CopyFrom(truthful)
        return copy

    for side in ("input", "output"):
        for place, value in enumerate(getattr(truthful.graph, side)):
            for name, change in _changes_of(value):
                model = copied()
                change(getattr(model.graph, side)[place])
                yield f"{value.name}_{name}", model
    at = next(n for n, node in enumerate(truthful.graph.node) if node.domain == "com.microsoft")
    inputs = truthful.graph.node[at].input
    for place in range(len(inputs)):
        others = {"left_out": "", "is_of_nothing": "nowhere"}
        if place != 1:  # one tensor as key and as value is another model, and no mistake
            others["twice"] = inputs[(place + 1) % len(inputs)]
        for name, other in others.items():
            (model := copied()).graph.node[at].input[place] = other
            yield f"input_{place}_{name}", model
    for name, number in (
        *(("num_heads", 2), ("num_heads", 8), ("kv_num_heads", 1), ("kv_num_heads", 4)),
        *(("do_rotary", 1), ("kv_cache_bit_width", 4), ("unknown", 1)),
    ):
        attributes = (model := copied()).graph.node[at].attribute
        kept = [each for each in attributes if each.name != name]
        del attributes[:]
        attributes.extend([*kept, h.make_attribute(name, number)])
        yield f"{name}_is_{number}", model
    for version in (99, 14):
        (model := copied()).ir_version = version
        yield f"ir_version_{version}", model
    for place in (0, 1):
        (model := copied()).opset_import[place].version = 99
        yield f"opset_{place}_of_99", model
    (model := copied()).graph.node.append(model.graph.node[-1])
    yield "a_name_twice", model
    for length, of_a_prompt in (("seqlens_k", np.array([5])), ("total", np.array(6))):
        for what, shift in (("too_large", 1), ("too_small", -1)):
            model = copied()
            put_in_front_of_attention(model, length, h.make_node("Add", [length, "by"], ["other"]))
            model.graph.initializer.append(nh.from_array(np.array(shift, np.int32), "by"))
            yield f"{length}_{what}", model
        put_in_front_of_attention(model := copied(), length)
        model.graph.initializer.append(nh.from_array(of_a_prompt.astype(np.int32), "other"))
        yield f"{length}_constant", model


Change = Callable[[onnx.ValueInfoProto], object]


def _changes_of(value: onnx.ValueInfoProto) -> Iterator[tuple[str, Change]]:
    """Changes of an input or output of the graph."""
    Dim = onnx.TensorShapeProto.Dimension

    def at(axis: int, other: onnx.TensorShapeProto.Dimension) -> Change:
        return lambda value: value.type.tensor_type.shape.dim[axis].CopyFrom(other)

    def of_type(kind: int) -> Change:
        return lambda value: setattr(value.type.tensor_type, "elem_type", kind)

    shape = value.type.tensor_type.shape
    for axis, dim in enumerate(shape.dim):
        for size in (dim.dim_value + 1, dim.dim_value * 2) if dim.dim_value else (1, 5):
            yield f"{axis}_is_{size}", at(axis, Dim(dim_value=size))
        yield f"{axis}_is_x", at(axis, Dim(dim_param="x"))
    for kind in (T.FLOAT16, T.FLOAT, T.INT64, T.INT32):
        if kind != value.type.tensor_type.elem_type:
            yield f"is_{T.DataType.Name(kind)}", of_type(kind)
    if shape.dim:
        yield "without_a_dim", lambda value: value.type.tensor_type.shape.dim.pop()
    yield "with_a_dim", lambda value: value.type.tensor_type.shape.dim.add(dim_value=1)
    yield "renamed", lambda value: setattr(value, "name", f"{value.name}_other")


def put_in_front_of_attention(model: onnx.ModelProto, length: str, *made: onnx.NodeProto) -> None:
    """Let all attention read ``other`` in place of a length, which ``made`` may make."""
    nodes = model.graph.node
    attention = [at for at, node in enumerate(nodes) if node.domain == "com.microsoft"]
    for at in attention:
        nodes[at].input[:] = ["other" if name == length else name for name in nodes[at].input]
    for node in made:
        nodes.insert(attention[0], node)


# Truth


def is_right(model: onnx.ModelProto, kind: Kind) -> bool:
    """Whether plain onnxruntime computes one chat of the graph right."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        content = model.SerializeToString()
        session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
        return _chat(session, kind)
    except Exception:  # whatever onnxruntime raises, it does not run
        return False


def _chat(session: Any, kind: Kind) -> bool:
    declared = {each.name: each for each in session.get_inputs()}
    main = next((n for n in declared if n.startswith(("x", "q."))), None)
    if main is None:
        return False
    shape = declared[main].shape
    firsts = (each.shape[0] for each in declared.values() if each.shape)
    batch = next((size for size in firsts if isinstance(size, int)), 1)
    fixed = shape[1] if len(shape) == 3 and isinstance(shape[1], int) else None
    lengths = [fixed, fixed] if fixed else [6, 1, 1]
    tokens = sum(lengths)
    draws = np.random.default_rng(5)
    source = draws.standard_normal((batch, tokens, WIDTH))
    layers = [_projected(source, layer, kind) for layer in range(kind.layers)]
    expected = [_attention(*each, kind) for each in layers]
    caches: dict[str, Array] = {}
    before = 0
    for new in lengths:
        now = slice(before, before + new)
        feeds: dict[str, Array] = {}
        for name, each in declared.items():
            feeds[name] = _feed(name, each, kind, layers, source[:, now], now, caches)
        names = [each.name for each in session.get_outputs()]
        results = dict(zip(names, session.run(names, feeds), strict=True))
        for layer, right in enumerate(expected):
            out = results.get(f"out.{layer}", results.get(f"out.{layer}_other"))
            limit = 2e-2 if kind.dtype == np.float16 else 1e-4
            if out is None or not np.allclose(out, right[:, now], atol=limit, rtol=limit):
                return False
        caches = {name.removesuffix("_other"): array for name, array in results.items()}
        before += new
    return True


def _feed(
    name: str,
    declared: Any,
    kind: Kind,
    layers: list[tuple[Array, Array, Array]],
    x: Array,
    now: slice,
    caches: dict[str, Array],
) -> Array:
    plain, batch = name.removesuffix("_other"), len(x)
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    dtype = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, **types}[declared.type]
    if plain.startswith("past."):
        present = caches.get(plain.replace("past.", "present."))
        if present is not None:
            return present.astype(dtype)
        shape = [
            dim if isinstance(dim, int) else (batch, KV_HEADS, ROWS * kind.static, SIZE)[axis]
            for axis, dim in enumerate(declared.shape)
        ]
        return np.zeros(shape, dtype)
    if plain[:2] in ("q.", "k.", "v."):
        array: Array = layers[int(plain[2:])]["qkv".index(plain[0])][:, now]
    else:
        array = {
            "x": x,
            "attention_mask": np.ones((batch, now.stop)),
            "seqlens_k": np.full(batch, now.stop - 1),
            "total": np.array(now.stop),
        }[plain]
    if array.ndim != len(declared.shape):
        array = array.reshape((*array.shape, 1)) if plain != "total" else array.reshape(1)
    return array.astype(dtype)


def _projected(source: Array, layer: int, kind: Kind) -> tuple[Array, Array, Array]:
    parts = (source @ weight for weight in weights(layer).values())
    q, k, v = (each.astype(kind.dtype).astype(float) for each in parts)
    return q, k, v


def _attention(q: Array, k: Array, v: Array, kind: Kind) -> Array:
    batch, tokens, _ = q.shape
    q, k, v = (each.reshape(batch, tokens, -1, SIZE).swapaxes(1, 2) for each in (q, k, v))
    if kind.rotary:
        q, k = _rotated(q), _rotated(k)
    k, v = (np.repeat(each, HEADS // KV_HEADS, 1) for each in (k, v))
    scores = q @ k.swapaxes(2, 3) / SIZE**0.5
    at = np.arange(tokens)
    hidden = at[None] > at[:, None]
    if kind.window:
        hidden |= at[None] <= at[:, None] - kind.window
    scores = np.where(hidden, -np.inf, scores)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    out = powers / powers.sum(-1, keepdims=True) @ v
    return np.asarray(out.swapaxes(1, 2).reshape(batch, tokens, -1))


def _rotated(x: Array) -> Array:
    cos, sin = (table[: x.shape[2]] for table in tables())
    one, two = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], -1)
