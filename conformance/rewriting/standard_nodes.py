"""GroupQueryAttention in standard operators, with its caches, lengths and positions.

Only operators that every runtime has are used, in the form of operator set 13, or for float8 of 19:
no Attention, no TensorScatter. Computed in float32; what is copied keeps its bits. It follows
docs/oracle.md. Sizes: B sequences, S queries, L new keys, P rows of the past, C rows of the
present, T ``total_sequence_length``, N query heads, K key/value heads, D elements of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from onnx import NodeProto, TensorProto

from conformance.base.array_types import ONNX
from conformance.graph.nodes import attributes_in, connected
from conformance.graph.shapes import UNKNOWN, ValueType
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.rewriting.dense_nodes import (
    AttentionCall,
    CodeScale,
    Masks,
    attended,
    decoded,
    gathered,
    normed,
    rotated,
    side_by_side,
    split_heads,
    spread,
)
from conformance.rewriting.node_writer import NodeWriter

#: The first operator set with float8, to which Cast rounds and clamps as the oracle does.
FLOAT8_OPSET: Final = 19
#: The limits of the codes of a quantised cache, by the type of the cache.
_LIMITS: Final = {"int8": (-128.0, 127.0), "uint8": (-8.0, 7.0)}


class CannotExpress(ValueError):
    """The node has no form in standard operators; the message says why, as half a sentence."""


def write_in_standard_operators(
    node: NodeProto, types: Mapping[str, ValueType], borrows: bool, write: NodeWriter
) -> None:
    """Write what a GroupQueryAttention computes, under the names of its outputs.

    Args:
        node: the node.
        types: the types of its inputs by the names of the operator's parameters, as far as they
            are known; that of query must be.
        borrows: whether a node without key and value has no new keys, instead of a packed query.
        write: where the nodes are written.

    Raises:
        CannotExpress: the node has no such form.
    """
    try:
        _StandardForm(node, types, borrows, write).write_all()
    except KeyError as error:
        raise CannotExpress(f"it has no {error.args[0]}") from None
    except (ArithmeticError, ValueError) as error:
        raise CannotExpress(str(error) or "an attribute is out of its range") from None


@dataclass
class _Places:
    """int64: where tokens are.

    ``lengths`` [B, 1] are those of the sequences after the call, ``before`` those before it,
    ``queries`` [B, S] and ``keys`` [B, L] the places of the new tokens in their sequences,
    ``total`` [1] is T, ``new`` [1] is L.
    ``is_prompt``, bool [1], says whether the call is a first prompt.
    """

    lengths: str
    before: str
    queries: str
    keys: str
    total: str
    new: str
    is_prompt: str


@dataclass
class _Layout:
    """The rows of a sliding-window cache, and behind them the new tokens.

    ``places`` int64 and ``used`` bool [B, C + L]: the tokens in them. ``rows`` int64 [B, C]: which
    of them become the rows of the present. ``columns`` int64 [B, T]: the one that has the token of
    each place; negative for an evicted token.
    """

    places: str
    used: str
    rows: str
    columns: str


#: Exporters write it though the operator does not have it: the rotated elements of a head; 0: all.
_ROTATED: Final = "rotary_embedding_dim"


def _is_known(name: str, value: object, types: Mapping[str, ValueType]) -> bool:
    """Whether an attribute with this value is written in standard operators, or says nothing."""
    if name == _ROTATED:
        width = types.get("cos_cache", UNKNOWN).size(1)
        return value == 0 or (width is not None and value == 2 * width)
    kinds = {"int": int, "float": float, "string": str}
    if name not in ATTRIBUTE_BY_NAME or not isinstance(value, kinds[ATTRIBUTE_BY_NAME[name].kind]):
        return False
    return not (name == "local_window_size" and value == 0)


class _StandardForm:
    """One node that is being written."""

    def __init__(
        self, node: NodeProto, types: Mapping[str, ValueType], borrows: bool, write: NodeWriter
    ) -> None:
        self.write = write
        self.inputs = connected(INPUT_NAMES, node.input)
        self.outputs = connected(OUTPUT_NAMES, node.output)
        self.attributes: Mapping[str, Any] = attributes_in(node)
        for name in (each.name for each in node.attribute):
            if not _is_known(name, self.attributes.get(name), types):
                raise ValueError(f"its attribute {name} is not known here, or not its value")
        if len(node.input) > len(INPUT_NAMES) or len(node.output) > len(OUTPUT_NAMES):
            raise ValueError("it has more inputs or outputs than are known here")
        if "output_qk" in self.outputs and self.attributes.get("qk_output") not in (1, 2):
            raise ValueError("its qk_output does not say what output_qk has")
        self.heads = int(self.attributes["num_heads"])
        self.kv_heads = int(self.attributes["kv_num_heads"])
        if self.kv_heads < 1 or self.heads < 1 or self.heads % self.kv_heads:
            raise ValueError("the numbers of its heads do not fit")
        self.window = int(self.attributes.get("local_window_size", -1))
        if self.window > 0 and not self.attributes.get("causal", 1):
            raise ValueError("a window without a causal mask has no meaning")
        self.slides = bool(self.attributes.get("sliding_window_cache", 0))
        if self.slides and (self.window < 1 or "past_key" not in self.inputs or borrows):
            raise ValueError("its sliding-window cache has no window, or no buffer")
        self.types = types
        self.packed = "key" not in self.inputs and not borrows
        self.never_new = borrows or types.get("key", UNKNOWN).size(1) == 0
        dtype = types["query"].dtype if "query" in types else None
        if dtype not in ("float32", "float16", "bfloat16"):
            raise ValueError("the type of its query is not known")
        self.dtype = dtype
        past = types.get("past_key", UNKNOWN).dtype or dtype
        self.cache_dtype = past
        self.in_float8 = past == "float8e4m3fn"
        if self.in_float8 and write.opset < FLOAT8_OPSET:
            raise ValueError(f"its float8 cache needs operator set {FLOAT8_OPSET}")
        if past != dtype and past not in _LIMITS and not self.in_float8:
            raise ValueError(f"its cache is of the type {past}, and its query of {dtype}")

    def write_all(self) -> None:
        """Write the nodes."""
        write, inputs = self.write, self.inputs
        query, key, value = split_heads(inputs, self.heads, self.kv_heads, self.packed, write)
        places = self._places(write.size(query, 1), write.size(key, 1))
        query, key = self._as_float(query), self._as_float(key) if self._moves_keys() else key
        if "q_norm_weight" in inputs:
            query, key = self._normed(query, "q"), self._normed(key, "k")
        query, key, value = (
            write.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (query, key, value)
        )
        if self.attributes.get("do_rotary"):
            query, key = self._rotated(query, key, places)
        size = write.size(query, 3)
        layout = self._layout(places) if self.slides else None
        keys, values = (
            self._every(name, new, size, places, layout)
            for name, new in (("key", key), ("value", value))
        )
        if layout is not None:
            at, used = layout.places, layout.used
        else:
            at = write.steps(write.constant([0]), write.size(keys, 2))
            used = write.node("Less", at, places.lengths)
            at = write.node("Unsqueeze", at, write.constant([0]))
        # 0 times NaN is NaN, and an unused row may have one.
        is_row = write.node("Unsqueeze", used, write.constant([1, 3]))
        values = write.node("Where", is_row, values, write.number(0.0))
        visible = self._visible(at, used, places)
        masks = Masks("", False, bias=self._bias(keys, layout), visible=visible)
        sink = self._as_float(inputs["head_sink"]) if "head_sink" in inputs else ""
        if not sink and self.attributes.get("smooth_softmax") == 1:
            sink = write.number(0.0)
        output, before, after = attended(
            query, keys, values, self.attributes, masks, sink, AttentionCall(), write
        )
        self._put("output", self._stored(side_by_side(output, write)))
        if "output_qk" in self.outputs:
            chosen = after if self.attributes.get("qk_output") == 2 else before
            if layout is None:
                chosen = self._first(chosen, 3, places.total)
            else:
                chosen = self._of_places(chosen, layout.columns)
            self._put("output_qk", self._stored(chosen))

    def _put(self, name: str, value: str) -> None:
        if name in self.outputs:
            self.write.node("Identity", value, output=self.outputs[name])

    def _first(self, value: str, axis: int, number: str) -> str:
        """The first elements of an axis, whose ``number``, int64 [1], does not follow from shapes.

        tract cannot slice to such a number.
        """
        write = self.write
        return write.node("Gather", value, write.steps(write.constant([0]), number), axis=axis)

    def _as_float(self, value: str) -> str:
        if self.dtype == "float32":
            return value
        return self.write.node("Cast", value, to=TensorProto.FLOAT)

    def _stored(self, value: str) -> str:
        if self.dtype == "float32":
            return value
        return self.write.node("Cast", value, to=ONNX[self.dtype])

    def _moves_keys(self) -> bool:
        """Whether new keys are computed with, and not only copied."""
        return "k_norm_weight" in self.inputs or bool(self.attributes.get("do_rotary"))

    def _integer(self, name: str, *shape: int) -> str:
        number = self.write.node("Cast", self.inputs[name], to=TensorProto.INT64)
        return self.write.node("Reshape", number, self.write.constant(shape))

    def _places(self, queries: str, new: str) -> _Places:
        write = self.write
        nothing = write.constant([0])
        total = self._integer("total_sequence_length", 1)
        lengths = write.node("Add", self._integer("seqlens_k", -1, 1), write.constant(1))
        is_prompt = write.node("Equal", queries, total)
        if "query_seqlens" in self.inputs:
            first = write.node("Sub", lengths, self._integer("query_seqlens", -1, 1))
            first_key = first
        else:
            first = write.node("Where", is_prompt, nothing, write.node("Sub", lengths, queries))
            adds = write.node("And", is_prompt, write.node("Greater", new, nothing))
            first_key = write.node("Where", adds, nothing, write.node("Sub", lengths, new))
        return _Places(
            lengths,
            first_key,
            write.node("Add", first, write.steps(nothing, queries)),
            write.node("Add", first_key, write.steps(nothing, new)),
            total,
            new,
            is_prompt,
        )

    def _normed(self, heads: str, side: str) -> str:
        shared = self.attributes.get("qk_norm_epsilon", 1e-6)
        epsilon = float(self.attributes.get(f"{side}_norm_epsilon", shared))
        weight = self._as_float(self.inputs[f"{side}_norm_weight"])
        return normed(heads, weight, epsilon, self.write)

    def _rotated(self, query: str, key: str, places: _Places) -> tuple[str, str]:
        write, inputs = self.write, self.inputs
        positions, of_keys = places.queries, places.keys
        if "position_ids" in inputs:
            positions = write.node("Cast", inputs["position_ids"], to=TensorProto.INT64)
            if "query_seqlens" not in inputs:
                # Of a first prompt, only the first position counts.
                first = write.slice(write.slice(positions, 0, 0, 1), 1, 0, 1)
                steps = write.steps(write.constant([0]), write.size(query, 2))
                counted = write.node("Add", first, steps)
                positions = write.node("Where", places.is_prompt, counted, positions)
            of_keys = write.slice(positions, 1, 0, places.new)
        tables = inputs["cos_cache"], inputs["sin_cache"]
        interleaved = bool(self.attributes.get("rotary_interleaved"))

        def turned(heads: str, at: str) -> str:
            if "query_seqlens" in inputs:  # padding may lie behind the tables
                last = write.node("Sub", write.size(tables[0], 0), write.constant([1]))
                at = write.node("Min", at, last)
            cos, sin = (
                write.node("Unsqueeze", self._as_float(each), write.constant([1]))
                for each in gathered(tables, at, write)
            )
            return rotated(heads, (cos, sin), interleaved, write)

        return turned(query, positions), key if self.never_new else turned(key, of_keys)

    def _every(
        self, side: str, new: str, size: str, places: _Places, layout: _Layout | None
    ) -> str:
        """Write a present, and return all keys or values in float32 [B, K, rows, D].

        Its rows are those of the present, behind which others may be that no query sees; with a
        sliding-window cache those of the past, and then the new ones.
        """
        write, past = self.write, self.inputs.get(f"past_{side}", "")
        if past and self.in_float8:  # which runtimes cast, and do nothing else with
            past = write.node("Cast", past, to=TensorProto.FLOAT)
        is_float = side == "key" and self._moves_keys()
        scale = self._scale(side[0]) if self.cache_dtype != self.dtype else None
        if scale is not None:
            new = self._encoded(new if is_float else self._as_float(new), scale)
        elif is_float:
            new = self._stored(new)
        if layout is not None:
            stored = write.node("Concat", past, new, axis=2)
            index = self._index(stored, layout.rows)
            self._put_present(side, write.node("GatherND", stored, index))
        elif self.never_new:
            if not past:
                raise ValueError("it has neither new keys nor a past")
            stored = past
            self._put_present(side, stored)
        else:
            stored = self._with_new_rows(past, new, places)
            rows = write.node("Max", write.size(past, 2), places.total) if past else ""
            self._put_present(side, self._first(stored, 2, rows) if rows else stored)
        if scale is not None:
            return decoded(stored, scale, size, write)
        return self._as_float(stored)

    def _put_present(self, side: str, value: str) -> None:
        if self.in_float8:
            value = self.write.node("Cast", value, to=ONNX[self.cache_dtype])
        self._put(f"present_{side}", value)

    def _scale(self, side: str) -> CodeScale:
        name = f"{side}_scale"
        dims = self.types.get(name, UNKNOWN).dims
        flat = dims is not None and len(dims) == 1 and dims[0] != 1
        return CodeScale(
            self.inputs[name], ONNX[self.cache_dtype], (1, self.kv_heads, 1, -1) if flat else None
        )

    def _encoded(self, numbers: str, scale: CodeScale) -> str:
        """The codes of numbers [B, K, L, D]; two of four bits are in a byte, the even one low.

        Codes of float8 are in float32.
        """
        write = self.write
        quotients = write.node("Div", numbers, spread(scale, write))
        if self.in_float8:
            codes = write.node("Cast", quotients, to=ONNX[self.cache_dtype])
            return write.node("Cast", codes, to=TensorProto.FLOAT)
        low, high = (write.number(limit) for limit in _LIMITS[self.cache_dtype])
        steps = write.node("Round", quotients)
        steps = write.node("Clip", steps, low, high)
        if self.cache_dtype == "uint8":
            steps = write.node("Add", steps, write.number(8.0))
            end = np.iinfo(np.int64).max
            even, odd = (write.slice(steps, 3, at, end, 2) for at in (0, 1))
            lacking = write.node("Sub", write.size(even, 3), write.size(odd, 3))
            odd = self._padded(odd, 3, lacking, write.number(8.0))
            steps = write.node("Add", even, write.node("Mul", odd, write.number(16.0)))
        return write.node("Cast", steps, to=ONNX[self.cache_dtype])

    def _padded(self, value: str, axis: int, number: str, fill: str = "") -> str:
        """A value of rank 4 with ``number``, int64 [1], more elements of an axis: ``fill`` or 0."""
        write = self.write
        none = write.constant([0])
        pads = [none] * (4 + axis) + [number] + [none] * (3 - axis)
        return write.node("Pad", value, write.node("Concat", *pads, axis=0), *filter(None, [fill]))

    def _with_new_rows(self, past: str, new: str, places: _Places) -> str:
        """The past, and behind it as many rows as are new; the new rows are at their places.

        The number of rows follows from shapes alone, as tract needs it. A present, whose number
        does not, is cut from them.
        """
        write = self.write
        buffer = write.node("Concat", past, new, axis=2) if past else new
        if "query_seqlens" in self.inputs:  # then the total is only an upper bound
            lacking = write.node("Sub", places.total, write.size(buffer, 2))
            lacking = write.node("Max", lacking, write.constant([0]))
            buffer = self._padded(buffer, 2, lacking)
        return write.node("ScatterND", buffer, self._index(new, places.keys), new)

    def _index(self, like: str, rows: str) -> str:
        """The index [B, K, R, 3] of the ``rows`` [B, R] of each head of ``like`` [B, K, …]."""
        write = self.write
        sequences = write.steps(write.constant([0]), write.size(like, 0))
        parts = (
            write.node("Unsqueeze", sequences, write.constant([1, 2, 3])),
            write.constant(np.arange(self.kv_heads).reshape(1, -1, 1, 1)),
            write.node("Unsqueeze", rows, write.constant([1, 3])),
        )
        # [B, K, R, 1], by broadcasting: not all runtimes expand to a shape that is computed.
        zero = [write.node("Sub", part, part) for part in parts]
        zeros = write.node("Add", write.node("Add", zero[0], zero[1]), zero[2])
        index = [write.node("Add", part, zeros) for part in parts]
        return write.node("Concat", *index, axis=3)

    def _layout(self, places: _Places) -> _Layout:
        """Where the tokens of a sliding-window cache are before and after the call."""
        write = self.write
        nothing, one = write.constant([0]), write.constant([1])
        capacity = write.size(self.inputs["past_key"], 2)
        spare = write.node("Sub", capacity, write.constant([self.window - 1]))  # G

        def held(tokens: str) -> str:
            """How many of so many tokens the cache holds."""
            over = write.node("Sub", tokens, capacity)
            moves = write.node("Div", write.node("Sub", write.node("Add", over, spare), one), spare)
            rest = write.node("Sub", tokens, write.node("Mul", moves, spare))
            return write.node("Where", write.node("Greater", over, nothing), rest, tokens)

        # Each sequence's own, [B, 1]: of a first prompt it is one number.
        had = write.node("Add", places.before, write.node("Sub", places.lengths, places.lengths))
        first = write.node("Sub", had, held(had))  # the place of the first row
        rows = write.steps(nothing, capacity)
        of_past = write.node("Add", first, rows)
        new = write.node("Add", had, write.steps(nothing, places.new))
        at = write.node("Concat", of_past, new, axis=1)
        used = write.node(
            "Concat",
            write.node("Less", of_past, had),
            write.node("Less", new, places.lengths),
            axis=1,
        )
        kept = write.node("Sub", places.lengths, held(places.lengths))
        last = write.node("Sub", places.lengths, one)
        wanted = write.node("Min", write.node("Add", kept, rows), last)  # behind it is anything

        def rows_of(tokens: str) -> str:
            behind = write.node("Add", capacity, write.node("Sub", tokens, had))
            is_new = write.node("GreaterOrEqual", tokens, had)
            return write.node("Where", is_new, behind, write.node("Sub", tokens, first))

        columns = rows_of(write.steps(nothing, places.total))
        return _Layout(at, used, rows_of(wanted), columns)

    def _of_places(self, scores: str, columns: str) -> str:
        """Scores [B, N, S, C + L] by the places of the keys: [B, N, S, T]; 0 for evicted ones."""
        write = self.write
        is_held = write.node("GreaterOrEqual", columns, write.constant([0]))
        is_held = write.node("Unsqueeze", is_held, write.constant([1, 2]))
        return write.node("Where", is_held, self._picked(scores, columns), write.number(0.0))

    def _picked(self, value: str, at: str) -> str:
        """The elements ``at`` [B, R] of the last axis of a value [B or 1, N or 1, S, …].

        Where there is no such element, it is the first or the last one.
        """
        write = self.write
        last = write.node("Sub", write.size(value, 3), write.constant([1]))
        at = write.node("Min", write.node("Max", at, write.constant([0])), last)
        at = write.node("Unsqueeze", at, write.constant([2]))
        # By broadcasting: not all runtimes expand to a shape that is computed.
        first = write.node("Unsqueeze", write.slice(at, 1, 0, 1), write.constant([3]))
        zero = write.node("Cast", write.node("Sub", first, first), to=TensorProto.FLOAT)
        turned = write.node("Transpose", write.node("Add", value, zero), perm=[0, 3, 1, 2])
        picked = write.node("GatherND", turned, at, batch_dims=1)
        return write.node("Transpose", picked, perm=[0, 2, 3, 1])

    def _visible(self, at: str, used: str, places: _Places) -> str:
        """bool [B, 1, S, rows]: the keys that each query attends to, unless the bias hides them.

        ``at`` [B or 1, rows] are the places of the keys, and ``used`` [B, rows] says which rows
        have one.
        """
        write = self.write
        own = write.node("Unsqueeze", places.queries, write.constant([1, 3]))
        at = write.node("Unsqueeze", at, write.constant([1, 2]))
        rules = [write.node("Unsqueeze", used, write.constant([1, 2]))]
        if self.attributes.get("causal", 1):
            rules.append(write.node("LessOrEqual", at, own))
        if self.window > 0:
            behind = write.node("Sub", own, write.constant(self.window))
            rules.append(write.node("Greater", at, behind))
        visible = rules[0]
        for rule in rules[1:]:
            visible = write.node("And", visible, rule)
        return visible

    def _bias(self, keys: str, layout: _Layout | None) -> str:
        """The bias with a column for each key; "" if there is none."""
        if "attention_bias" not in self.inputs:
            return ""
        write = self.write
        bias, every = self._as_float(self.inputs["attention_bias"]), write.size(keys, 2)
        if layout is not None:
            return self._picked(bias, layout.places)
        bias = write.slice(bias, 3, 0, every)
        return self._padded(bias, 3, write.node("Sub", every, write.size(bias, 3)))
