"""A model without its weights: whole, or the part that computes what its attention nodes read.

A small model gets drawn weights. Of a large one the products with weights are left out: what they
give becomes an input of the part. Lengths, positions, masks and tables are computed as in the
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from conformance.base.array_types import NUMPY, ONNX, WORD_OF_ONNX
from conformance.model.nodes import AttentionNode, is_attention, is_empty
from conformance.model.reading import ReadModel, makers_in, nodes_in, subgraphs
from conformance.model.shapes import UNKNOWN, ValueType, types_of

#: Elements of all weights that are drawn; a model with more of them is cut at its products.
MOST_WEIGHTS: Final = 1 << 22
#: Rows of a drawn rotary table: more than the calls of a program have tokens.
_MOST_ROWS: Final = 2048
#: What a node reads that is not computed from weights, as a rule.
SEEN: Final = (
    *("past_key", "past_value", "key", "seqlens_k", "total_sequence_length", "query_seqlens"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "k_scale", "v_scale"),
)


@dataclass(frozen=True)
class Skeleton:
    """A model that can be run without the weights of another.

    ``inputs`` has what is known of its inputs, some of which stand for values that weights would
    have made. ``constants`` are the values of its initializers that attention nodes read.
    """

    model: bytes
    inputs: Mapping[str, ValueType]
    constants: Mapping[str, np.ndarray]


class CannotCut(ValueError):
    """The part cannot be cut out; the message says why."""


def loadable(model: ReadModel) -> bytes | None:
    """The model as it is written, with its large weights as inputs; None if they can be drawn."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.written)
    graph = proto.graph
    left_out = [tensor for tensor in graph.initializer if is_empty(tensor)]
    if sum(map(_elements, left_out)) <= MOST_WEIGHTS:
        return None
    kept = [tensor for tensor in graph.initializer if not is_empty(tensor)]
    known = {each.name for each in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in left_out
        if tensor.name not in known
    )
    del graph.initializer[:]
    graph.initializer.extend(kept)
    _fill_attributes(graph, np.random.default_rng(1), {})
    return bytes(proto.SerializeToString())


def whole(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton | None:
    """The model as it is written, with drawn weights; None if it has too many."""
    left_out = [tensor for tensor in model.written.graph.initializer if is_empty(tensor)]
    if sum(map(_elements, left_out)) > MOST_WEIGHTS:
        return None
    proto = onnx.ModelProto()
    proto.CopyFrom(model.written)
    tables = _tables(nodes, makers_in(model.proto.graph))
    _draw(proto.graph, tables)
    inner = {value for node in nodes for value in (*node.inputs.values(), *node.outputs.values())}
    outer = {name for each in proto.graph.node for name in each.output}
    _add_outputs(proto.graph, [name for name in _seen(nodes) if name in outer & inner], {})
    return _made(proto, nodes)


def part(model: ReadModel, nodes: Sequence[AttentionNode]) -> Skeleton:
    """What computes the inputs of the attention nodes, up to products with weights.

    Raises :class:`CannotCut`.
    """
    graph = model.proto.graph
    makers = {name: each for each in graph.node for name in each.output if name}
    weights = {tensor.name: tensor for tensor in graph.initializer}
    given = {each.name for each in graph.input} | weights.keys()
    types = types_of(model.inferred[0].graph)
    roots = [each for each in graph.node if any(map(is_attention, _with_inner(each)))]
    tables = _tables(nodes, makers_in(graph))
    for limit in (1 << 18, 1 << 12, 0):
        kept, cut = _kept(roots, makers, weights, given, limit, tables)
        names = {name for each in kept for name in _reads(each)}
        drawn = [weights[name] for name in names if name in weights and is_empty(weights[name])]
        if sum(_elements(tensor) for tensor in drawn if tensor.name not in tables) <= MOST_WEIGHTS:
            break
    else:
        raise CannotCut("what computes the inputs of its attention nodes has too many weights")
    made = GraphProto(name=graph.name)
    made.node.extend(each for each in graph.node if any(each is one for one in kept))
    made.initializer.extend(tensor for tensor in graph.initializer if tensor.name in names)
    made.input.extend(each for each in graph.input if each.name in names)
    for name in cut:
        known = types.get(name, UNKNOWN)
        if known.dtype is None or known.dims is None:
            raise CannotCut(f"the type of {name} cannot be told")
        made.input.append(helper.make_tensor_value_info(name, ONNX[known.dtype], known.dims))
    outputs = {name for each in kept for name in each.output}
    made.value_info.extend(each for each in graph.value_info if each.name in outputs)
    made.output.extend(each for each in graph.output if each.name in outputs)
    results = [name for each in roots for name in each.output[:1]]
    _draw(made, tables)
    _add_outputs(made, [name for name in (*_seen(nodes), *results) if name in outputs], types)
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    proto.graph.CopyFrom(made)
    return _made(proto, nodes)


def _kept(
    roots: Iterable[NodeProto],
    makers: Mapping[str, NodeProto],
    weights: Mapping[str, TensorProto],
    given: set[str],
    limit: int,
    tables: Mapping[str, str],
) -> tuple[list[NodeProto], list[str]]:
    """The nodes of the part, and the values at which it is cut."""
    kept: list[NodeProto] = []
    cut: dict[str, None] = {}
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if any(node is one for one in kept):
            continue
        kept.append(node)
        for name in _reads(node):
            maker = makers.get(name)
            if name in given or maker is None:
                continue
            heavy = any(
                is_empty(weights[each]) and _elements(weights[each]) > limit
                for each in _reads(maker)
                if each in weights and each not in tables
            )
            if heavy:
                cut[name] = None
            else:
                waiting.append(maker)
    return kept, [*cut]


def _seen(nodes: Iterable[AttentionNode]) -> Iterator[str]:
    for node in nodes:
        yield from (node.inputs[name] for name in SEEN if name in node.inputs)


def _tables(nodes: Iterable[AttentionNode], makers: Mapping[str, NodeProto]) -> dict[str, str]:
    """The values that rotary tables come from, each with "cos_cache" or "sin_cache"."""
    found: dict[str, str] = {}
    for node in nodes:
        for parameter in ("cos_cache", "sin_cache"):
            waiting = [node.inputs[parameter]] if parameter in node.inputs else []
            while waiting:
                name = waiting.pop()
                if name not in found:
                    found[name] = parameter
                    waiting += _origins(name, makers)
    return found


def _origins(name: str, makers: Mapping[str, NodeProto]) -> Iterator[str]:
    """The values that a value is, or is a part of."""
    node = makers.get(name)
    if node is not None and node.op_type == "If":
        for branch in node.attribute:
            yield branch.g.output[[*node.output].index(name)].name
    elif node is not None:
        yield from node.input[:1]


def _draw(graph: GraphProto, tables: Mapping[str, str]) -> None:
    """Give each weight of the graph content, a rotary table its cosines and sines."""
    draws = np.random.default_rng(1)
    for tensor in graph.initializer:
        if is_empty(tensor):
            _fill(tensor, draws, tables.get(tensor.name, ""))
    _fill_attributes(graph, draws, tables)


def _fill_attributes(
    graph: GraphProto, draws: np.random.Generator, tables: Mapping[str, str]
) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and is_empty(attribute.t):
                _fill(attribute.t, draws, tables.get(node.output[0], ""))
            elif attribute.type == AttributeProto.GRAPH:
                for tensor in filter(is_empty, attribute.g.initializer):
                    _fill(tensor, draws, tables.get(tensor.name, ""))
                _fill_attributes(attribute.g, draws, tables)


def _fill(tensor: TensorProto, draws: np.random.Generator, table: str) -> None:
    dims, word = [*tensor.dims], WORD_OF_ONNX.get(tensor.data_type)
    if table and len(dims) == 2:
        dims[0] = min(dims[0], _MOST_ROWS)
    values: np.ndarray
    if word in NUMPY and np.dtype(NUMPY[word]).kind not in "iu":
        values = draws.standard_normal(dims) / 8
        if table and len(dims) == 2:
            values = rotary_table(dims[0], dims[1], table)
        values = values.astype(NUMPY[word])
        content = values.tobytes()
    elif tensor.data_type in (TensorProto.UINT8, TensorProto.INT8):
        content = draws.bytes(math.prod(dims))
    else:
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        content = bytes(math.prod(dims) * np.dtype(kind).itemsize)
    name, data_type = tensor.name, tensor.data_type
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.raw_data = name, data_type, content
    tensor.dims.extend(dims)


def rotary_table(rows: int, width: int, table: str) -> np.ndarray:
    """Cosines or sines of ``rows`` positions, one of ``width`` frequencies in each column."""
    angles = np.outer(np.arange(rows), 10_000.0 ** (-np.arange(width) / max(width, 1)))
    table_of = np.cos if table == "cos_cache" else np.sin
    return np.asarray(table_of(angles))


def _add_outputs(graph: GraphProto, names: Iterable[str], types: Mapping[str, ValueType]) -> None:
    known = {each.name for each in graph.output}
    for name in dict.fromkeys(names):
        if name not in known:
            found = types.get(name, UNKNOWN)
            kind = ONNX[found.dtype] if found.dtype else TensorProto.UNDEFINED
            typed = helper.make_tensor_value_info(name, kind, found.dims)
            graph.output.append(typed if found.dtype else onnx.ValueInfoProto(name=name))


def _made(proto: onnx.ModelProto, nodes: Sequence[AttentionNode]) -> Skeleton:
    graph = proto.graph
    types = types_of(graph)
    read = {*_seen(nodes)}
    constants = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name in read
    }
    fixed = {tensor.name for tensor in graph.initializer}
    inputs = {each.name: types[each.name] for each in graph.input if each.name not in fixed}
    return Skeleton(bytes(proto.SerializeToString()), inputs, constants)


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
    """The node and the nodes of its subgraphs."""
    yield node
    for inner in subgraphs(node):
        yield from nodes_in(inner)


def _reads(node: NodeProto) -> Iterator[str]:
    """The names that the node reads, those of its subgraphs included."""
    for each in _with_inner(node):
        yield from filter(None, each.input)
    for inner in subgraphs(node):
        yield from (output.name for output in inner.output)


def _elements(tensor: TensorProto) -> int:
    return math.prod(tensor.dims)
