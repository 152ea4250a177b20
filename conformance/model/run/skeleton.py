"""A model without its weights: whole, or the part that computes the inputs of attention.

A small model gets random weights. In a large one the products with weights are left out: their
results become inputs of the part. Lengths, positions, masks and tables are computed as in the
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from conformance.graph.nodes import AttentionNode, array_of, is_attention, is_empty
from conformance.graph.parts import (
    MOST_WEIGHTS,
    CannotCut,
    declared,
    model_of,
    nodes_that_make,
    reached,
    too_many,
)
from conformance.graph.reading import ReadModel, reads
from conformance.graph.shapes import UNKNOWN, ValueType, types_of
from conformance.graph.walks import nodes_in, subgraphs, within
from conformance.model.config.graph_rotation import stored

#: The elements of a weight from which on the product with the weight is left out.
_MOST_OF_ONE: Final = 1 << 14
#: Columns of a rotary table, as wide as the largest heads.
_WIDEST_TABLE: Final = 512
#: The scale for quantising activations of about 4 to uint8.
_SCALE_AND_ZERO: Final = (np.array(4 / 127, np.float32), np.array(128, np.uint8))
#: Tokens of the longest call of a program, and so rows of a drawn rotary table.
MOST_TOKENS: Final = 4100
#: The inputs and outputs of a node whose values are inspected.
SEEN: Final = (
    *("past_key", "past_value", "query", "key", "seqlens_k", "total_sequence_length"),
    *("query_seqlens", "cos_cache", "sin_cache", "position_ids", "attention_bias", "k_scale"),
    *("v_scale", "output", "present_key", "present_value"),
)


@dataclass(frozen=True)
class Skeleton:
    """A model that can be run without the weights of another model.

    ``inputs`` has what is known about its inputs, some of which replace values that are computed
    from weights. ``constants`` are the values of its initializers that attention nodes read, and
    ``table_rows`` is the number of rows of the tables that rotary tables are taken from. ``unseen``
    says which lengths are computed where they cannot be seen, "" for none. ``only_loads``: its
    weights are inputs, so that it can be loaded but not run. ``as_written`` is the model before
    scales of activations were fixed, b"" if there were none. ``mixes``: the result for a token
    depends on the other tokens of the call.
    """

    model: bytes
    inputs: Mapping[str, ValueType]
    constants: Mapping[str, np.ndarray]
    table_rows: int | None = None
    unseen: str = ""
    only_loads: bool = False
    as_written: bytes = b""
    mixes: bool = False


def whole(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """The model as it is written, with random weights.

    If there are too many weights, they become inputs, and the model can only be loaded.
    """
    left_out = [tensor for tensor in model.written.graph.initializer if is_empty(tensor)]
    proto = onnx.ModelProto()
    if not too_many(left_out):
        # Values in the bodies of functions can be seen only where those are inlined.
        proto.CopyFrom(model.proto if model.written.functions and nodes else model.written)
        return _made(model, proto, nodes, _tables(model, nodes))
    proto.CopyFrom(model.written)
    graph = proto.graph
    kept = [tensor for tensor in graph.initializer if not is_empty(tensor)]
    known = {each.name for each in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in left_out
        if tensor.name not in known
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    _draw(graph, {})
    return Skeleton(bytes(proto.SerializeToString()), {}, {}, only_loads=True)


def part(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """The part that computes the inputs of the attention nodes, without products with weights.

    Raises :class:`CannotCut`.
    """
    graph, types = model.proto.graph, types_of(model.inferred[0].graph)
    tables = _tables(model, nodes)
    weights = [each for each in graph.initializer if is_empty(each) and each.name not in tables]
    heavy = {each.name for each in weights if math.prod(each.dims) > _MOST_OF_ONE}
    roots = [each for each in graph.node if any(map(is_attention, within(each)))]
    light = [each for each in graph.node if heavy.isdisjoint(reads(each))]
    origins = {name: [*reads(each)] for each in (*light, *roots) for name in each.output}
    results = {name for each in roots for name in each.output[:1]}
    names = reached(results, origins.get)
    if too_many(each for each in weights if each.name in names):
        raise CannotCut("what computes the inputs of its attention nodes has too many weights")
    made = {name for each in graph.node for name in each.output}
    inputs = [each for each in graph.input if each.name in names]
    cut = sorted(names & made - origins.keys())
    inputs += (declared(name, types.get(name, UNKNOWN)) for name in cut)
    kept = nodes_that_make(names & origins.keys(), graph)
    own = {name for each in kept for name in each.output}
    outputs = [each for each in graph.output if each.name in own]
    proto = model_of(model.proto, kept, inputs, outputs, {})
    proto.graph.value_info.extend(each for each in graph.value_info if each.name in own)
    return _made(model, proto, nodes, tables, results)


def _tables(model: ReadModel, nodes: Iterable[AttentionNode]) -> dict[str, str]:
    """The values that rotary tables come from, each with "cos_cache" or "sin_cache".

    These are the tables of the nodes, and those that a graph takes rows of to rotate by itself.
    """

    def origins(name: str) -> Iterator[str]:
        """The values that a value is equal to, or a part of."""
        if node := model.makers.get(name):
            yield from node.input[:1]
            yield from (each.output[[*node.output].index(name)].name for each in subgraphs(node))

    graph = model.proto.graph
    narrow = {w.name for w in graph.initializer if w.dims[1:] and w.dims[-1] <= _WIDEST_TABLE}
    of_tokens = {each.name for each in graph.input if "input_ids" in each.name}
    by_hand = {
        name
        for node in nodes_in(graph)
        for name in (node.input if node.op_type == "RotaryEmbedding" else node.input[:1])
        if node.op_type in ("Gather", "RotaryEmbedding") and of_tokens.isdisjoint(node.input)
    }
    return {name: "sin_cache" if "sin" in name else "cos_cache" for name in by_hand & narrow} | {
        name: parameter
        for node in nodes
        for parameter in ("sin_cache", "cos_cache")
        for name in reached([node.inputs.get(parameter, "")], origins)
    }


def _made(
    model: ReadModel,
    proto: onnx.ModelProto,
    nodes: Sequence[AttentionNode],
    tables: Mapping[str, str],
    results: Iterable[str] = (),
) -> Skeleton:
    """The model with random weights, which also returns the visible values of the nodes, and
    ``results``.
    """
    graph = proto.graph
    _draw(graph, tables, model)
    values = [{**node.inputs, **node.outputs} for node in nodes]
    seen = {each[name] for each in values for name in SEEN if name in each}
    made = {name for node in graph.node for name in node.output}
    given = {each.name for each in graph.output}
    names = sorted({*seen, *results} & made - given)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    fixed, types = {tensor.name: tensor for tensor in graph.initializer}, types_of(graph)
    known = {*made, *given, *fixed, *(each.name for each in graph.input)}
    unseen = sorted({node.inputs.get("seqlens_k", "") for node in nodes} - known - {""})
    why = f"{unseen[0]} is computed in the body of an If or Loop" if unseen else ""
    operators, as_written = {node.op_type for node in nodes_in(graph)}, b""
    if "DynamicQuantizeLinear" in operators:
        as_written = bytes(proto.SerializeToString())
        _fix_scales(graph)
    return Skeleton(
        bytes(proto.SerializeToString()),
        {each.name: types[each.name] for each in graph.input if each.name not in fixed},
        {name: array_of(fixed[name]) for name in seen & fixed.keys()},
        min((fixed[n].dims[0] for n in tables if n in fixed and fixed[n].dims), default=None),
        why,
        as_written=as_written,
        mixes="DynamicQuantizeMatMul" in operators,
    )


def _with_bodies(graph: GraphProto) -> list[GraphProto]:
    """The graph, and the subgraphs in it."""
    return [graph, *(inner for node in nodes_in(graph) for inner in subgraphs(node))]


def _fix_scales(graph: GraphProto) -> None:
    """Quantise activations by one fixed scale.

    With a scale for each call, the result for a token would depend on the other tokens of the call.
    """
    for inner in _with_bodies(graph):
        nodes: list[NodeProto] = []
        for node in inner.node:
            if (node.op_type, node.domain) == ("DynamicQuantizeLinear", ""):
                scale, zero = (numpy_helper.from_array(each) for each in _SCALE_AND_ZERO)
                nodes += (
                    helper.make_node("Constant", [], [node.output[1]], value=scale),
                    helper.make_node("Constant", [], [node.output[2]], value=zero),
                    helper.make_node(
                        "QuantizeLinear", [node.input[0], *node.output[1:]], node.output[:1]
                    ),
                )
            else:
                nodes.append(node)
        if len(nodes) > len(inner.node):
            kept = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del inner.node[:]
            inner.node.extend(kept)


def _draw(graph: GraphProto, tables: Mapping[str, str], model: ReadModel | None = None) -> None:
    """Give each weight of the graph content.

    The content of rotary tables, and of integers such as positions and masks, is read from the
    ``model``. Raises :class:`CannotCut` for integers that are missing; other tables get cosines and
    sines.
    """
    draws = np.random.default_rng(1)
    weights = [(each.name, each) for inner in _with_bodies(graph) for each in inner.initializer]
    weights += ((n.output[0], a.t) for n in nodes_in(graph) for a in n.attribute if a.HasField("t"))
    for name, tensor in weights:
        if is_empty(tensor):
            values = None
            kind = _kind(tensor)
            whole = kind.kind in "iub" and (kind.itemsize > 1 or kind.kind == "b")
            if model is not None and (whole or name in tables):
                with suppress(Exception):  # whatever a stranger's model has in its place
                    values = stored(model, name)
                if values is None and whole:
                    raise CannotCut(f"the content of {name} is not there")
            if values is None:
                values = _values(tensor, draws, tables.get(name, ""))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _kind(tensor: TensorProto) -> np.dtype:
    with suppress(KeyError):  # a type that ONNX does not know
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
        if not kind.hasobject:
            return kind
    raise CannotCut(f"{tensor.name} does not have numbers")


def _values(tensor: TensorProto, draws: np.random.Generator, table: str) -> np.ndarray:
    """Random numbers for a weight; integers of more than a byte are 0."""
    dims, kind = tuple(tensor.dims), _kind(tensor)
    if table and len(dims) == 2:
        dims = (min(dims[0], MOST_TOKENS), dims[1])
    if math.prod(dims) > MOST_WEIGHTS:
        raise CannotCut(f"{tensor.name} is too large")
    if kind.itemsize == 1 and kind.kind in "iu":
        return np.frombuffer(draws.bytes(math.prod(dims)), kind).reshape(dims)
    if kind.kind in "iub":
        return np.zeros(dims, kind)
    if table and len(dims) == 2:
        return rotary_table(*dims, table).astype(kind)
    return (draws.standard_normal(dims) / 8).astype(kind)


def rotary_table(rows: int, width: int, table: str) -> np.ndarray:
    """Cosines or sines of ``rows`` positions, one of ``width`` frequencies in each column."""
    angles = np.outer(np.arange(rows), 10_000.0 ** (-np.arange(width) / max(width, 1)))
    table_of = np.cos if table == "cos_cache" else np.sin
    return np.asarray(table_of(angles))
