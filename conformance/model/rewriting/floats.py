"""A model's float16 and bfloat16 as float32, everywhere."""

from __future__ import annotations

from typing import Final

import numpy as np
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, TypeProto, numpy_helper

from conformance.graph.nodes import is_empty

_HALVES: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
#: The attributes of any operator that name a type of an element.
_TYPES: Final = frozenset({"to", "dtype", "output_dtype", "stash_type"})
#: The accuracy_level of MatMulNBits and QMoE that asks for float32.
_EXACT: Final = 1


def make_float32(message: Message) -> None:
    """Make tensors, declared types and attributes that name types float32, at any depth.

    A product with quantised weights takes its other factor in float32, too, and not in int8. Raises
    ValueError for a tensor whose content is not there.
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
    if isinstance(message, AttributeProto) and message.name == "accuracy_level":
        message.i = _EXACT
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                make_float32(each)
