"""Small decoders in pairs: a valid one, and one that is wrong in one thing.

A ``Decoder`` says what a model has, ``graph_of`` writes it as exporters write such models, and
``logits`` computes it in NumPy: dense attention over all tokens in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Array = np.ndarray[Any, Any]
WORDS, WIDTH, ROWS, TABLE, MS = 61, 32, 64, 128, "com.microsoft"
CACHES = ("int8 tensor", "int8 channel", "qdq", "trimmed", "sliding")
#: Where LongRoPE and the other scalings begin.
ORIGINAL = 32
SHORT, LONG = np.geomspace(1, 2, 16), np.geomspace(1, 30, 16)
INPUTS = (
    *("query", "key", "value", "past_key", "past_value", "seqlens_k", "total", "cos", "sin"),
    *("position_ids", "bias", "sink", "k_scale", "v_scale", "q_norm", "k_norm"),
)


def one_of(*values: Any) -> Any:
    """A field with these values to draw: the first is usual."""
    return field(metadata={"values": values})


@dataclass(frozen=True)
class Decoder:
    """What a decoder has. ``fault`` is what its graph has wrong beside that, and ``branch`` what
    one branch of an If has in place of the node's attributes."""

    seed: int
    layers: int = one_of(1, 2, 2, 2, 3, 4)
    heads: int = one_of(4, 4, 8)
    kv: int = one_of(1, 2, 2, 4)
    size: int = one_of(16, 16, 32)
    half: bool = one_of(False, False, False, True)
    window: int = one_of(0, 0, 0, 4, 5, 7)
    pattern: str = one_of("all", "odd", "even")
    rotary: str = one_of("node", "node", "node", "op", "op", "hand", "none", "node_ids")
    base: float = one_of(1e4, 1e4, 5e5, 100.0)
    local_base: float = one_of(*(0.0,) * 6, 50.0)
    unrotated: str = one_of(*("",) * 8, "even", "odd")
    scaling: str = one_of(*("",) * 8, "linear", "yarn", "llama3", "longrope")
    interleaved: bool = one_of(False, False, False, True)
    partial: float = one_of(1.0, 1.0, 1.0, 0.5)
    offset: int = one_of(0, 0, 0, 3)
    packed: bool = one_of(False, False, False, True)
    norm: str = one_of("", "", "", "before", "after")
    softcap: float = one_of(0.0, 0.0, 0.0, 2.0)
    sink: str = one_of("", "", "", "", "sink", "smooth")
    scale: float = one_of(0.0, 0.0, 0.0, 0.4)
    lengths: str = one_of("mask", "mask", "mask", "shape", "positions", "given")
    bias: str = one_of("", "", "", "", "pad", "causal", "pad causal")
    positions: str = one_of("input", "input", "graph")
    cache: str = one_of(*("growing",) * 7, *("static",) * 2, *CACHES)
    borrow: str = one_of(*("",) * 8, "constant", "slice", "identity")
    wrap: str = one_of(*("",) * 8, "if new", "if past", "loop", "function")
    embeds: bool = one_of(False, False, False, True)
    types: str = one_of(*("",) * 8, "embed", "block")
    beams: bool = one_of(*(False,) * 8, True)
    standard: bool = one_of(*(False,) * 8, True)
    fault: str = ""
    branch: tuple[tuple[str, Any], ...] = ()
    pipeline: bool = False

    @property
    def dtype(self) -> type:
        return np.float16 if self.half else np.float32

    @property
    def rotated(self) -> int:
        """How many elements of a head are rotated."""
        return int(self.size * self.partial)

    @property
    def in_graph(self) -> bool:
        """Whether rotation is in front of the node."""
        return self.rotary in ("op", "hand")

    @property
    def takes_mask(self) -> bool:
        return self.lengths == "mask" or "pad" in self.bias or self.fault == "mask ignored"

    def window_of(self, layer: int) -> int:
        """The window of a layer, 0 if it has none."""
        sees = {"all": True, "odd": layer % 2 == 1, "even": layer % 2 == 0}[self.pattern]
        return self.window if sees else 0

    def turns(self, layer: int) -> bool:
        """Whether a layer has positions."""
        return self.rotary != "none" and self.unrotated != ("odd" if layer % 2 else "even")

    def base_of(self, layer: int) -> float:
        """The base of a layer's angles."""
        return (self.window_of(layer) and self.local_base) or self.base

    def source_of(self, layer: int) -> int:
        """The layer whose cache a layer reads: its own, or in the later half the one before it."""
        half = (self.layers + 1) // 2
        if not self.borrow or layer < half:
            return layer
        wrong = self.fault == "borrowed from another layer"
        return (layer - half + wrong) % half

    def is_standard(self, layer: int) -> bool:
        """Whether a layer is ONNX's Attention."""
        return self.standard and (self.source_of(layer) != layer if self.borrow else layer % 2 == 1)


CHOICES = {each.name: each.metadata["values"] for each in fields(Decoder) if each.metadata}


def is_sound(d: Decoder) -> bool:
    """Whether the parts go together: those that do not are no fault of a graph."""
    by_ids = d.in_graph and d.positions == "input"
    growing, last = d.cache in ("growing", "qdq"), d.layers - 1
    rules = (
        d.heads % d.kv == 0 and d.heads * d.size <= 128 and not (d.kv == d.heads == 8),
        d.partial == 1 or d.size == 32,
        d.rotary != "hand" or not (d.interleaved or d.scaling == "longrope"),
        d.rotary != "none" or not (d.scaling or d.offset or d.interleaved or d.partial < 1),
        not d.offset or d.in_graph or (d.rotary == "node" and not d.scaling),
        d.scaling != "longrope" or (d.partial == 1 and d.size == 32 and d.lengths != "given"),
        d.scaling != "longrope" or (d.cache not in ("trimmed",) and d.wrap == ""),
        d.norm != "after" or (d.in_graph and not d.offset),
        d.positions == "input" or not d.in_graph or d.cache not in ("static", "sliding"),
        not d.packed or (d.rotary in ("node", "none") and not (d.norm or d.borrow)),
        not d.packed or (not d.standard and d.wrap != "loop"),
        d.rotary != "node_ids" or (d.cache == "growing" and "pad" not in d.bias),
        not d.bias or (d.lengths == "shape" and growing and not d.standard and not d.window),
        d.lengths != "shape" or growing or d.cache in ("trimmed", "int8 tensor", "int8 channel"),
        d.types != "block" or d.bias in ("causal", "pad causal"),
        d.cache != "trimmed"
        or (d.window and d.pattern == "all" and d.lengths == "shape" and not d.bias and by_ids),
        d.cache != "sliding" or (d.window and d.pattern == "all" and d.lengths == "mask"),
        d.cache not in ("trimmed", "sliding") or not (d.beams or d.borrow or d.standard),
        growing or not d.borrow,
        not d.cache.startswith("int8") or not d.half,
        not d.beams or d.wrap != "loop",
        d.cache != "qdq" or not d.half,
        not d.borrow or (d.layers > 1 and d.wrap in ("", "if new", "function")),
        d.wrap != "loop"
        or (d.cache == "growing" and d.pattern == "all" and d.layers > 1 and not d.standard),
        not d.standard
        or (d.cache == "growing" and d.lengths == "mask" and by_ids and d.layers > 1),
        not d.standard or not (d.sink or d.wrap or d.types == "block"),
        not (d.standard and d.softcap and d.half),
        not d.local_base
        or (
            (d.window and d.pattern != "all" and d.rotary != "none" and d.layers > 1)
            and not (d.scaling or d.wrap == "loop" or d.borrow)
        ),
        not d.unrotated
        or (
            (d.rotary != "none" and d.layers > 1 and not d.borrow)
            and not (d.wrap == "loop" or d.scaling)
        ),
        not d.pipeline or (d.cache == "static" and d.lengths == "given" and not d.wrap),
        not d.window or d.pattern != "odd" or last > 0,
    )
    return all(rules)


def drawn(rng: np.random.Generator, needs: dict[str, Any]) -> Decoder:
    """A decoder that has what is needed."""
    names = {name: values for name, values in CHOICES.items() if name not in needs}
    for _ in range(200_000):
        usual = rng.random() < 0.5  # half of the time only few things are unusual
        chosen = {
            name: values[0]
            if usual and name not in ("layers", "heads", "size") and rng.random() < 0.7
            else values[int(rng.integers(len(values)))]
            for name, values in names.items()
        }
        decoder = Decoder(seed=int(rng.integers(1 << 30)), **{**chosen, **needs})
        if is_sound(decoder):
            return decoder
    raise ValueError(f"nothing sound has {needs}")


def usual(**others: Any) -> Decoder:
    """A decoder of two layers with what is usual, but for what is given."""
    first = {name: values[0] for name, values in CHOICES.items()}
    return Decoder(**{**first, "seed": 5, "layers": 2, "kv": 2, **others})


# What is computed


def weights(d: Decoder) -> dict[str, Array]:
    """All weights, as the graph's dtype holds them, in float64."""
    rng = np.random.default_rng(d.seed)
    wide, narrow = d.heads * d.size, d.kv * d.size
    shapes = {"embed": (WORDS, WIDTH), "types": (2, WIDTH), "head": (WIDTH, WORDS)}
    for i in range(d.layers):
        shapes |= {f"q{i}": (WIDTH, wide), f"k{i}": (WIDTH, narrow), f"v{i}": (WIDTH, narrow)}
        shapes |= {f"o{i}": (wide, WIDTH)}
    made: dict[str, Array] = {}
    rounds = d.cache.startswith("int8") or d.cache == "qdq"
    for name, shape in shapes.items():
        grows = 1.0 if name in ("embed", "types") else shape[0] ** -0.5
        grows *= 1.4 if name[0] in "qk" and not rounds else 1.0
        made[name] = rng.standard_normal(shape) * grows
    for i in range(d.layers):
        made |= {f"{part}_norm{i}": rng.uniform(0.4, 1.8, d.size) for part in "qk"}
        made[f"sink{i}"] = rng.uniform(0.5, 3, d.heads)
    return {name: each.astype(d.dtype).astype(np.float64) for name, each in made.items()}


def frequencies(d: Decoder, long: bool = False, layer: int = 0) -> tuple[Array, float]:
    """The angle of each pair for one position, and the factor of the tables."""
    inverse = d.base_of(layer) ** (-np.arange(0, d.rotated, 2) / d.rotated)
    if d.scaling == "linear":
        return inverse / 4, 1.0
    if d.scaling == "longrope":
        factors = (LONG if long else SHORT)[: len(inverse)]
        return inverse / factors, math.sqrt(1 + math.log(4) / math.log(ORIGINAL))
    if d.scaling == "llama3":
        smooth = np.clip((ORIGINAL * inverse / (2 * math.pi) - 1) / 3, 0, 1)
        return (1 - smooth) * inverse / 8 + smooth * inverse, 1.0
    if d.scaling.startswith("yarn"):

        def turns(number: float) -> float:
            whole = math.log(ORIGINAL / (number * 2 * math.pi)) / math.log(d.base)
            return d.rotated * whole / 2

        low, high = max(math.floor(turns(32)), 0), min(math.ceil(turns(1)), d.rotated - 1)
        ramp = np.clip((np.arange(d.rotated // 2) - low) / max(high - low, 1e-3), 0, 1)
        factor = 0.1 * math.log(16) + 1 if d.scaling == "yarn" else 1.0
        return inverse / 16 * ramp + inverse * (1 - ramp), factor
    return inverse, 1.0


def tables(d: Decoder, long: bool = False, layer: int = 0) -> tuple[Array, Array]:
    """cos and sin for the positions 0, 1, …"""
    inverse, factor = frequencies(d, long, layer)
    angles = np.outer(np.arange(TABLE), inverse)
    return np.cos(angles) * factor, np.sin(angles) * factor


def logits(d: Decoder, w: dict[str, Array], ids: Array, types: Array) -> Array:
    """What the decoder gives for each token of one sequence."""
    n = len(ids)
    x = w["embed"][ids] + (w["types"][types] if d.types == "embed" else 0)
    at = np.arange(n)
    causal = at[None] <= at[:, None]
    if d.types == "block":
        causal = causal | (types[None] & types[:, None] > 0)
    kept: dict[int, tuple[Array, Array]] = {}
    for i in range(d.layers):
        y = _normed(x)
        q = _positioned(d, (y @ w[f"q{i}"]).reshape(n, d.heads, d.size), w[f"q_norm{i}"], n, i)
        source = d.source_of(i)
        if source == i:
            k = _positioned(d, (y @ w[f"k{i}"]).reshape(n, d.kv, d.size), w[f"k_norm{i}"], n, i)
            kept[i] = k, (y @ w[f"v{i}"]).reshape(n, d.kv, d.size)
        keys, values = (np.repeat(each, d.heads // d.kv, 1) for each in kept[source])
        scores = np.einsum("ihd,jhd->hij", q, keys) * (d.scale or d.size**-0.5)
        if d.softcap:
            scores = d.softcap * np.tanh(scores / d.softcap)
        window = d.window_of(i)
        sees = causal & (at[None] > at[:, None] - window) if window else causal
        scores = np.where(sees, scores, -np.inf)
        extra = {"sink": w[f"sink{i}"], "smooth": np.zeros(d.heads)}.get(d.sink)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        sums = powers.sum(-1, keepdims=True)
        if extra is not None:
            sums = sums + np.exp(extra[:, None, None] - scores.max(-1, keepdims=True))
        out = np.einsum("hij,jhd->ihd", powers / sums, values)
        x = x + out.reshape(n, -1) @ w[f"o{i}"]
    return np.asarray(_normed(x) @ w["head"])


def _normed(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))


def _positioned(d: Decoder, x: Array, norm: Array, n: int, layer: int) -> Array:
    """Heads with norm and rotation: [tokens, heads, size]."""
    if d.norm in ("before", "node"):
        x = _normed(x) * norm
    if d.turns(layer):
        cos, sin = (each[:n, None] for each in tables(d, n > ORIGINAL, layer))
        half, y = d.rotated // 2, x.copy()
        one = slice(0, 2 * half, 2) if d.interleaved else slice(0, half)
        two = slice(1, 2 * half, 2) if d.interleaved else slice(half, 2 * half)
        y[..., one] = x[..., one] * cos - x[..., two] * sin
        y[..., two] = x[..., two] * cos + x[..., one] * sin
        x = y
    return _normed(x) * norm if d.norm == "after" else x


# How it is written


class Graph:
    """Nodes, weights, inputs and outputs of a graph in the making."""

    def __init__(self, d: Decoder, new: int = 0) -> None:
        self.d, self.new, self.w = d, new, weights(d)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.element = T.FLOAT16 if d.half else T.FLOAT
        self.numbers = count()
        self.made: dict[str, str] = {}

    def op(self, kind: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """A node with one output, which is returned."""
        outs = [out or f"{kind}_{next(self.numbers)}"]
        return self.ops(kind, *inputs, outs=outs, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outs: Sequence[str], **attributes: Any) -> Sequence[str]:
        name = attributes.pop("name", f"/{outs[0]}")
        self.nodes.append(h.make_node(kind, inputs, outs, name=name, **attributes))
        return outs

    def const(self, array: Any, dtype: Any = np.int64, name: str = "") -> str:
        """An initializer: whole numbers, unless a dtype is given."""
        array = np.asarray(array, dtype)
        dims = "x".join(map(str, array.shape))
        name = name or f"{array.dtype}_{dims}_{crc32(array.tobytes()):08x}"
        self.weights.setdefault(name, nh.from_array(array, name))
        return name

    def weight(self, name: str) -> str:
        return self.const(self.w[name], self.d.dtype, f"model.{name}.weight")

    def takes(self, name: str, element: int, *dims: str | int) -> str:
        self.inputs.append(h.make_tensor_value_info(name, element, dims))
        return name

    def gives(self, name: str, element: int, *dims: str | int) -> str:
        self.outputs.append(h.make_tensor_value_info(name, element, dims))
        return name

    def once(self, what: str, make: Callable[[], str]) -> str:
        """The value of this name, made at its first use."""
        if what not in self.made:
            self.made[what] = make()
        return self.made[what]

    def side(self, what: str, of: str, axis: int) -> str:
        """The length of one axis of an input."""
        return self.once(what, lambda: self.op("Shape", of, start=axis, end=axis + 1))

    def past_rows(self) -> str:
        stacked = self.d.wrap == "loop"
        return self.side("past", *(("past_keys", 3) if stacked else ("past_key_values.0.key", 2)))

    def new_rows(self) -> str:
        return self.side("new", self.inputs[0].name, 1)

    def batch(self) -> str:
        return self.side("batch", self.inputs[0].name, 0)

    def all_rows(self) -> str:
        return self.once("all", lambda: self.op("Add", self.past_rows(), self.new_rows()))

    def scalar(self, value: str) -> str:
        return self.once(f"scalar {value}", lambda: self.op("Squeeze", value))

    def columns(self) -> str:
        """0, 1, … for each row of the cache."""
        ends = self.const(0), self.scalar(self.all_rows()), self.const(1)
        return self.once("columns", lambda: self.op("Range", *ends))

    def own_columns(self) -> str:
        """The column of each new token."""
        first, end = self.scalar(self.past_rows()), self.scalar(self.all_rows())
        if self.d.fault == "positions restart":
            first, end = self.const(0), self.scalar(self.new_rows())
        return self.once("own", lambda: self.op("Range", first, end, self.const(1)))

    def lengths(self) -> tuple[str, str]:
        """seqlens_k and total_sequence_length."""
        d = self.d
        by = {"a count for an index": 0, "lengths short by one": 2}.get(d.fault, 1)
        if d.lengths == "given":
            return "past_seq_len", "total_seq_len"
        if d.lengths == "mask":
            counts = self.op("ReduceSum", "attention_mask", self.const([1]), keepdims=0)
            shape = self.op("Shape", "attention_mask")
            total = self.op("Gather", shape, self.const(1))
        elif d.lengths == "positions":
            last = self.op("ReduceMax", "position_ids", self.const([1]), keepdims=0)
            counts = self.op("Add", last, self.const(1))
            total = self.op("ReduceMax", counts, keepdims=0)
        else:
            counts = self.op("Expand", self.all_rows(), self.batch())
            total = self.scalar(self.all_rows())
        if d.fault == "lengths of the widest row":
            counts = self.op("Expand", total, self.batch())
        if d.fault == "total too large":
            total = self.op("Add", total, self.const(1))
        less = self.op("Sub", counts, self.const([by])) if by else counts
        return self.op("Cast", less, to=T.INT32), self.op("Cast", total, to=T.INT32)

    def bias(self) -> str:
        """0 where a token is seen, else a large negative number: [batch, 1, new, all]."""
        d = self.d
        shown: list[str] = []
        if "causal" in d.bias and d.fault != "bias without its causal part":
            own = self.op("Unsqueeze", self.own_columns(), self.const([1]))
            pair = (own, self.columns()) if d.fault != "bias transposed" else (self.columns(), own)
            shown.append(self.op("GreaterOrEqual", *pair))
            if d.types == "block":
                shown = [self.op("Or", *shown, self.block())]
        if "pad" in d.bias and d.fault != "bias without padding":
            mask = "attention_mask"
            if d.fault == "bias one token off":
                axis, one, end = self.const([1]), self.const([-1]), self.const([2**31])
                last = self.op("Slice", mask, one, end, axis)
                first = self.op("Slice", mask, self.const([0]), one, axis)
                mask = self.op("Concat", last, first, axis=1)
            real = self.op("Cast", mask, to=T.BOOL)
            shown.append(self.op("Unsqueeze", real, self.const([1, 2])))
        one = self.const([1])
        shape = self.op("Concat", self.batch(), one, self.new_rows(), self.all_rows(), axis=0)
        sees = shown[0] if shown else self.const(True, bool)
        for other in shown[1:]:
            sees = self.op("And", sees, other)
        low = self.const(-6e4 if d.half else -3e38, d.dtype)
        return self.op("Expand", self.op("Where", sees, self.const(0, d.dtype), low), shape)

    def block(self) -> str:
        """Pairs of tokens of type 1: [batch, 1, new, all]."""
        shape = self.op("Concat", self.batch(), self.past_rows(), axis=0)
        zeros = self.op("ConstantOfShape", shape, value=nh.from_array(np.array([0]), ""))
        of_all = self.op("Cast", self.op("Concat", zeros, "token_type_ids", axis=1), to=T.BOOL)
        of_new = self.op("Cast", "token_type_ids", to=T.BOOL)
        rows = self.op("Unsqueeze", of_new, self.const([1, 3]))
        kind = "Or" if self.d.fault == "types by or" else "And"
        return self.op(kind, rows, self.op("Unsqueeze", of_all, self.const([1, 2])))

    def position_ids(self, keys: bool) -> str:
        """Positions for rotation in the graph: [batch, new]."""
        d = self.d
        if d.positions == "input" and d.fault != "positions restart":
            at = "position_ids"
        else:
            own = self.own_columns()
            shape = self.once(
                "bs", lambda: self.op("Concat", self.batch(), self.new_rows(), axis=0)
            )
            at = self.once("expanded", lambda: self.op("Expand", own, shape))
        more = d.offset + (2 if keys and d.fault == "positions of keys shifted" else 0)
        if more:
            at = self.once(f"{at}+{more}", lambda: self.op("Add", at, self.const(more)))
        return at

    def tables(self, layer: int) -> tuple[str, str]:
        """cos and sin."""
        d = self.d
        first, local = 0 if d.in_graph else d.offset, d.base_of(layer) != d.base
        names = ("cos_cache_local", "sin_cache_local") if local else ("cos_cache", "sin_cache")
        cos, sin = (
            self.const(each[first:], d.dtype, name)
            for each, name in zip(tables(d, False, layer), names, strict=True)
        )
        if d.scaling == "longrope":

            def branch(long: bool) -> onnx.GraphProto:
                names = [f"{name}_{'long' if long else 'short'}" for name in ("cos", "sin")]
                made = [
                    h.make_node("Constant", [], [n], value=nh.from_array(t.astype(d.dtype)))
                    for n, t in zip(names, tables(d, long), strict=True)
                ]
                outs = [h.make_tensor_value_info(n, self.element, None) for n in names]
                return h.make_graph(made, names[0], [], outs)

            def switched() -> str:
                of = self.all_rows() if d.lengths == "shape" else self.lengths_made[1]
                if d.fault == "tables switched by the new tokens":
                    of = self.new_rows()
                many = self.op("Cast", of, to=T.INT64)
                is_long = self.op("Greater", self.op("Squeeze", many), self.const(ORIGINAL))
                swap = d.fault == "branches of the tables swapped"
                then, other = branch(not swap), branch(swap)
                kinds = {"then_branch": then, "else_branch": other}
                self.ops("If", is_long, outs=["cos_now", "sin_now"], **kinds)
                return "cos_now"

            cos, sin = self.once("switched", switched), "sin_now"
        if d.fault == "tables cut at the position":
            end, axis, past = self.const([2**31]), self.const([0]), self.past_rows()
            cos = self.once(f"cut {cos}", lambda: self.op("Slice", cos, past, end, axis))
            sin = self.once(f"cut {sin}", lambda: self.op("Slice", sin, past, end, axis))
        return (sin, cos) if d.fault == "cos and sin swapped" else (cos, sin)

    def rotation(self, x: str, heads: int, keys: bool, layer: int = 0) -> str:
        """Rotation in the graph, by an operator or by hand."""
        d, at = self.d, self.position_ids(keys)
        if d.rotary == "op":
            part = {"rotary_embedding_dim": d.rotated} if d.partial < 1 else {}
            kinds = {"num_heads": heads, "interleaved": int(d.interleaved), **part}
            return self.op("RotaryEmbedding", x, at, *self.tables(layer), domain=MS, **kinds)
        inverse, factor = frequencies(d, False, layer)
        at_base = f"{at} {d.base_of(layer)}"

        def angles() -> str:
            floats = self.op("Cast", self.op("Unsqueeze", at, self.const([2, 3])), to=T.FLOAT)
            return self.op("Mul", floats, self.const(inverse, np.float32))

        made = self.once(f"angles {at_base}", angles)

        def table(kind: str) -> str:
            wide = self.op("Mul", self.op(kind, made), self.const(factor, np.float32))
            return self.op("Cast", wide, to=self.element)

        cos, sin = (
            self.once(f"{kind} {at_base}", lambda kind=kind: table(kind))  # type: ignore[misc]
            for kind in ("Cos", "Sin")
        )
        if d.fault == "cos and sin swapped":
            cos, sin = sin, cos
        half = d.rotated // 2
        widths = [half, half] + ([d.size - d.rotated] if d.partial < 1 else [])
        four = self.op("Reshape", x, self.const([0, 0, heads, d.size]))
        names = [f"{four}_{n}" for n in range(len(widths))]
        one, two, *rest = self.ops("Split", four, self.const(widths), outs=names, axis=-1)
        left = self.op("Sub", self.op("Mul", one, cos), self.op("Mul", two, sin))
        right = self.op("Add", self.op("Mul", two, cos), self.op("Mul", one, sin))
        whole = self.op("Concat", left, right, *rest, axis=-1)
        return self.op("Reshape", whole, self.const([0, 0, -1]))

    def normed(self, x: str, weight: str) -> str:
        kind = "SimplifiedLayerNormalization"
        return self.op(kind, x, weight, axis=-1, epsilon=1e-6, stash_type=1)

    def positioned(self, x: str, part: str, layer: str, number: int) -> str:
        """Norm and rotation of queries or keys, as far as they are in the graph."""
        d, heads = self.d, self.d.heads if part == "q" else self.d.kv
        order = ("rotation", "norm") if d.norm == "after" else ("norm", "rotation")
        for step in order:
            if step == "norm" and d.norm in ("before", "after"):
                four = self.op("Reshape", x, self.const([0, 0, heads, d.size]))
                four = self.normed(four, self.of_layer(f"{part}_norm", layer))
                x = self.op("Reshape", four, self.const([0, 0, -1]))
            alone = part == "q" and d.fault == "keys alone turned"
            if step == "rotation" and d.in_graph and d.turns(number) and not alone:
                x = self.rotation(x, heads, part == "k", number)
        return x

    def of_layer(self, what: str, layer: str) -> str:
        """A weight of a layer; in a loop that of all layers, from which one is taken."""
        if layer != "i":
            return self.weight(f"{what}{layer}")
        stacked = np.stack([self.w[f"{what}{n}"] for n in range(self.d.layers)])
        return self.op("Gather", self.const(stacked, self.d.dtype, f"model.{what}.weights"), "i")

    def caches(self, layer: int) -> tuple[list[str], list[str]]:
        """What a node reads as past, and writes as present."""
        d, reads, writes = self.d, [], []
        as8 = d.cache.startswith("int8") or d.cache == "qdq" or d.fault == "cache cast to int8"
        element = T.INT8 if as8 else self.element
        capacity = d.window + 2 * (d.seed % 2)
        rows = {"static": ROWS, "sliding": capacity}.get(d.cache, "past")
        after = rows if isinstance(rows, int) else "kept" if d.cache == "trimmed" else "all"
        kv, size = d.kv, d.size
        if d.fault == "heads of half the size":
            kv, size = kv * 2, size // 2
        for part in ("key", "value"):
            past = self.takes(f"past_key_values.{layer}.{part}", element, "batch", kv, rows, size)
            shown = layer ^ 1 if d.fault == "presents of another layer" else layer
            called = {"key": "value", "value": "key"}[part] if d.fault == "key for value" else part
            present = f"present.{shown if shown < d.layers else layer}.{called}"
            self.gives(present, element, "batch", kv, after, size)
            if d.beams and not (part == "value" and d.fault == "beams of keys alone"):
                past = self.op("Gather", past, "beam_idx", axis=0)
            full, zero = f"full.{layer}.{part}", self.const(0, np.int8)
            then: tuple[str, ...] = ()  # what makes the present of what the node writes
            if d.cache == "qdq":
                past = self.op("DequantizeLinear", past, self.const(0.04, np.float32), zero)
                scale = 0.02 if d.fault == "scales in and out differ" else 0.04
                then = "QuantizeLinear", full, self.const(scale, np.float32), zero
            elif d.fault == "cache cast to int8":
                past = self.op("Cast", past, to=self.element)
                then = "Cast", full
            elif d.cache == "trimmed":
                kept = d.window - 1 - (d.fault == "cache cut too short")
                then = "Slice", full, self.const([-kept]), self.const([2**31]), self.const([2])
            elif d.fault == "past returned as present":
                then = "Identity", past
            self.after += [(*then, present)] if then else []
            reads.append(past)
            writes.append(full if then else present)
        return reads, writes

    def flush(self) -> None:
        for kind, *inputs, out in self.after:
            to = {"to": T.INT8} if kind == "Cast" else {}
            self.op(kind, *inputs, out=out, **to)
        self.after.clear()

    def attend(self, values: dict[str, str], outs: Sequence[str], layer: str, number: int) -> None:
        """The node of a layer, alone, in an If or in a function."""
        d = self.d
        last = max(INPUTS.index(name) for name in values)
        times = 2 if d.fault == "heads of half the size" else 1
        causal = 0 if "causal" in d.bias or d.fault == "causal 0" else 1
        attributes: dict[str, Any] = {
            "num_heads": d.heads * times,
            "kv_num_heads": d.kv * times,
            "local_window_size": (causal and d.window_of(number)) or -1,
            "do_rotary": int("cos" in values),
            "rotary_interleaved": int(d.interleaved and "cos" in values),
            "softcap": d.softcap,
            "smooth_softmax": int(d.sink == "smooth"),
        }
        attributes |= {"causal": 0} if not causal else {}
        attributes |= {"scale": d.scale} if d.scale else {}
        attributes |= {"sliding_window_cache": 1} if d.cache == "sliding" else {}
        if d.fault == "cache of the window's length alone":
            del attributes["sliding_window_cache"]
        if "k_scale" in values:
            kind = "PER_CHANNEL" if "channel" in d.cache else "PER_TENSOR"
            attributes |= {"k_quant_type": kind, "v_quant_type": kind}
            attributes |= {} if d.fault == "no bit width" else {"kv_cache_bit_width": 8}
        name = f"/model/layers.{layer}/attn/GroupQueryAttention"

        def node(outs: Sequence[str], given: dict[str, str], **others: Any) -> onnx.NodeProto:
            inputs = [given.get(each, "") for each in INPUTS[: last + 1]]
            kinds = {**attributes, **others, "domain": MS}
            return h.make_node("GroupQueryAttention", inputs, outs, name=name, **kinds)

        if d.wrap.startswith("if"):
            of, least = (self.new_rows(), 1) if d.wrap == "if new" else (self.past_rows(), 0)
            test = self.once("many", lambda: self.op("Greater", self.scalar(of), self.const(least)))
            branches: dict[str, Any] = {}
            for side, which in ((True, "then_branch"), (False, "else_branch")):
                own = [f"{which}.{out}" for out in outs]
                changed = dict(d.branch) if dict(d.branch).get("side", side) is not side else {}
                changed.pop("side", None)
                given = {k: v for k, v in values.items() if k not in changed.get("without", ())}
                changed.pop("without", None)
                infos = [h.make_tensor_value_info(out, T.UNDEFINED, None) for out in own]
                for info in infos:
                    info.type.tensor_type.elem_type = self.element
                    if info.name.endswith((".key", ".value")) and "k_scale" in values:
                        info.type.tensor_type.elem_type = T.INT8
                inner = node(own, given, **changed)
                inner.name = f"{which}{name}"
                branches[which] = h.make_graph([inner], f"{which}{number}", [], infos)
            self.nodes.append(h.make_node("If", [test], outs, name=f"{name}/If", **branches))
        elif d.wrap == "function":
            names = [each for each in dict.fromkeys(values.values()) if each]
            opsets = [h.make_opsetid("", self.opset), h.make_opsetid(MS, 1)]
            called = f"Attend{number}"
            inner = node(outs, values)
            made = h.make_function("own", called, names, list(outs), [inner], opsets)
            self.functions.append(made)
            self.nodes.append(h.make_node(called, names, outs, name=name, domain="own"))
        else:
            self.nodes.append(node(outs, values))

    def standard(self, q: str, keys: str, values: str, layer: int) -> str:
        """ONNX's Attention over all keys and values, which are [batch, heads, all, size]."""
        d = self.d
        at = self.op("Unsqueeze", "position_ids", self.const([1, 3]))
        columns = self.columns()
        if d.fault == "mask shows the next token":
            columns = self.op("Sub", columns, self.const(1))
        sees = self.op("LessOrEqual", columns, at)
        if d.window_of(layer) and d.fault != "window lost in standard layers":
            first = self.op("Sub", at, self.const(d.window_of(layer)))
            sees = self.op("And", sees, self.op("Greater", columns, first))
        four = self.op("Reshape", q, self.const([0, 0, d.heads, d.size]))
        turned = self.op("Transpose", four, perm=[0, 2, 1, 3])
        scale = d.scale or d.size**-0.5
        scale = 1.0 if d.fault == "scale lost in standard layers" else scale
        kinds: dict[str, Any] = {"scale": scale, "is_causal": 0, "softcap": d.softcap}
        name = f"/model/layers.{layer}/attn/Attention"
        out = self.op("Attention", turned, keys, values, sees, name=name, **kinds)
        back = self.op("Transpose", out, perm=[0, 2, 1, 3])
        return self.op("Reshape", back, self.const([0, 0, -1]))

    def layer(self, x: str, layer: str, reads: Sequence[str], writes: Sequence[str]) -> str:
        """The hidden state after a layer. In a loop, ``layer`` is "i"."""
        d, number = self.d, 0 if layer == "i" else int(layer)
        y = self.normed(x, self.const(np.ones(WIDTH), d.dtype))
        part = {"q": "", "k": "", "v": ""}
        owns = layer == "i" or d.source_of(number) == number
        for each in part if owns else "q":
            name = f"/model/layers.{layer}/attn/{each}_proj/MatMul"
            part[each] = self.op("MatMul", y, self.of_layer(each, layer), name=name)
            if each in "qk":
                part[each] = self.positioned(part[each], each, layer, number)
        out = f"attn.{layer}"
        if d.is_standard(number):
            if owns:
                full = []
                for each, past, present in zip("kv", reads, writes, strict=True):
                    four = self.op("Reshape", part[each], self.const([0, 0, d.kv, d.size]))
                    new = self.op("Transpose", four, perm=[0, 2, 1, 3])
                    full.append(self.op("Concat", past, new, axis=2, out=present))
            else:
                full = [f"present.{d.source_of(number)}.{each}" for each in ("key", "value")]
            out = self.standard(part["q"], full[0], full[1], number)
        else:
            if not owns:
                reads, part["k"], part["v"] = self.borrowed(number, part["q"])
                writes = [f"unread.{layer}.{each}" for each in ("key", "value")]
            if d.packed:
                part = {"q": self.op("Concat", *part.values(), axis=2)}
            values = dict(zip(INPUTS, part.values(), strict=False))
            values |= {"past_key": reads[0], "past_value": reads[1]}
            values |= dict(zip(("seqlens_k", "total"), self.lengths_made, strict=True))
            values |= self.more_inputs(layer, number)
            self.attend(values, [out, *writes], layer, number)
        self.flush()
        after = self.op("MatMul", out, self.of_layer("o", layer))
        return self.op("Add", x, after)

    def borrowed(self, layer: int, q: str) -> tuple[list[str], str, str]:
        """The cache of another layer, and keys and values of length 0."""
        d, source = self.d, self.d.source_of(layer)
        parts = ("value", "key") if d.fault == "borrowed value for key" else ("key", "value")
        of = "full" if d.cache == "qdq" else "present"
        reads = [f"{of}.{source}.{part}" for part in parts]
        width = d.kv * d.size
        if d.borrow == "identity":
            reads = [self.op("Identity", self.op("Identity", each)) for each in reads]
        if d.borrow == "slice":
            cut = [self.const([0]), self.const([0]), self.const([1])]
            source_of = self.op("MatMul", self.hidden[source], self.weight(f"k{source}"))
            empty = self.op("Slice", source_of, *cut)
        else:
            rest = self.const([0, width])
            shape = self.op("Concat", self.batch(), rest, axis=0)
            zero = nh.from_array(np.zeros(1, d.dtype), "")
            empty = self.op("ConstantOfShape", shape, value=zero)
        return reads, empty, empty

    def more_inputs(self, layer: str, number: int) -> dict[str, str]:
        d, values = self.d, {}
        in_node = d.turns(number) and d.rotary in ("node", "node_ids")
        if in_node or d.fault == "rotated twice":
            values = dict(zip(("cos", "sin"), self.tables(number), strict=True))
        if in_node and d.rotary == "node_ids":
            values["position_ids"] = "position_ids"
        if d.bias:
            values["bias"] = self.once("bias", self.bias)
        if d.sink == "sink":
            values["sink"] = self.of_layer("sink", layer)
        if d.cache.startswith("int8"):
            channels = np.ones((1, d.kv, 1, d.size)) * np.linspace(0.9, 1.1, d.size)
            shape = channels if "channel" in d.cache else np.ones(1)
            for part in ("k", "v"):
                small = d.fault == f"scale of {part} saturates"
                scale = shape * (0.0 if d.fault == "scales of zero" else 0.003 if small else 0.04)
                values[f"{part}_scale"] = self.const(scale, np.float32, f"{part}_scale")
        if d.norm == "node":
            values |= {f"{part}_norm": self.of_layer(f"{part}_norm", layer) for part in "qk"}
        return values

    def model(self) -> onnx.ModelProto:
        """The whole graph."""
        d = self.d
        self.after: list[tuple[str, ...]] = []
        self.hidden: list[str] = []
        self.opset = 24 if d.standard and d.seed % 2 else 23 if d.standard else 21
        tokens: str | int = self.new or "new"
        batch: str | int = 1 if self.new else "batch"
        if d.embeds:
            x = self.takes("inputs_embeds", self.element, batch, tokens, WIDTH)
        else:
            ids = self.takes("input_ids", T.INT64, batch, tokens)
            x = self.op("Gather", self.weight("embed"), ids)
        if d.takes_mask:
            self.takes("attention_mask", T.INT64, batch, "all")
        by_ids = d.in_graph and d.positions == "input" and d.fault != "positions restart"
        if by_ids or d.rotary == "node_ids" or d.lengths == "positions" or d.standard:
            self.takes("position_ids", T.INT64, batch, tokens)
        if d.types:
            ids = self.takes("token_type_ids", T.INT64, batch, tokens)
        if d.types == "embed":
            x = self.op("Add", x, self.op("Gather", self.weight("types"), ids))
        if d.beams:
            self.takes("beam_idx", T.INT64, batch)
        if d.lengths == "given":
            self.takes("past_seq_len", T.INT32, batch)
            self.takes("total_seq_len", T.INT32, 1)
        caches = [] if d.wrap == "loop" else [
            self.caches(i) if d.source_of(i) == i else ([], []) for i in range(d.layers)
        ]  # fmt: skip
        self.lengths_made = self.lengths()
        if d.wrap == "loop":
            x = self.loop(x)
        ends, self.after = self.after, []
        for i, (reads, writes) in enumerate(caches):
            self.hidden.append(x)
            self.after = [each for each in ends if f".{i}." in each[1]]
            x = self.layer(x, str(i), reads, writes)
        y = self.normed(x, self.const(np.ones(WIDTH), d.dtype))
        self.op("MatMul", y, self.weight("head"), out="logits", name="/lm_head/MatMul")
        first = h.make_tensor_value_info("logits", self.element, [batch, tokens, WORDS])
        inputs, outputs = self.inputs, [first, *self.outputs]
        graph = h.make_graph(self.nodes, "main_graph", inputs, outputs, [*self.weights.values()])
        domains = {"": self.opset, MS: 1} | ({"own": 1} if self.functions else {})
        opsets = [h.make_opsetid(*each) for each in domains.items()]
        kinds: dict[str, Any] = {"opset_imports": opsets, "functions": self.functions}
        return h.make_model(graph, ir_version=10, producer_name="twins", **kinds)

    def loop(self, x: str) -> str:
        """All layers as a Loop: pasts and presents are stacked."""
        d = self.d
        dims: tuple[str | int, ...] = (d.layers, "batch", d.kv)
        for part in ("keys", "values"):
            self.takes(f"past_{part}", self.element, *dims, "past", d.size)
            self.gives(f"present_{part}", self.element, *dims, "all", d.size)
        # What does not depend on the layer is made before the loop.
        if d.bias:
            self.once("bias", self.bias)
        for keys in (False, True) if d.in_graph else ():
            self.position_ids(keys)
        if d.rotary == "hand":
            self.rotation(self.op("MatMul", x, self.weight("q0")), d.heads, False)
            self.rotation(self.op("MatMul", x, self.weight("k0")), d.kv, True)
        self.tables(0)
        self.new_rows(), self.past_rows(), self.batch()
        outside, self.nodes = self.nodes, []
        first = self.const(0)
        of = first if d.fault == "one past for all layers" else "i"
        reads = [self.op("Gather", "past_keys", "i"), self.op("Gather", "past_values", of)]
        after = self.layer("x_in", "i", reads, ["key_out", "value_out"])
        self.op("Identity", after, out="x_out")
        self.op("Identity", "go_in", out="go_out")
        info = h.make_tensor_value_info
        carried = {
            side: (
                info(f"go_{side}", T.BOOL, []),
                info(f"x_{side}", self.element, ["batch", "new", WIDTH]),
            )
            for side in ("in", "out")
        }
        made = (info(f"{part}_out", self.element, None) for part in ("key", "value"))
        taken, given_back = [info("i", T.INT64, []), *carried["in"]], [*carried["out"], *made]
        body = h.make_graph(self.nodes, "layer", taken, given_back)
        self.nodes = outside
        given = self.const(d.layers), self.const(True, bool), x
        outs = ["x_last", "present_keys", "present_values"]
        return self.ops("Loop", *given, outs=outs, body=body, name="/model/layers")[0]


def graph_of(d: Decoder, new: int = 0) -> onnx.ModelProto:
    """The graph of a decoder, for any number of new tokens or for just ``new``."""
    return Graph(d, new).model()
