"""The GroupQueryAttention nodes of a model, with the types of their inputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from conformance.base.array_types import ONNX
from conformance.base.paths import shown
from conformance.base.text import safe_name
from conformance.base.words import listed
from conformance.graph.parts import CannotCut
from conformance.graph.reading import ModelError, ReadModel, reads
from conformance.graph.shapes import UNKNOWN, ValueType, inferred, types_of
from conformance.graph.walks import nodes_in, subgraphs
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OP_TYPE, OUTPUT_NAMES

#: Other operators that compute attention.
ATTENTION: Final = (
    "Attention",
    "MultiHeadAttention",
    "PagedAttention",
    "SparseAttention",
    "DecoderMaskedMultiHeadAttention",
    "DecoderMaskedSelfAttention",
    "PackedAttention",
    "PackedMultiHeadAttention",
    "QAttention",
    "LinearAttention",
)

#: The most subgraphs with attention; the shapes in each are inferred anew.
_MOST_BODIES: Final = 64
#: The number of a layer in the name of a node or a value: `model.layers.12.attn`, `key_values.12`.
_LAYER: Final = re.compile(r"(?:layers?|blocks?|key_values?|\bh|present|past)[._/]?(\d{1,6})\b")


@dataclass(frozen=True)
class AttentionNode:
    """A node of the model.

    ``inputs`` and ``outputs`` map the operator's names to the names of the connected values, and
    ``given_inputs`` and ``given_outputs`` count the names in the node's lists, empty ones included.
    ``types`` has what is known about the connected values. ``layer`` is the number of the layer in
    the names of the model; if they have none, the node's place among the nodes. ``source`` is the
    node whose presents are this node's past: it borrows that node's KV cache. ``origins`` has the
    present and the node that past_key and past_value come from. ``reads_presents``: another node
    reads this node's presents, or they are outputs of the graph. ``given`` are the inputs that the
    caller of the model gives, by the operator's names.
    """

    name: str
    layer: int
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    given_inputs: int
    given_outputs: int
    attributes: Mapping[str, int | float | str]
    types: Mapping[str, ValueType]
    source: str | None = None
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    reads_presents: bool = True
    given: frozenset[str] = frozenset()

    def type(self, parameter: str) -> ValueType:
        """The type of an input or output by the operator's name for it."""
        return self.types.get(parameter, UNKNOWN)


@dataclass(frozen=True)
class FoundNodes:
    """The nodes of a model. ``warning`` says why shapes could not be inferred, "" if they could."""

    nodes: tuple[AttentionNode, ...]
    warning: str


def nodes_of(model: ReadModel) -> FoundNodes:
    """The GroupQueryAttention nodes of the model and of its subgraphs.

    Raises :class:`ModelError` if there is none.
    """
    bodies = [inner for node in nodes_in(model.proto.graph) for inner in subgraphs(node)]
    if sum(map(_has_attention, bodies)) > _MOST_BODIES:
        raise ModelError(
            f"{shown(model.path)}: more than {_MOST_BODIES} of its subgraphs have attention."
        )
    proto, warning = model.inferred
    found = list(_walk(proto.graph, {}, proto.opset_import, ""))
    if not found:
        raise ModelError(_without_attention(model))
    names = _unique([where + (node.name or OP_TYPE) for node, _, where in found])
    presents = {
        value: (present, name)
        for name, (node, _, _) in zip(names, found, strict=True)
        for present, value in zip(OUTPUT_NAMES[1:3], node.output[1:3], strict=False)
    }
    same = {
        node.output[0]: node.input[0]
        for node in proto.graph.node
        if node.op_type == "Identity" and node.input
    }
    outside = {each.name for each in proto.graph.input}
    read = {name for node in proto.graph.node for name in reads(node)}
    read |= {output.name for output in proto.graph.output}
    nodes: list[AttentionNode] = []
    for order, (name, (node, types, _)) in enumerate(zip(names, found, strict=True)):
        made = node_with_types(node, name, types)
        inputs, outputs = made.inputs, made.outputs
        pasts = {each: _origin(inputs.get(each, ""), same) for each in ("past_key", "past_value")}
        origins = {each: presents[value] for each, value in pasts.items() if presents.get(value)}
        layer = layer_in(" ".join((name, inputs.get("past_key", ""), *outputs.values())))
        nodes.append(
            replace(
                made,
                layer=order if layer is None else layer,
                source=next((of for present, of in origins.values() if present[8:] == "key"), None),
                origins=origins,
                given=frozenset(name for name, value in inputs.items() if value in outside),
                reads_presents=not read.isdisjoint(
                    outputs.get(present, "") for present in ("present_key", "present_value")
                ),
            )
        )
    return FoundNodes(tuple(nodes), warning)


def node_with_types(node: NodeProto, name: str, types: Mapping[str, ValueType]) -> AttentionNode:
    """The node, called ``name``; ``types`` are those of the graph's values."""
    inputs, outputs = connected(INPUT_NAMES, node.input), connected(OUTPUT_NAMES, node.output)
    return AttentionNode(
        name=name,
        layer=0,
        inputs=inputs,
        outputs=outputs,
        given_inputs=len(node.input),
        given_outputs=len(node.output),
        attributes=attributes_in(node),
        types={each: types.get(of, UNKNOWN) for each, of in (inputs | outputs).items()},
    )


def layer_in(names: str) -> int | None:
    """The number of the layer in the names of a node and its values, None if there is none."""
    found = _LAYER.search(names)
    return int(found[1]) if found else None


def _origin(value: str, same: Mapping[str, str]) -> str:
    """The value that ``value`` is a copy of, through all nodes that only pass it on."""
    for _ in range(len(same)):
        value = same.get(value, value)
    return value


def _without_attention(model: ReadModel) -> str:
    every = Counter(node.op_type for node in nodes_in(model.proto.graph))
    others = [f"{every[name]} {name}" for name in ATTENTION if every[name]]
    instead = f"it has {listed(others)}, which this command does not check" if others else ""
    if not others:
        products = every["MatMul"] + every["MatMulNBits"] + every["Gemm"]
        instead = f"it has {every['Softmax']} Softmax and {products} matrix products"
    return (
        f"{shown(model.path)}: no node is a {OP_TYPE} of {DOMAIN}; {instead}. Exporters write"
        f" {OP_TYPE} when they are asked for ONNX Runtime's fused attention."
    )


def is_attention(node: NodeProto) -> bool:
    """Whether the node has the operator that the suite checks."""
    return (node.op_type, node.domain) == (OP_TYPE, DOMAIN)


def _has_attention(graph: onnx.GraphProto) -> bool:
    return any(map(is_attention, nodes_in(graph)))


_Found = tuple[NodeProto, Mapping[str, ValueType], str]


def _walk(
    graph: onnx.GraphProto,
    outer: Mapping[str, ValueType],
    opsets: Sequence[onnx.OperatorSetIdProto],
    where: str,
) -> Iterator[_Found]:
    """The nodes of the graph and of its subgraphs, with the types of the values visible to them."""
    made = {name: UNKNOWN for node in graph.node for name in node.output}
    types = {**outer, **made, **types_of(graph)}
    types |= sliced_away(graph, types)
    for node in graph.node:
        if is_attention(node):
            yield node, types, where
        for inner in subgraphs(node):
            if _has_attention(inner):
                place = f"{where}{node.name or node.op_type}/{inner.name}/"
                yield from _walk(_alone(inner, types, opsets), types, opsets, place)


def sliced_away(
    graph: onnx.GraphProto, types: Mapping[str, ValueType]
) -> Iterator[tuple[str, ValueType]]:
    """The outputs of Slice nodes that take no rows, which shape inference does not report."""
    whole = (TensorProto.INT32, TensorProto.INT64)
    fixed = {each.name: each for each in graph.initializer if each.data_type in whole}

    def constant(name: str) -> list[int]:
        with suppress(KeyError, CannotCut):
            return [*array_of(fixed[name]).ravel()]
        return [0, 1]

    for node in graph.node:
        if node.op_type == "Slice" and len(node.input) > 3 and node.output:
            starts, ends, axes = map(constant, node.input[1:4])
            known = types.get(node.output[0], UNKNOWN)
            if starts == ends and len(axes) == 1 and known.dims is not None:
                dims = [*known.dims]
                with suppress(IndexError):  # an axis that there is not
                    dims[axes[0]] = 0
                yield node.output[0], ValueType(known.dtype, tuple(dims))


def array_of(tensor: TensorProto) -> np.ndarray:
    """The content of an initializer. Raises :class:`CannotCut`."""
    try:
        if not is_empty(tensor):
            return numpy_helper.to_array(tensor)
    except Exception as error:  # of several classes, for data that do not fit dims and type
        raise CannotCut(f"the content of {tensor.name} is not what its shape says") from error
    raise CannotCut(f"the content of {tensor.name} is in another file")


def constants_of(graph: onnx.GraphProto, names: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The initializers with these names, each with its content if it has been read."""
    for tensor in graph.initializer:
        if tensor.name in names:
            with suppress(CannotCut):
                yield tensor.name, array_of(tensor)


def is_empty(tensor: TensorProto) -> bool:
    """Whether the content of the tensor was left out when the model was read."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _alone(
    inner: onnx.GraphProto,
    outer: Mapping[str, ValueType],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> onnx.GraphProto:
    """The subgraph with the types of its values; inference writes them for whole models only."""
    graph = onnx.GraphProto()
    graph.CopyFrom(inner)
    own = {each.name for each in graph.input}
    needed = dict.fromkeys(name for node in nodes_in(graph) for name in node.input)
    for name in needed:
        known = outer.get(name, UNKNOWN)
        if name not in own and known.dtype is not None:
            graph.input.append(helper.make_tensor_value_info(name, ONNX[known.dtype], known.dims))
    typed, _ = inferred(helper.make_model(graph, opset_imports=list(opsets)))
    return typed.graph


def _unique(names: Sequence[str]) -> list[str]:
    """The names; equal ones are numbered."""
    total, seen = Counter(names), Counter[str]()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(f"{name}#{seen[name]}" if total[name] > 1 else name)
    return unique


def connected(parameters: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The connected ones of an operator's ``parameters``, with the names of the values."""
    return {parameter: name for parameter, name in zip(parameters, names, strict=False) if name}


def attributes_in(node: NodeProto) -> dict[str, int | float | str]:
    """The attributes with a single value."""
    found: dict[str, int | float | str] = {}
    for attribute in node.attribute:
        if attribute.type == AttributeProto.STRING:
            found[attribute.name] = safe_name(attribute.s.decode("utf-8", "replace"))
        elif attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
            found[attribute.name] = helper.get_attribute_value(attribute)
    return found
