"""Makes a model of some nodes of a model's graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Set
from typing import Any, Final

import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto

from conformance.graph.reading import reads
from conformance.graph.walks import nodes_in

#: The most elements of all random weights; a model with more of them is not run.
MOST_WEIGHTS: Final = 1 << 22


class CannotCut(ValueError):
    """The part cannot be cut out; the message gives the reason."""


def reached(values: Iterable[str], origins: Callable[[str], Iterable[str] | None]) -> set[str]:
    """The values, and all values that they are computed from.

    ``origins`` returns the values that a value is computed from directly.
    """
    found: set[str] = set()
    waiting = [*values]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += origins(value) or ()
    return found


def nodes_that_make(values: Set[str], graph: GraphProto) -> list[NodeProto]:
    """The nodes that make the values, in the order of the graph."""
    return [node for node in nodes_in(graph) if not values.isdisjoint(node.output)]


def model_of(
    model: onnx.ModelProto,
    nodes: Iterable[NodeProto],
    inputs: Iterable[ValueInfoProto],
    outputs: Iterable[ValueInfoProto],
) -> onnx.ModelProto:
    """A model of some ``nodes`` of ``model`` in this order, with the weights that they read."""
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    part.graph.name = "part"
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(outputs)
    read = {name for node in part.graph.node for name in reads(node)}
    weights = (each for each in model.graph.initializer if each.name in read)
    part.graph.initializer.extend(weights)
    return part


def put(field: Any, content: Iterable[Any]) -> None:
    """Make this the content of the repeated field, which it may be a part of."""
    copies = [type(each).FromString(each.SerializeToString()) for each in content]
    del field[:]
    field.extend(copies)


def too_many(weights: Iterable[TensorProto]) -> bool:
    """Whether the weights have more elements than are filled with random numbers."""
    return sum(math.prod(weight.dims) for weight in weights) > MOST_WEIGHTS
