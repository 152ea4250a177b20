"""The variant of a call by a relation: its script, and the numbers of the two that must agree.

:mod:`conformance.case.relations` describes the relations. A variant is made from the inputs of the
call itself by moving, repeating or splitting them. New numbers are exact unless the closeness of
the relation is ``storage``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from conformance.base.array_types import NUMPY, ONNX_OF_NUMPY, WORD_OF_ONNX, Array
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.model import DEFAULT_OPSET, declare, model_of, node_of
from conformance.bundle.script import (
    CARRY,
    Arrays,
    Script,
    ScriptStep,
    script_of,
    script_with,
)
from conformance.case.relations import RelationName
from conformance.case.steps import steps_of
from conformance.operator.call import Call
from conformance.operator.signature import INPUTS, Axis
from conformance.operator.tensors import Step, attributes_of
from conformance.oracle import Reference, reference
from conformance.rewriting.standard import standard_model

#: The result of a run of all steps: for each step, output name to array.
Outputs = Sequence[Mapping[str, Array]]


@dataclass(frozen=True)
class Comparison:
    """Numbers of a call and of its variant that must agree: elements of one output.

    ``index`` selects them in a step of the call, ``other_index`` in a step of the variant. If
    ``other_step`` is None, ``other_index`` selects in the outputs of all steps of the variant,
    joined along the tokens. The call's numbers are multiplied by ``factor``, a power of two, before
    the comparison.
    """

    output: str
    index: Any = ...
    other_index: Any = ...
    step: int = -1
    other_step: int | None = -1
    factor: float = 1.0

    def own(self, outputs: Outputs) -> Array:
        """The numbers of the call, from its outputs or from arrays of the error model."""
        numbers: Array = outputs[self.step][self.output][self.index]
        return numbers

    def other(self, outputs: Outputs) -> Array:
        """The numbers of the variant, from its outputs or from arrays of the error model."""
        if self.other_step is None:
            whole = np.concatenate([step[self.output] for step in outputs], axis=1)
        else:
            whole = outputs[self.other_step][self.output]
        numbers: Array = whole[self.other_index]
        return numbers


def variant_script(call: Call, relation: RelationName) -> Script:
    """The variant of ``call``, which must have one (:attr:`Relation.misfit`)."""
    return _VARIANTS[relation][0](call)


def comparisons(call: Call, relation: RelationName) -> list[Comparison]:
    """The numbers of ``call`` and of its variant that must agree."""
    return _VARIANTS[relation][1](call)


# Making the variant


def _drawn(call: Call) -> Arrays:
    return draw_inputs(call, steps_of(call)[0])


def _variant(call: Call, calls: Sequence[Arrays], **fields: Any) -> Script:
    """The node of ``call`` with other ``fields``, and for each call the node's inputs."""
    changed = replace(call, **fields)
    names = {tensor.name for tensor in steps_of(changed)[0].inputs if tensor.connected}
    return script_with(changed, [{n: a for n, a in one.items() if n in names} for one in calls])


def _with(
    change: Callable[[Call, Arrays], Arrays] = lambda call, inputs: {}, **fields: Any
) -> Callable[[Call], Script]:
    """Changes ``fields`` of the node, and replaces the inputs that ``change`` returns."""

    def variant(call: Call) -> Script:
        inputs = _drawn(call)
        return _variant(call, [inputs | change(call, inputs)], **fields)

    return variant


def _constants_as_inputs(call: Call) -> Script:
    """The same calls, with the constants of the model as inputs."""
    return _variant(call, [draw_inputs(call, step) for step in steps_of(call)], constants=())


def _columns(call: Call, heads: Array) -> Array:
    """The places of these heads in the last dim of [B, S, heads * D]."""
    return (heads[:, None] * call.head_size + np.arange(call.head_size)).reshape(-1)


def _rows(array: Array) -> Array:
    """[B, S, heads, D] as [B, S, heads * D]."""
    return array.reshape(*array.shape[:2], -1)


def _head_order(call: Call) -> tuple[Array, Array]:
    """Another order of the query and key/value heads: groups shifted by one, heads reversed."""
    group = call.num_heads // call.kv_num_heads
    kv = np.roll(np.arange(call.kv_num_heads), 1)
    query = (kv[:, None] * group + np.arange(group)[::-1]).reshape(-1)
    return query, kv


def _taken(inputs: Arrays, heads: Mapping[Axis, Array]) -> Arrays:
    """The inputs with an axis of heads, of which those at these places are taken."""
    return {
        parameter.name: np.take(array, heads[axis], axis=place)
        for parameter in INPUTS
        if (array := inputs.get(parameter.name)) is not None
        for place, axis in enumerate(parameter.axes)
        if axis in heads and array.shape[place] > heads[axis].max()
    }


def _permute_heads(call: Call, inputs: Arrays) -> Arrays:
    query, kv = _head_order(call)
    places: dict[Axis, Array] = {
        "num_heads": query,
        "hidden_size": _columns(call, query),
        "kv_num_heads": kv,
        "kv_hidden_size": _columns(call, kv),
    }
    return _taken(inputs, places)


#: Inputs whose first dim is the batch; for attention_bias only if that dim is not 1.
_BATCHED: Final = {one.name for one in INPUTS if one.axes[:1] == ("batch_size",)}


def _permute_batch(call: Call, inputs: Arrays) -> Arrays:
    return {
        name: np.roll(array, 1, axis=0)
        for name, array in inputs.items()
        if name in _BATCHED and len(array) == call.batch_size
    }


def _part(inputs: Arrays, slices: Mapping[Axis, slice]) -> Arrays:
    """The inputs, with slices of the axes that have these names."""
    axes = {parameter.name: parameter.axes for parameter in INPUTS}
    return {
        name: array[tuple(slices.get(axis, slice(None)) for axis in axes[name])]
        for name, array in inputs.items()
    }


def _repeated(call: Call) -> Array:
    """The key/value head of each query head."""
    return np.repeat(np.arange(call.kv_num_heads), call.num_heads // call.kv_num_heads)


def _repeat_heads(call: Call) -> Script:
    inputs, heads = _drawn(call), _repeated(call)
    inputs |= _taken(inputs, {"kv_num_heads": heads, "kv_hidden_size": _columns(call, heads)})
    return _variant(call, [inputs], kv_num_heads=call.num_heads)


def _pack(call: Call) -> Script:
    calls = [draw_inputs(call, step) for step in steps_of(call)]
    for inputs in calls:
        parts = [inputs[name] for name in ("query", "key", "value")]
        inputs["query"] = np.concatenate(parts, axis=2)
    return _variant(call, calls, key_value="packed")


def _alone(call: Call) -> Script:
    """One call of batch_size 1 for each sequence, without padding and without unused past rows.

    There is no call for a sequence without query tokens. With query_seqlens the total stays
    unchanged: it is a bound for all sequences, and the number of rows of a growing cache.
    """
    inputs, step = _drawn(call), steps_of(call)[0]
    chunks = {} if step.query_lengths is None else {"query_seqlens": (1,)}
    calls = []
    for b in _with_queries(step):
        total = step.total_lengths[b]
        queries = _queries(step, b)
        columns = total if step.query_lengths is None else step.total_sequence_length
        slices: dict[Axis, slice] = {
            "sequence_length": slice(queries),
            "kv_sequence_length": slice(queries),
            "total_sequence_length": slice(columns),
        }
        if call.cache_kind == "concatenated":
            slices["past_sequence_length"] = slice(total - queries)
        alone = {
            name: array[b : b + 1] if name in _BATCHED and len(array) == call.batch_size else array
            for name, array in inputs.items()
        }
        mine = _part(alone, slices)
        mine["total_sequence_length"] = np.full_like(mine["total_sequence_length"], columns)
        calls.append(mine)
    return _variant(call, calls, batch_size=1, total_sequence_lengths=None, **chunks)


def _queries(step: Step, b: int) -> int:
    """The number of query tokens of a sequence that are not padding."""
    if step.query_lengths is not None:
        return step.query_lengths[b]
    return min(step.sequence_length, step.total_lengths[b])


def _with_queries(step: Step) -> list[int]:
    """The sequences that have query tokens."""
    return [b for b in range(len(step.total_lengths)) if _queries(step, b)]


#: Rows of the chunks of a variant in padded chunks.
_ROWS: Final = 4


def _in_padded_chunks(call: Call) -> Script:
    """A loop of chunks of `_ROWS` rows; the last chunk of each sequence is padded with noise."""
    inputs, step = _drawn(call), steps_of(call)[0]
    totals = np.array(step.total_lengths)
    tokens = np.array([_queries(step, b) for b in range(call.batch_size)])
    starts = totals - tokens
    padded = -(-step.sequence_length // _ROWS) * _ROWS
    for name in ("cos_cache", "sin_cache"):
        if name in inputs:  # tables with a row for the padding, too
            more = max(int(starts.max()) + padded - len(inputs[name]), 0)
            inputs[name] = np.pad(inputs[name], ((0, more), (0, 0)), mode="edge")
    calls: list[Arrays] = []
    for first in range(0, padded, _ROWS):
        counts = np.clip(tokens - first, 0, _ROWS)
        mine = {n: a for n, a in inputs.items() if not calls or not n.startswith("past_")}
        for name in ("query", "key", "value"):
            mine[name] = _padded(inputs[name], 1, first, counts)
        # As many rows as the padding needs; a static cache has them.
        bound = int(max(starts.max() + first + _ROWS, step.total_sequence_length))
        if call.cache_kind == "static":
            bound = max(step.total_sequence_length, _ROWS)
        if "attention_bias" in mine:
            rows = _padded(inputs["attention_bias"], 2, first, counts)
            more = bound - rows.shape[3]
            mine["attention_bias"] = np.pad(rows, ((0, 0), (0, 0), (0, 0), (0, more)))
        mine["seqlens_k"] = (starts + np.minimum(tokens, first + _ROWS) - 1).astype(np.int32)
        mine["query_seqlens"] = counts.astype(np.int32)
        mine["total_sequence_length"] = np.full((), bound, np.int32)
        calls.append(mine)
    counts_of_all = tuple((_ROWS,) * call.batch_size for _ in calls)
    return _loop(
        call, calls, [_ROWS] * len(calls), query_seqlens=counts_of_all, total_sequence_lengths=None
    )


def _loop(call: Call, calls: list[Arrays], lengths: Sequence[int], **fields: Any) -> Script:
    """A loop of calls of these lengths; the first has a past, without rows if ``call`` has none."""
    if call.cache_kind == "none":
        shape = (call.batch_size, call.kv_num_heads, 0, call.head_size)
        calls[0] |= {n: np.zeros(shape, NUMPY[call.dtype]) for n in ("past_key", "past_value")}
    cache = call.cache or "concatenated"
    return _variant(call, calls, loop=tuple(lengths), sequence_length=1, cache=cache, **fields)


def _padded(array: Array, axis: int, first: int, counts: Array) -> Array:
    """`_ROWS` rows from ``first`` on; after the ``counts`` of each sequence there is noise."""
    places = first + np.arange(_ROWS)
    rows = np.take(array, np.minimum(places, array.shape[axis] - 1), axis=axis)
    real: Array = np.arange(_ROWS) < counts[:, None]
    if len(rows) < len(real):  # one bias for the batch: its rows are those of the longest sequence
        real = np.arange(_ROWS)[None] < counts.max()
    shape = (len(real), *(1,) * (axis - 1), _ROWS, *(1,) * (array.ndim - axis - 1))
    padded: Array = np.where(real.reshape(shape), rows, rows.dtype.type(7.0))
    return padded


def _static(call: Call, *, shared: bool) -> Script:
    inputs, total = _drawn(call), steps_of(call)[0].total_sequence_length
    capacity = total + 3
    for name in ("past_key", "past_value"):
        past = inputs[name]
        rest = np.full((*past.shape[:2], capacity - past.shape[2], past.shape[3]), 7.0)
        inputs[name] = np.concatenate([past, rest.astype(past.dtype)], axis=2)
    fields = {"max_sequence_length": capacity, "shared_buffer": shared}
    return _variant(call, [inputs], cache="static", **fields)


def _in_pieces(call: Call, lengths: Sequence[int]) -> Script:
    inputs, start = _drawn(call), 0
    calls: list[Arrays] = []
    for length in lengths:
        end = start + length
        total = call.past_sequence_length + end
        tokens = slice(start, end)
        mine = _part(
            {n: a for n, a in inputs.items() if not calls or not n.startswith("past_")},
            {
                "sequence_length": tokens,
                "kv_sequence_length": tokens,
                "total_sequence_length": slice(total),
            },
        )
        mine["seqlens_k"] = np.full_like(inputs["seqlens_k"], total - 1)
        mine["total_sequence_length"] = np.full_like(inputs["total_sequence_length"], total)
        calls.append(mine)
        start = end
    return _loop(call, calls, lengths)


def _two_pieces(call: Call) -> Script:
    first = max(1, (2 * call.sequence_length) // 3)
    return _in_pieces(call, (first, call.sequence_length - first))


def _rejected(call: Call) -> Script:
    """The two calls, with a third between them whose tokens the last call overwrites."""
    first, last = steps_of(call)
    total = first.total_sequence_length + 3
    draft = {
        **draw_inputs(call, first),
        "seqlens_k": np.full((call.batch_size,), total - 1, np.int32),
        "total_sequence_length": np.full((), total, np.int32),
    }
    for name in ("past_key", "past_value"):
        del draft[name]
    for name in ("query", "key", "value"):
        width = draft[name].shape[2]
        numbers = np.resize(draft[name][:, ::-1], (call.batch_size, 3, width))
        draft[name] = (numbers * np.float32(0.5)).astype(NUMPY[call.dtype])
    return script_with(call, [draw_inputs(call, first), draft, draw_inputs(call, last)])


def _half(call: Call) -> int:
    return (call.sequence_length + 1) // 2


def _other_later(call: Call, inputs: Arrays) -> Arrays:
    changed = {}
    for name in ("query", "key", "value"):
        array = inputs[name].copy()
        array[:, _half(call) :] = array[:, _half(call) :][:, ::-1, ::-1] * array.dtype.type(-0.75)
        changed[name] = array
    return changed


def _turned(call: Call, inputs: Arrays) -> Arrays:
    """Query and new keys rotated in float64 and rounded to storage."""
    step = steps_of(call)[0]
    rows = np.array(step.positions.numbers(step.sequence_length)).reshape(call.batch_size, -1)
    names = [name for name in ("query", "key") if inputs[name].shape[1]]
    return {name: _apply_rotary(call, inputs, inputs[name], rows) for name in names}


def _apply_rotary(call: Call, inputs: Arrays, array: Array, rows: Array) -> Array:
    x = array.astype(np.float64).reshape(*array.shape[:2], -1, call.head_size)
    rows = np.clip(rows[:, : array.shape[1]], 0, len(inputs["cos_cache"]) - 1)
    cos, sin = (
        inputs[name].astype(np.float64)[rows][:, :, None] for name in ("cos_cache", "sin_cache")
    )
    half = cos.shape[-1]
    if call.rotary == "interleaved":
        real, imaginary = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        real, imaginary = slice(0, half), slice(half, 2 * half)
    rotated = x.copy()
    z = (x[..., real] + 1j * x[..., imaginary]) * (cos + 1j * sin)
    rotated[..., real], rotated[..., imaginary] = z.real, z.imag
    return _rows(rotated).astype(array.dtype)


def _constant_bias(call: Call, inputs: Arrays) -> Arrays:
    """One number for each row, a multiple of 0.5 so that adding it is nearly exact."""
    shape = (call.batch_size, call.num_heads, inputs["query"].shape[1])
    total = steps_of(call)[0].total_sequence_length
    each = (np.arange(np.prod(shape)) % 7 - 3).reshape(shape) * 0.5
    return {"attention_bias": np.repeat(each[..., None], total, 3).astype(NUMPY[call.dtype])}


def _causal_mask(call: Call) -> Array:
    """[S, T]: -inf for keys later than the query, 0 elsewhere; for sequences of equal length."""
    step = steps_of(call)[0]
    queries, total = step.sequence_length, step.total_sequence_length
    later = np.arange(total) > np.arange(total - queries, total)[:, None]
    return np.where(later, -np.inf, 0.0)


def _causal_bias(call: Call, inputs: Arrays) -> Arrays:
    mask = _causal_mask(call)
    shape = (call.batch_size, call.num_heads, *mask.shape)
    return {"attention_bias": np.broadcast_to(mask, shape).astype(NUMPY[call.dtype])}


def _long_window(call: Call) -> Script:
    return _with(local_window_size=steps_of(call)[0].total_sequence_length)(call)


def _sink_of_zero(call: Call, inputs: Arrays) -> Arrays:
    return {"head_sink": np.zeros(call.num_heads, NUMPY[call.dtype])}


def _scale_in_query(call: Call) -> Script:
    assert call.scale is not None
    inputs = _drawn(call)
    inputs["query"] = inputs["query"] * inputs["query"].dtype.type(4.0)
    return _variant(call, [inputs], scale=call.scale / 4)


def _double_values(call: Call, inputs: Arrays) -> Arrays:
    names = [name for name in ("value", "past_value") if name in inputs]
    return {name: inputs[name] * inputs[name].dtype.type(2.0) for name in names}


# Graphs of several nodes


def _graph(call: Call, nodes: Sequence[onnx.NodeProto], inputs: Arrays, outputs: Mapping[str, int],
           opset: int = DEFAULT_OPSET) -> onnx.ModelProto:  # fmt: skip
    """A model of ``nodes``; all dims are unnamed. ``outputs`` maps a name to its rank."""
    dtypes = {name: WORD_OF_ONNX[ONNX_OF_NUMPY[array.dtype]] for name, array in inputs.items()}
    return model_of(
        nodes,
        [declare(name, dtypes[name], [None] * array.ndim) for name, array in inputs.items()],
        [declare(name, call.dtype, [None] * rank) for name, rank in outputs.items()],
        opset=opset,
    )


#: Fields of a borrower that the layer before it does not have.
_OF_THE_BORROWER: Final = {
    "rotary", "rotary_dim", "rotary_cache_length", "position_ids", "attention_bias", "head_sink",
    "qk_output", "qk_norm", "qk_norm_epsilon", "presents",
}  # fmt: skip


def _lender(call: Call) -> Call:
    """The call of the layer that owns the cache; it appends the borrower's tokens."""
    past = call.past_sequence_length - call.sequence_length
    kept = {name: value for name, value in vars(call).items() if name not in _OF_THE_BORROWER}
    return Call(**kept | {"key_value": "new", "past_sequence_length": past})


def _borrowed(call: Call) -> Script:
    """Two layers: the first one computes the last tokens of the cache that ``call`` borrows."""
    lender, own = _lender(call), _drawn(call)
    lent = draw_inputs(lender, steps_of(lender)[0])
    split = call.past_sequence_length - call.sequence_length
    first = {"query": lent["query"]}
    for name in ("key", "value"):
        whole = own[f"past_{name}"]
        first[name] = _rows(whole[:, :, split:].swapaxes(1, 2))
        first[f"past_{name}"] = whole[:, :, :split]
    lengths = {name: own[name] for name in ("seqlens_k", "total_sequence_length")}
    first |= lengths
    second = {n: a for n, a in own.items() if n not in ("past_key", "past_value", *lengths)}

    renamed = {name: f"lender_{name}" for name in first if name not in lengths}
    present = {"present_key": "lent_key", "present_value": "lent_value"}
    lender_step, own_step = steps_of(lender)[0], steps_of(call)[0]
    nodes = [
        node_of(lender, lender_step, "lender", renamed | present | {"output": "lender_output"}),
        node_of(call, own_step, "borrower", {"past_key": "lent_key", "past_value": "lent_value"}),
    ]
    inputs = {renamed.get(name, name): array for name, array in first.items()} | second
    names = own_step.connected_outputs
    ranks = {tensor.name: tensor.rank for tensor in own_step.outputs if tensor.connected}
    outputs = ("lender_output", *names)

    def compute(arrays: Arrays) -> dict[str, Reference]:
        mine = {name: arrays[renamed.get(name, name)] for name in first}
        made = reference(mine, attributes_of(lender), ("output", *present))
        past = {past: made[name].value.astype(NUMPY[call.dtype]) for past, name in CARRY.items()}
        borrowed = {name: arrays[name] for name in (*second, *lengths)} | past
        own_outputs = reference(borrowed, attributes_of(call), names)
        return {"lender_output": made["output"], **own_outputs}

    model = _graph(call, nodes, inputs, {"lender_output": 3, **ranks})
    return Script(model, (ScriptStep(tuple(inputs), inputs),), outputs, compute)


def _standard(call: Call) -> Script:
    """Transposes query and new keys to BNSH, joins the cache by Concat, applies Attention."""
    own, step = _drawn(call), steps_of(call)[0]
    names = [n for n in ("query", "key", "value", "past_key", "past_value") if n in own]
    if not step.new_tokens:
        names = [name for name in names if name not in ("key", "value")]
    inputs: Arrays = {name: own[name] for name in names}
    bias = own.get("attention_bias", np.zeros((1, 1, 1, 1))).astype(np.float64)
    inputs["mask"] = (_causal_mask(call) + bias).astype(NUMPY[call.dtype])

    nodes: list[onnx.NodeProto] = []

    def add(op: str, taken: Sequence[str], made: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, taken, [made], name=made, **attributes))
        return made

    def constant(name: str, numbers: list[int]) -> str:
        tensor = helper.make_tensor(name, onnx.TensorProto.INT64, [len(numbers)], numbers)
        return add("Constant", [], name, value=tensor)

    def by_heads(name: str, heads: int) -> str:
        shape = constant(f"{name}_shape", [0, 0, heads, call.head_size])
        rows = add("Reshape", [name, shape], f"{name}_heads")
        return add("Transpose", [rows], f"{name}_bnsh", perm=[0, 2, 1, 3])

    query = by_heads("query", call.num_heads)
    caches = []
    for name in ("key", "value"):
        parts = [f"past_{name}"] if f"past_{name}" in inputs else []
        if name in inputs:
            parts.append(by_heads(name, call.kv_num_heads))
        caches.append(add("Concat" if len(parts) > 1 else "Identity", parts, f"present_{name}",
                          **({"axis": 2} if len(parts) > 1 else {})))  # fmt: skip
    attended = add("Attention", [query, *caches, "mask"], "attended")
    rows = add("Transpose", [attended], "attended_rows", perm=[0, 2, 1, 3])
    add("Reshape", [rows, constant("output_shape", [0, 0, -1])], "output")
    outputs = ("output", *(f"present_{name}" for name in ("key", "value")))
    model = _graph(call, nodes, inputs, {"output": 3, "present_key": 4, "present_value": 4}, 23)
    # Not required by ONNX, but tract's command line does (findings/tract-standard-attention.md).
    shape = [call.batch_size, call.num_heads, call.sequence_length, call.head_size]
    model.graph.value_info.append(declare(attended, call.dtype, shape))

    def compute(arrays: Arrays) -> dict[str, Reference]:
        return reference(own, attributes_of(call), outputs)

    return Script(model, (ScriptStep(tuple(inputs), inputs),), outputs, compute)


def _standard_operators(call: Call) -> Script:
    """The graph without GroupQueryAttention."""
    script = script_of(call)
    return replace(script, model=standard_model(script.model).model)


# The numbers that must agree


def _connected(call: Call, start: str = "") -> list[str]:
    """The names of the outputs, or of those that begin with ``start``."""
    return [name for name in steps_of(call)[0].connected_outputs if name.startswith(start)]


def _all_outputs(call: Call) -> list[Comparison]:
    """Every output of every step equals the variant's."""
    return [
        Comparison(name, step=index, other_step=index)
        for index, step in enumerate(steps_of(call))
        for name in step.connected_outputs
    ]


def _output_only(call: Call) -> list[Comparison]:
    return [Comparison("output")]


def _presents(call: Call, index: Any = ...) -> list[Comparison]:
    """The rows of the last presents that the call and the variant both have."""
    return [Comparison(name, index, index) for name in _connected(call, "present_")]


def _tokens(call: Call) -> list[Comparison]:
    """The output, compared with those of the variant's steps in sequence; the last presents."""
    return [Comparison("output", other_step=None), *_presents(call)]


def _padded_tokens(call: Call) -> list[Comparison]:
    """The output rows and the cached tokens of each sequence, compared with those of its chunks."""
    step = steps_of(call)[0]
    made = []
    for b in _with_queries(step):
        rows = np.s_[b, : _queries(step, b)]
        made.append(Comparison("output", rows, rows, other_step=None))
        made += _presents(call, np.s_[b, :, : step.total_lengths[b]])
    return made


def _first_rows(call: Call) -> list[Comparison]:
    """The last output, and the rows of the last presents that both buffers have."""
    total = steps_of(call)[-1].total_sequence_length
    return [*_output_only(call), *_presents(call, np.s_[:, :, :total])]


def _alone_pairs(call: Call) -> list[Comparison]:
    step = steps_of(call)[0]
    made = []
    for place, b in enumerate(_with_queries(step)):
        own, rows = np.s_[b : b + 1, : _queries(step, b)], slice(step.total_lengths[b])
        made.append(Comparison("output", own, other_step=place))
        made += [
            Comparison(name, np.s_[b : b + 1, :, rows], np.s_[:, :, rows], other_step=place)
            for name in _connected(call, "present_")
        ]
    return made


def _batch_pairs(call: Call) -> list[Comparison]:
    order = np.roll(np.arange(call.batch_size), 1)
    return [Comparison(name, order) for name in _connected(call)]


def _head_pairs(call: Call) -> list[Comparison]:
    query, kv = _head_order(call)
    indexes = {"output": np.s_[:, :, _columns(call, query)], "output_qk": np.s_[:, query]}
    return [Comparison(name, indexes.get(name, np.s_[:, kv])) for name in _connected(call)]


def _repeated_pairs(call: Call) -> list[Comparison]:
    index = np.s_[:, _repeated(call)]
    presents = [Comparison(name, index) for name in _connected(call, "present_")]
    return [*_output_only(call), *presents]


def _early_pairs(call: Call) -> list[Comparison]:
    queries = _half(call)
    early, rows = np.s_[:, :queries], slice(call.past_sequence_length + queries)
    return [Comparison("output", early, early), *_presents(call, np.s_[:, :, rows])]


def _doubled_pairs(call: Call) -> list[Comparison]:
    """Output and present_value multiplied by two; present_key unchanged."""
    factors = {"output": 2.0, "present_value": 2.0}
    return [Comparison(name, factor=factors.get(name, 1.0)) for name in _connected(call)]


#: For each relation, how to make the variant, and the numbers that must agree.
_Variant = tuple[Callable[[Call], Script], Callable[[Call], list[Comparison]]]
_VARIANTS: Final[dict[RelationName, _Variant]] = {
    "constants_as_inputs": (_constants_as_inputs, _all_outputs),
    "omitted_presents": (_with(presents="none"), _output_only),
    "omitted_key_value": (_with(key_value="omitted"), _all_outputs),
    "packed_qkv": (_pack, _all_outputs),
    "each_sequence_alone": (_alone, _alone_pairs),
    "permuted_batch": (_with(_permute_batch), _batch_pairs),
    "permuted_heads": (_with(_permute_heads), _head_pairs),
    "repeated_kv_heads": (_repeat_heads, _repeated_pairs),
    "static_cache": (partial(_static, shared=False), _first_rows),
    "shared_buffer": (partial(_static, shared=True), _first_rows),
    "token_by_token": (lambda call: _in_pieces(call, (1,) * call.sequence_length), _tokens),
    "in_chunks": (_two_pieces, _tokens),
    "in_padded_chunks": (_in_padded_chunks, _padded_tokens),
    "without_padding": (_alone, _alone_pairs),
    "rejected_tokens": (_rejected, _first_rows),
    "other_later_tokens": (_with(_other_later), _early_pairs),
    "rotary_before": (
        _with(
            _turned, rotary="none", rotary_dim=None, rotary_cache_length=None, position_ids=False
        ),
        _all_outputs,
    ),
    "constant_bias": (_with(_constant_bias, attention_bias="full"), _all_outputs),
    "long_window": (_long_window, _all_outputs),
    "causal_as_bias": (_with(_causal_bias, attention_bias="full", causal=0), _all_outputs),
    "sink_of_zero": (_with(_sink_of_zero, smooth_softmax=None, head_sink=True), _all_outputs),
    "scale_in_query": (_scale_in_query, _all_outputs),
    "doubled_values": (_with(_double_values), _doubled_pairs),
    "borrowed_in_graph": (_borrowed, _all_outputs),
    "standard_attention": (_standard, _first_rows),
    "standard_operators": (_standard_operators, _all_outputs),
}
