"""The variant of a call by a relation: its script, and the numbers of the two that must agree.

:mod:`conformance.case.variants` describes the relations. A variant is made from the inputs of the
call itself by moving, repeating or splitting them. New numbers are exact unless the closeness of
the relation is ``storage``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper

from conformance.base.array_types import NUMPY
from conformance.base.signature import DOMAIN, OPSET_VERSION
from conformance.bundle.inputs import draw_inputs, positions
from conformance.bundle.model import IR_VERSION, declare, node_of
from conformance.bundle.script import Array, Arrays, Script, ScriptStep, script_with
from conformance.case.call import Call
from conformance.case.tensors import Step, attributes_of, steps_of
from conformance.case.variants import RelationName
from conformance.oracle import Reference, reference

#: What a run of all steps returns: for each step, output name to array.
Outputs = Sequence[Mapping[str, Array]]


@dataclass(frozen=True)
class Comparison:
    """Numbers of a call and of its variant that must agree.

    ``own`` selects them from the outputs of the call, ``other`` from those of the variant; both
    return arrays of one shape. They are applied to the values and to the arrays of the error model.
    The call's own values are multiplied by ``factor``, a power of two, before the comparison.
    """

    output: str
    own: Callable[[Outputs], Array]
    other: Callable[[Outputs], Array]
    factor: float = 1.0


def variant_script(call: Call, relation: RelationName) -> Script:
    """The variant of ``call``, which must have one (:attr:`Relation.misfit`)."""
    return _VARIANTS[relation][0](call)


def comparisons(call: Call, relation: RelationName) -> list[Comparison]:
    """The numbers of ``call`` and of its variant that must agree."""
    return _VARIANTS[relation][1](call)


# Making the variant


def _drawn(call: Call) -> Arrays:
    return draw_inputs(call, steps_of(call)[0])


def _changed(call: Call, **fields: Any) -> Call:
    return Call.model_validate({**call.model_dump(), **fields})


def _same_inputs(**fields: Any) -> Callable[[Call], Script]:
    """Changes ``fields`` of the node and keeps its inputs, except those no longer connected."""

    def variant(call: Call) -> Script:
        changed, inputs = _changed(call, **fields), _drawn(call)
        names = {tensor.name for tensor in steps_of(changed)[0].inputs if tensor.connected}
        return script_with(changed, [{n: a for n, a in inputs.items() if n in names}])

    return variant


def _constants_as_inputs(call: Call) -> Script:
    """The same calls of a model without constants."""
    inputs = [draw_inputs(call, step) for step in steps_of(call)]
    return script_with(_changed(call, constants=()), inputs)


def _with(change: Callable[[Call, Arrays], Arrays], **fields: Any) -> Callable[[Call], Script]:
    """Changes ``fields`` of the node, and replaces the inputs that ``change`` returns."""

    def variant(call: Call) -> Script:
        inputs = _drawn(call)
        return script_with(_changed(call, **fields), [{**inputs, **change(call, inputs)}])

    return variant


def _heads(call: Call, array: Array, heads: int) -> Array:
    """[B, S, heads * D] as [B, S, heads, D]."""
    return array.reshape(*array.shape[:2], heads, call.head_size)


def _rows(array: Array) -> Array:
    """[B, S, heads, D] as [B, S, heads * D]."""
    return array.reshape(*array.shape[:2], array.shape[2] * array.shape[3])


def _head_order(call: Call) -> tuple[Array, Array]:
    """Another order of the query and key/value heads: groups shifted by one, heads reversed."""
    group = call.num_heads // call.kv_num_heads
    kv = np.roll(np.arange(call.kv_num_heads), 1)
    query = (kv[:, None] * group + np.arange(group)[::-1]).reshape(-1)
    return query, kv


def _permute_heads(call: Call, inputs: Arrays) -> Arrays:
    query, kv = _head_order(call)
    changed: Arrays = {"query": _rows(_heads(call, inputs["query"], call.num_heads)[:, :, query])}
    for name in ("key", "value"):
        changed[name] = _rows(_heads(call, inputs[name], call.kv_num_heads)[:, :, kv])
    for name in ("past_key", "past_value"):
        if name in inputs:
            changed[name] = inputs[name][:, kv]
    bias = inputs.get("attention_bias")
    if bias is not None and bias.shape[1] > 1:
        changed["attention_bias"] = bias[:, query]
    if "head_sink" in inputs:
        changed["head_sink"] = inputs["head_sink"][query]
    return changed


#: Inputs whose first dim is the batch; for attention_bias only if that dim is not 1.
_BATCHED: Final = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "position_ids",
    "attention_bias", "query_seqlens",
)  # fmt: skip


def _permute_batch(call: Call, inputs: Arrays) -> Arrays:
    return {
        name: np.roll(inputs[name], 1, axis=0)
        for name in _BATCHED
        if name in inputs and len(inputs[name]) == call.batch_size
    }


def _repeat_heads(call: Call) -> Script:
    group = call.num_heads // call.kv_num_heads
    inputs = _drawn(call)
    for name in ("key", "value"):
        heads = _heads(call, inputs[name], call.kv_num_heads)
        inputs[name] = _rows(np.repeat(heads, group, axis=2))
    for name in ("past_key", "past_value"):
        if name in inputs:
            inputs[name] = np.repeat(inputs[name], group, axis=1)
    return script_with(_changed(call, kv_num_heads=call.num_heads), [inputs])


def _pack(call: Call) -> Script:
    changed = _changed(call, key_value="packed")
    packed = []
    for step in steps_of(call):
        inputs = draw_inputs(call, step)
        parts = [inputs[name] for name in ("query", "key", "value")]
        inputs["query"] = np.concatenate(parts, axis=2)
        packed.append({n: a for n, a in inputs.items() if n not in ("key", "value")})
    return script_with(changed, packed)


def _alone(call: Call) -> Script:
    """One call of batch_size 1 for each sequence, without padding and without unused past rows.

    A sequence without query tokens has none. With query_seqlens the total stays as it is: it is a
    bound for all, and the rows of a growing cache.
    """
    inputs, step = _drawn(call), steps_of(call)[0]
    chunks = {} if step.query_lengths is None else {"query_seqlens": (1,)}
    one = _changed(call, batch_size=1, total_sequence_lengths=None, **chunks)
    calls = []
    for b in _with_queries(step):
        total = step.total_lengths[b]
        mine = {
            name: array[b : b + 1] if name in _BATCHED and len(array) == call.batch_size else array
            for name, array in inputs.items()
        }
        queries = _queries(step, b)
        for name in ("query", "key", "value", "position_ids"):
            if name in mine:
                mine[name] = mine[name][:, :queries]
        if call.cache_kind == "concatenated":
            for name in ("past_key", "past_value"):
                mine[name] = mine[name][:, :, : total - queries]
        columns = total if step.query_lengths is None else step.total_sequence_length
        if "attention_bias" in mine:
            mine["attention_bias"] = mine["attention_bias"][:, :, :queries, :columns]
        mine["total_sequence_length"] = np.full_like(mine["total_sequence_length"], columns)
        calls.append(mine)
    return script_with(one, calls)


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
            bound = step.total_sequence_length
        if "attention_bias" in mine:
            rows = _padded(inputs["attention_bias"], 2, first, counts)
            more = bound - rows.shape[3]
            mine["attention_bias"] = np.pad(rows, ((0, 0), (0, 0), (0, 0), (0, more)))
        mine["seqlens_k"] = (starts + np.minimum(tokens, first + _ROWS) - 1).astype(np.int32)
        mine["query_seqlens"] = counts.astype(np.int32)
        mine["total_sequence_length"] = np.full((), bound, np.int32)
        calls.append(mine)
    if call.cache_kind == "none":
        shape = (call.batch_size, call.kv_num_heads, 0, call.head_size)
        calls[0] |= {n: np.zeros(shape, NUMPY[call.dtype]) for n in ("past_key", "past_value")}
    changed = _changed(
        call,
        loop=tuple(_ROWS for _ in calls),
        sequence_length=1,
        cache=call.cache or "concatenated",
        query_seqlens=tuple((_ROWS,) * call.batch_size for _ in calls),
        total_sequence_lengths=None,
    )
    return script_with(changed, calls)


def _padded(array: Array, axis: int, first: int, counts: Array) -> Array:
    """`_ROWS` rows from ``first`` on; behind the ``counts`` of each sequence there is noise."""
    places = first + np.arange(_ROWS)
    rows = np.take(array, np.minimum(places, array.shape[axis] - 1), axis=axis)
    real: Array = np.arange(_ROWS) < counts[:, None]
    if len(rows) < len(real):  # one bias for the batch: its rows are those of the longest sequence
        real = np.arange(_ROWS)[None] < counts.max()
    shape = (len(real), *(1,) * (axis - 1), _ROWS, *(1,) * (array.ndim - axis - 1))
    padded: Array = np.where(real.reshape(shape), rows, rows.dtype.type(7.0))
    return padded


def _static(shared: bool) -> Callable[[Call], Script]:
    def variant(call: Call) -> Script:
        inputs, total = _drawn(call), steps_of(call)[0].total_sequence_length
        capacity = total + 3
        changed = _changed(call, cache="static", max_sequence_length=capacity, shared_buffer=shared)
        for name in ("past_key", "past_value"):
            past = inputs[name]
            rest = np.full((*past.shape[:2], capacity - past.shape[2], past.shape[3]), 7.0)
            inputs[name] = np.concatenate([past, rest.astype(past.dtype)], axis=2)
        return script_with(changed, [inputs])

    return variant


def _in_pieces(lengths: Callable[[int], Sequence[int]]) -> Callable[[Call], Script]:
    def variant(call: Call) -> Script:
        inputs, past = _drawn(call), call.past_sequence_length
        pieces = lengths(call.sequence_length)
        changed = _changed(
            call, loop=tuple(pieces), sequence_length=1, cache=call.cache or "concatenated"
        )
        calls: list[Arrays] = []
        start = 0
        for length in pieces:
            end = start + length
            mine = {n: a for n, a in inputs.items() if calls == [] or not n.startswith("past_")}
            for name in ("query", "key", "value"):
                mine[name] = inputs[name][:, start:end]
            if "attention_bias" in mine:
                mine["attention_bias"] = inputs["attention_bias"][:, :, start:end, : past + end]
            mine["seqlens_k"] = np.full_like(inputs["seqlens_k"], past + end - 1)
            mine["total_sequence_length"] = np.full_like(
                inputs["total_sequence_length"], past + end
            )
            calls.append(mine)
            start = end
        if call.cache_kind == "none":
            shape = (call.batch_size, call.kv_num_heads, 0, call.head_size)
            calls[0] |= {n: np.zeros(shape, NUMPY[call.dtype]) for n in ("past_key", "past_value")}
        return script_with(changed, calls)

    return variant


def _two(length: int) -> tuple[int, int]:
    first = max(1, (2 * length) // 3)
    return first, length - first


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


def _rotary_before(call: Call) -> Script:
    """Query and new keys rotated in float64 and rounded to storage beforehand."""
    inputs, rows = _drawn(call), positions(steps_of(call)[0]).astype(np.int64)
    for name, heads in (("query", call.num_heads), ("key", call.kv_num_heads)):
        if inputs[name].shape[1]:
            inputs[name] = _apply_rotary(call, inputs, inputs[name], heads, rows)
    kept = {
        name: array
        for name, array in inputs.items()
        if name not in ("cos_cache", "sin_cache", "position_ids")
    }
    fields: dict[str, Any] = {"rotary": "none", "rotary_dim": None, "rotary_cache_length": None}
    return script_with(_changed(call, **fields, position_ids=False), [kept])


def _apply_rotary(call: Call, inputs: Arrays, array: Array, heads: int, rows: Array) -> Array:
    x = _heads(call, array.astype(np.float64), heads)
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
    total = steps_of(call)[0].total_sequence_length
    return _same_inputs(local_window_size=total)(call)


def _sink_of_zero(call: Call, inputs: Arrays) -> Arrays:
    return {"head_sink": np.zeros(call.num_heads, NUMPY[call.dtype])}


def _scale_in_query(call: Call) -> Script:
    assert call.scale is not None
    inputs = _drawn(call)
    inputs["query"] = inputs["query"] * inputs["query"].dtype.type(4.0)
    return script_with(_changed(call, scale=call.scale / 4), [inputs])


def _double_values(call: Call, inputs: Arrays) -> Arrays:
    names = [name for name in ("value", "past_value") if name in inputs]
    return {name: inputs[name] * inputs[name].dtype.type(2.0) for name in names}


# Graphs of several nodes


def _graph(call: Call, nodes: Sequence[onnx.NodeProto], inputs: Arrays, outputs: Mapping[str, int],
           opset: int) -> onnx.ModelProto:  # fmt: skip
    """A model of ``nodes``; all dims are unnamed. ``outputs`` maps a name to its rank."""
    words = {np.dtype(np.int32): "int32", np.dtype(np.int64): "int64"}
    graph = helper.make_graph(
        list(nodes),
        "gqa",
        [declare(n, words.get(a.dtype, call.dtype), [None] * a.ndim) for n, a in inputs.items()],
        [declare(name, call.dtype, [None] * rank) for name, rank in outputs.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="gqa-conformance")
    model.ir_version = IR_VERSION
    return model


def _lender(call: Call) -> Call:
    """The call of the layer that owns the cache; it appends the borrower's tokens."""
    return _changed(
        call,
        key_value="new",
        past_sequence_length=call.past_sequence_length - call.sequence_length,
        rotary="none",
        rotary_dim=None,
        rotary_cache_length=None,
        position_ids=False,
        attention_bias="none",
        head_sink=False,
        qk_output=None,
        qk_norm=False,
        qk_norm_epsilon=None,
        presents="both",
    )


def _borrowed(call: Call) -> Script:
    """Two layers: the first computes the last tokens of the cache that ``call`` borrows."""
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
        past = {
            past: made[name].value.astype(NUMPY[call.dtype])
            for past, name in (("past_key", "present_key"), ("past_value", "present_value"))
        }
        borrowed = {name: arrays[name] for name in (*second, *lengths)} | past
        return {
            "lender_output": made["output"],
            **reference(borrowed, attributes_of(call), names),
        }

    model = _graph(call, nodes, inputs, {"lender_output": 3, **ranks}, opset=18)
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


# The numbers that must agree


def _get(name: str, step: int = -1) -> Callable[[Outputs], Array]:
    return lambda outputs: outputs[step][name]


def _connected(call: Call) -> tuple[str, ...]:
    return steps_of(call)[0].connected_outputs


def _all_outputs(call: Call) -> list[Comparison]:
    """Every output of every step equals the variant's."""
    steps = steps_of(call)
    return [
        Comparison(name, _get(name, i), _get(name, i))
        for i, step in enumerate(steps)
        for name in step.connected_outputs
    ]


def _output_only(call: Call) -> list[Comparison]:
    return [Comparison("output", _get("output"), _get("output"))]


def _presents(call: Call, pick: Callable[[Array], Array]) -> list[Comparison]:
    """The presents of the last step; ``pick`` selects the part that both have."""
    return [
        Comparison(name, _picked(name, pick), _picked(name, pick))
        for name in _connected(call)
        if name.startswith("present_")
    ]


def _picked(
    name: str, pick: Callable[[Array], Array], step: int = -1
) -> Callable[[Outputs], Array]:
    return lambda outputs: pick(outputs[step][name])


def _tokens(call: Call) -> list[Comparison]:
    """The output, compared with those of the variant's steps in sequence; the last presents."""
    joined = Comparison(
        "output", _get("output"), lambda outputs: np.concatenate([o["output"] for o in outputs], 1)
    )
    return [joined, *_presents(call, lambda present: present)]


def _padded_tokens(call: Call) -> list[Comparison]:
    """The output rows and the cached tokens of each sequence, beside those of all its chunks."""
    step = steps_of(call)[0]

    def joined(outputs: Outputs) -> Array:
        return np.concatenate([o["output"] for o in outputs], axis=1)

    made = []
    for b in _with_queries(step):
        queries, total = _queries(step, b), step.total_lengths[b]
        made.append(
            Comparison(
                "output",
                _picked("output", lambda o, b=b, n=queries: o[b, :n]),  # type: ignore[misc]
                lambda outputs, b=b, n=queries: joined(outputs)[b, :n],  # type: ignore[misc]
            )
        )
        for name in ("present_key", "present_value"):
            tokens = _picked(name, lambda p, b=b, n=total: p[b, :, :n])  # type: ignore[misc]
            made.append(Comparison(name, tokens, tokens))
    return made


def _first_rows(call: Call) -> list[Comparison]:
    """The last output, and the rows of the last presents that both buffers have."""
    total = steps_of(call)[-1].total_sequence_length
    return [*_output_only(call), *_presents(call, lambda present: present[:, :, :total])]


def _alone_pairs(call: Call) -> list[Comparison]:
    step = steps_of(call)[0]
    made = []
    for place, b in enumerate(_with_queries(step)):
        queries, total = _queries(step, b), step.total_lengths[b]
        made.append(
            Comparison(
                "output",
                _picked("output", lambda o, b=b, n=queries: o[b : b + 1, :n]),  # type: ignore[misc]
                _get("output", place),
            )
        )
        made += [
            Comparison(
                name,
                _picked(name, lambda p, b=b, n=total: p[b : b + 1, :, :n]),  # type: ignore[misc]
                _picked(name, lambda p, n=total: p[:, :, :n], place),  # type: ignore[misc]
            )
            for name in step.connected_outputs
            if name.startswith("present_")
        ]
    return made


def _batch_pairs(call: Call) -> list[Comparison]:
    return [
        Comparison(name, _picked(name, lambda a: np.roll(a, 1, axis=0)), _get(name))
        for name in _connected(call)
    ]


def _head_pairs(call: Call) -> list[Comparison]:
    query, kv = _head_order(call)

    def output(array: Array) -> Array:
        return _rows(_heads(call, array, call.num_heads)[:, :, query])

    picks: dict[str, Callable[[Array], Array]] = {
        "output": output,
        "present_key": lambda present: present[:, kv],
        "present_value": lambda present: present[:, kv],
        "output_qk": lambda scores: scores[:, query],
    }
    return [Comparison(name, _picked(name, picks[name]), _get(name)) for name in _connected(call)]


def _repeated_pairs(call: Call) -> list[Comparison]:
    group = call.num_heads // call.kv_num_heads
    presents = [
        Comparison(name, _picked(name, lambda p: np.repeat(p, group, axis=1)), _get(name))
        for name in _connected(call)
        if name.startswith("present_")
    ]
    return [*_output_only(call), *presents]


def _early_pairs(call: Call) -> list[Comparison]:
    queries = _half(call)
    rows = call.past_sequence_length + queries
    early = _picked("output", lambda output: output[:, :queries])
    return [
        Comparison("output", early, early),
        *_presents(call, lambda present: present[:, :, :rows]),
    ]


def _doubled_pairs(call: Call) -> list[Comparison]:
    """Output and present_value multiplied by two; present_key unchanged."""
    factors = {"output": 2.0, "present_value": 2.0}
    return [
        Comparison(name, _get(name), _get(name), factors.get(name, 1.0))
        for name in _connected(call)
    ]


#: For each relation, how to make the variant, and the numbers that must agree.
_Variant = tuple[Callable[[Call], Script], Callable[[Call], list[Comparison]]]
_VARIANTS: Final[dict[RelationName, _Variant]] = {
    "constants_as_inputs": (_constants_as_inputs, _all_outputs),
    "omitted_presents": (_same_inputs(presents="none"), _output_only),
    "omitted_key_value": (_same_inputs(key_value="omitted"), _all_outputs),
    "packed_qkv": (_pack, _all_outputs),
    "each_sequence_alone": (_alone, _alone_pairs),
    "permuted_batch": (_with(_permute_batch), _batch_pairs),
    "permuted_heads": (_with(_permute_heads), _head_pairs),
    "repeated_kv_heads": (_repeat_heads, _repeated_pairs),
    "static_cache": (_static(shared=False), _first_rows),
    "shared_buffer": (_static(shared=True), _first_rows),
    "token_by_token": (_in_pieces(lambda length: (1,) * length), _tokens),
    "in_chunks": (_in_pieces(_two), _tokens),
    "in_padded_chunks": (_in_padded_chunks, _padded_tokens),
    "without_padding": (_alone, _alone_pairs),
    "rejected_tokens": (_rejected, _first_rows),
    "other_later_tokens": (_with(_other_later), _early_pairs),
    "rotary_before": (_rotary_before, _all_outputs),
    "constant_bias": (_with(_constant_bias, attention_bias="full"), _all_outputs),
    "long_window": (_long_window, _all_outputs),
    "causal_as_bias": (_with(_causal_bias, attention_bias="full", causal=0), _all_outputs),
    "sink_of_zero": (_with(_sink_of_zero, smooth_softmax=None, head_sink=True), _all_outputs),
    "scale_in_query": (_scale_in_query, _all_outputs),
    "doubled_values": (_with(_double_values), _doubled_pairs),
    "borrowed_in_graph": (_borrowed, _all_outputs),
    "standard_attention": (_standard, _first_rows),
}
