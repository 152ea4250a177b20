"""A model without its weights: whole, or the part that computes what its attention nodes read.

A small model gets drawn weights. Of a large one the products with weights are left out: what they
give becomes an input of the part. Lengths, positions, masks and tables are computed as in the
model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
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
#: Elements of a weight from which on the product with it is left out.
_MOST_OF_ONE: Final = 1 << 14
#: Tokens of the longest call of a program, and so rows of a drawn rotary table.
MOST_TOKENS: Final = 4100
#: What a node reads that is not computed from weights, as a rule.
SEEN: Final = (
    *("past_key", "past_value", "key", "seqlens_k", "total_sequence_length", "query_seqlens"),
    *("cos_cache", "sin_cache", "position_ids", "attention_bias", "k_scale", "v_scale"),
)
_PRESENTS: Final = ("present_key", "present_value")


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
    _draw(graph, {})
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
    heavy = {
        name
        for name, tensor in weights.items()
        if is_empty(tensor) and name not in tables and _elements(tensor) > _MOST_OF_ONE
    }
    kept, cut = _kept(roots, makers, heavy, given)
    names = {name for each in kept for name in _reads(each)}
    drawn = [weights[name] for name in names & weights.keys() - tables.keys()]
    if sum(map(_elements, filter(is_empty, drawn))) > MOST_WEIGHTS:
        raise CannotCut("what computes the inputs of its attention nodes has too many weights")
    made = GraphProto(name=graph.name)
    made.node.extend(each for each in graph.node if id(each) in set(map(id, kept)))
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
    roots: Iterable[NodeProto], makers: Mapping[str, NodeProto], heavy: Set[str], given: Set[str]
) -> tuple[list[NodeProto], list[str]]:
    """The nodes that the ``roots`` come from, up to those that read ``heavy`` weights, and the
    values that these make."""
    kept: dict[int, NodeProto] = {}
    cut: dict[str, None] = {}
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if id(node) in kept:
            continue
        kept[id(node)] = node
        for name in _reads(node):
            if name in given or name not in makers:
                continue
            if heavy.isdisjoint(_reads(makers[name])):
                waiting.append(makers[name])
            else:
                cut[name] = None
    return [*kept.values()], [*cut]


def _seen(nodes: Iterable[AttentionNode]) -> Iterator[str]:
    for node in nodes:
        yield from (node.inputs[name] for name in SEEN if name in node.inputs)
        yield from (node.outputs[name] for name in _PRESENTS if name in node.outputs)


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
    for name, tensor in _tensors(graph):
        if is_empty(tensor):
            _fill(tensor, draws, tables.get(name, ""))


def _tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """The constants of the graph and of its subgraphs, with the names of their values."""
    yield from ((tensor.name, tensor) for tensor in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield node.output[0], attribute.t
        for inner in subgraphs(node):
            yield from _tensors(inner)


def _fill(tensor: TensorProto, draws: np.random.Generator, table: str) -> None:
    dims, word = [*tensor.dims], WORD_OF_ONNX.get(tensor.data_type)
    if table and len(dims) == 2:
        dims[0] = min(dims[0], MOST_TOKENS)
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
