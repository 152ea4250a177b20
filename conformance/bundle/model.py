"""A call as an ONNX model of one node, as exporters write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx
from onnx import helper

from conformance.base.dtypes import ONNX
from conformance.base.signature import DOMAIN, OP_TYPE, OPSET_VERSION
from conformance.case.call import Call
from conformance.case.tensors import Step, Tensor, attributes_of

#: Old enough for ONNX Runtime 1.20 and for tract, new enough for bfloat16 and float8.
IR_VERSION: Final = 10
DEFAULT_OPSET: Final = 18


def build_model(call: Call, step: Step) -> onnx.ModelProto:
    """The model of ``call``; ``step`` is its first step, whose shapes serve where dims are static.

    Inputs have symbolic dims unless the case says static. Outputs are declared by rank, with dims
    that have neither name nor value: concrete present shapes collide with ONNX Runtime Web's own
    inference, and tract cannot unify names with numbers.
    """
    graph = helper.make_graph(
        [node_of(call, step)],
        "gqa",
        [_declare(tensor) for tensor in step.inputs if tensor.connected],
        [_declare(tensor) for tensor in step.outputs if tensor.connected],
    )
    model = helper.make_model(
        graph,
        opset_imports=[
            helper.make_opsetid("", DEFAULT_OPSET),
            helper.make_opsetid(DOMAIN, OPSET_VERSION),
        ],
        producer_name="gqa-conformance",
    )
    model.ir_version = IR_VERSION
    return model


def node_of(
    call: Call, step: Step, name: str = "gqa", renamed: Mapping[str, str] | None = None
) -> onnx.NodeProto:
    """The node alone; ``renamed`` maps the operator's names to those of the graph's values."""

    def names(tensors: Sequence[Tensor]) -> list[str]:
        """Empty for an omitted one; the list ends before the trailing ones."""
        return [
            (renamed or {}).get(tensor.name, tensor.name) if tensor.connected else ""
            for tensor in tensors
            if tensor.state != "trailing"
        ]

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
    """A graph's input or output; a dim that is None has neither name nor value."""
    return helper.make_tensor_value_info(name, ONNX[dtype], dims)
