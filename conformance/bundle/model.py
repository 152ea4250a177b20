"""Builds the ONNX model of a call: one node, declared as exporters declare it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from conformance.base.array_types import ONNX, ONNX_OF_NUMPY
from conformance.case.graph import parsed
from conformance.operator.call import Call
from conformance.operator.signature import DOMAIN, OP_TYPE, OPSET_VERSION
from conformance.operator.tensors import Step, Tensor, attributes_of

#: Supported by ONNX Runtime 1.20 and by tract, and recent enough for bfloat16 and float8.
IR_VERSION: Final = 10
DEFAULT_OPSET: Final = 18


def build_model(
    call: Call, step: Step, constants: Mapping[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """The model of ``call``. ``step`` is its first step, which gives the shapes of static dims.

    ``constants`` has the array of each of its constants, and may have others.

    Inputs have symbolic dims unless the case has static ones. Outputs are declared by rank, with
    dims that have neither name nor value: ONNX Runtime Web rejects concrete present shapes that
    differ from its own inference, and tract cannot unify names with numbers.
    """
    values = constants or {}
    return model_of(
        [node_of(call, step)],
        [_declare(tensor) for tensor in (*step.inputs, *step.buffers) if tensor.fed],
        [_declare(tensor) for tensor in step.outputs if tensor.connected],
        [tensor_of(values[each.name], each.name) for each in step.inputs if each.constant],
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = DEFAULT_OPSET,
) -> onnx.ModelProto:
    """A model of these nodes, for the suite's operator and this opset of ONNX."""
    graph = helper.make_graph(nodes, "gqa", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, OPSET_VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="gqa-conformance")
    model.ir_version = IR_VERSION
    return model


def tensor_of(values: np.ndarray, name: str) -> onnx.TensorProto:
    """An array as a tensor of a file or a model; its bytes are the last field."""
    return onnx.TensorProto(
        name=name,
        data_type=ONNX_OF_NUMPY[values.dtype],
        dims=values.shape,
        raw_data=values.tobytes(),
    )


def filled_model(content: bytes, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """The model of a graph's file, with the ``weights`` that are not in the file.

    As in the models of single nodes, outputs are declared by rank only.
    """
    model = onnx.ModelProto()
    model.CopyFrom(parsed(content).model)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    for output in model.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()
    return model


def with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """A copy of the model whose inputs and outputs are declared with these shapes."""
    static = onnx.ModelProto()
    static.CopyFrom(model)
    for value in (*static.graph.input, *static.graph.output):
        dtype = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, dtype, shapes[value.name]))
    return static


def node_of(
    call: Call, step: Step, name: str = "gqa", renamed: Mapping[str, str] | None = None
) -> onnx.NodeProto:
    """The node of ``call``. ``renamed`` maps names of inputs and outputs to names in the graph."""

    def names(tensors: Sequence[Tensor]) -> list[str]:
        """The node's list of names: empty for an omitted tensor, and without the trailing ones."""
        own = [
            (tensor.same_as or tensor.name) if tensor.connected else ""
            for tensor in tensors
            if tensor.state != "trailing"
        ]
        return [(renamed or {}).get(name, name) for name in own]

    node = helper.make_node(
        OP_TYPE, names(step.inputs), names(step.outputs), name=name, domain=DOMAIN
    )
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in attributes_of(call).items()
    )
    return node


def _declare(tensor: Tensor) -> onnx.ValueInfoProto:
    if tensor.shape is None:
        dims: list[int | str | None] = [None] * tensor.rank
    elif tensor.dims:
        dims = [name or size for name, size in zip(tensor.dims, tensor.shape, strict=True)]
    else:
        dims = list(tensor.shape)
    return declare(tensor.name, tensor.dtype, dims)


def declare(name: str, dtype: str, dims: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    """An input or output of a graph; a dim of None gets neither a name nor a value."""
    return helper.make_tensor_value_info(name, ONNX[dtype], dims)
