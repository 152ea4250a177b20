"""A model's float16 and bfloat16 as float32, everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    GraphProto,
    NodeProto,
    TensorProto,
    TypeProto,
    helper,
    numpy_helper,
)

from conformance.base.array_types import ONNX
from conformance.graph.nodes import is_empty
from conformance.graph.parts import put
from conformance.graph.walks import subgraphs

#: The floating-point types of 16 bits, by their words.
HALVES: Final[Mapping[str, int]] = {name: ONNX[name] for name in ("float16", "bfloat16")}
_HALVES: Final = frozenset(HALVES.values())
#: The attributes of any operator that name a type of an element.
_TYPES: Final = frozenset({"to", "dtype", "output_dtype", "stash_type"})
#: The accuracy_level of MatMulNBits and QMoE that asks for float32.
_EXACT: Final = 1


def make_float32(message: Message, *, exact: bool = True) -> None:
    """Make tensors, declared types and attributes that name types float32, at any depth.

    If ``exact``, a product with quantised weights takes its other factor in float32, too, and not
    in int8. Raises ValueError for a tensor whose content is not there.
    """
    if isinstance(message, TensorProto):
        if message.data_type in _HALVES:
            if is_empty(message):
                raise ValueError(f"{message.name} is in another file")
            numbers = numpy_helper.to_array(message).astype(np.float32)
            message.CopyFrom(numpy_helper.from_array(numbers, message.name))
        return
    if isinstance(message, TypeProto.Tensor | TypeProto.SparseTensor):
        if message.elem_type in _HALVES:
            message.elem_type = TensorProto.FLOAT
        return
    if isinstance(message, AttributeProto) and message.name in _TYPES and message.i in _HALVES:
        message.i = TensorProto.FLOAT
    if isinstance(message, AttributeProto) and message.name == "accuracy_level" and exact:
        message.i = _EXACT
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                make_float32(each, exact=exact)


def round_values(graph: GraphProto, dtypes: Mapping[str, str | None]) -> None:
    """Round each value that a node makes to the type in ``dtypes``, if that is less than float32.

    The values are float32 (:func:`make_float32`); those in subgraphs are rounded, too.
    """
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            round_values(inner, dtypes)
        nodes.append(node)
        for at, name in enumerate(node.output):
            half = HALVES.get(dtypes.get(name) or "")
            if half is not None and name:
                node.output[at] = f"{name}/exact"
                stored = f"{name}/stored"
                nodes.append(helper.make_node("Cast", [node.output[at]], [stored], to=half))
                nodes.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
    put(graph.node, nodes)
