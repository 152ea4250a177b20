"""A model without GroupQueryAttention: the same calls in standard operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import GraphProto, TensorProto

from conformance.graph.nodes import attributes_in, is_attention
from conformance.graph.parts import put
from conformance.graph.shapes import UNKNOWN
from conformance.graph.walks import inlined, nodes_in, subgraphs
from conformance.operator.signature import DOMAIN
from conformance.rewriting.dense import (
    CannotRewrite,
    ValueTypes,
    borrows,
    opset_of,
    types_in,
    unused_prefix,
)
from conformance.rewriting.dense_nodes import inputs_of
from conformance.rewriting.node_writer import LOWEST_OPSET, NodeWriter
from conformance.rewriting.standard_nodes import (
    FLOAT8_OPSET,
    CannotExpress,
    write_in_standard_operators,
)


@dataclass(frozen=True)
class StandardModel:
    """A rewritten model.

    ``rewritten`` are the names of the nodes that it had instead, and ``left`` those of the nodes
    that stay, each with the reason, half a sentence.
    """

    model: onnx.ModelProto
    rewritten: tuple[str, ...]
    left: tuple[tuple[str, str], ...]


def standard_model(model: onnx.ModelProto) -> StandardModel:
    """The model with standard operators in place of its GroupQueryAttention.

    Names, weights, inputs and outputs stay, but for the names of sizes of outputs. Local functions
    are inlined if one of them has such a node. External data may be missing. ``model`` is not
    changed.

    Raises CannotRewrite: functions cannot be inlined, or the operator set is too old.
    """
    standard = onnx.ModelProto()
    standard.CopyFrom(model)
    if any(is_attention(node) for each in standard.functions for node in nodes_in(each)):
        try:
            standard = inlined(standard, lambda _: False)
        except ValueError as error:
            raise CannotRewrite(f"Its functions cannot be inlined: {error}.") from None
    opset = opset_of(standard, LOWEST_OPSET)
    types = types_in(standard)
    in_float8 = TensorProto.FLOAT8E4M3FN in types.kinds.values()
    if in_float8 and opset < FLOAT8_OPSET and _is_the_same(standard.graph, opset):
        opset = FLOAT8_OPSET
        kept = [o for o in standard.opset_import if o.domain not in ("", "ai.onnx")]
        put(standard.opset_import, [*kept, onnx.helper.make_opsetid("", opset)])
    rewriting = _NodeReplacement(types, NodeWriter(opset, unused_prefix(standard, "gqa/")))
    rewriting.rewrite(standard.graph)
    _forget_sizes(standard.graph)
    standard.graph.initializer.extend(rewriting.write.constants.values())
    if not any(node.domain == DOMAIN for node in nodes_in(standard.graph)):
        put(standard.opset_import, [o for o in standard.opset_import if o.domain != DOMAIN])
    return StandardModel(standard, tuple(rewriting.rewritten), tuple(rewriting.left))


def _is_the_same(graph: GraphProto, opset: int) -> bool:
    """Whether no operator of the graph has changed from this operator set to that of float8."""
    nodes = [node for node in nodes_in(graph) if node.domain in ("", "ai.onnx")]
    try:
        return all(
            onnx.defs.get_schema(node.op_type, FLOAT8_OPSET).since_version <= opset
            for node in nodes
        )
    except onnx.defs.SchemaError:
        return False


def _forget_sizes(graph: GraphProto) -> None:
    """Leave out what the graph says of sizes beyond its inputs, apart from numbers in outputs.

    Exporters say things that do not fit, and tract, which is told the sizes of inputs, refuses to
    unify them with names.
    """
    del graph.value_info[:]
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.Clear()


class _NodeReplacement:
    """One walk over a model."""

    def __init__(self, types: ValueTypes, write: NodeWriter) -> None:
        self.types = types
        self.write = write
        self.rewritten: list[str] = []
        self.left: list[tuple[str, str]] = []

    def rewrite(self, graph: GraphProto) -> None:
        """Rewrite the nodes of a graph and of its subgraphs."""
        put(graph.node, [each for node in graph.node for each in self._instead(node)])

    def _instead(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        for body in subgraphs(node):
            self.rewrite(body)
        if not is_attention(node):
            yield node
            return
        name = node.name or node.op_type
        types = {name: self.types.get(value, UNKNOWN) for name, value in inputs_of(node).items()}
        try:
            attributes_in(node)["num_heads"]
            write_in_standard_operators(
                node, types, "key" not in types and borrows(node, types), self.write
            )
        except (CannotExpress, KeyError) as error:
            self.write.take()
            self.left.append((name, str(error)))
            yield node
            return
        self.rewritten.append(name)
        yield from self.write.take()
