"""Reads a serialized ONNX model without the content of its large tensors.

A file of 2 GB is mapped into memory, and of its tensors only names, types and shapes are copied.
Source: the encoding of protocol buffers, and the field numbers of ``onnx.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final

#: The content of a tensor with more bytes is left out. Shapes and other small constants are not.
LARGE: Final = 4096

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Message(Enum):
    """The messages of ``onnx.proto`` that can hold a tensor."""

    MODEL = "ModelProto"
    GRAPH = "GraphProto"
    FUNCTION = "FunctionProto"
    NODE = "NodeProto"
    ATTRIBUTE = "AttributeProto"
    SPARSE = "SparseTensorProto"
    TENSOR = "TensorProto"


_PARTS: Final[Mapping[Message, Mapping[int, Message]]] = {
    Message.MODEL: {7: Message.GRAPH, 25: Message.FUNCTION},
    Message.GRAPH: {1: Message.NODE, 5: Message.TENSOR, 15: Message.SPARSE},
    Message.FUNCTION: {7: Message.NODE},
    Message.NODE: {5: Message.ATTRIBUTE},
    Message.ATTRIBUTE: {
        5: Message.TENSOR,
        6: Message.GRAPH,
        10: Message.TENSOR,
        11: Message.GRAPH,
        22: Message.SPARSE,
        23: Message.SPARSE,
    },
    Message.SPARSE: {1: Message.TENSOR, 2: Message.TENSOR},
    Message.TENSOR: {},
}
#: TensorProto: the fields that hold the elements, by the types of the elements.
_ELEMENTS: Final = (4, 5, 6, 7, 9, 10, 11)
#: TensorProto.data_location = EXTERNAL, as bytes.
_IS_EXTERNAL: Final = bytes((14 << 3 | _VARINT, 1))


def without_weights(model: memoryview) -> bytes:
    """The serialized model with each large tensor marked as external, and without its content.

    Raises ValueError if ``model`` is not a protocol buffer.
    """
    return bytes(_copied(model, Message.MODEL))


def _copied(message: memoryview, kind: Message) -> bytearray:
    made = bytearray()
    dropped = False
    for number, wire, start, content, end in _fields(message):
        size = end - content
        part = _PARTS[kind].get(number) if wire == _BYTES else None
        if kind is Message.TENSOR and number in _ELEMENTS and size > LARGE:
            dropped = True
        elif part is not None and size > LARGE:
            copied = _copied(message[content:end], part)
            made += _varint(number << 3 | _BYTES) + _varint(len(copied)) + copied
        else:
            made += message[start:end]
    return made + _IS_EXTERNAL if dropped else made


def _fields(message: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Each field: number, wire type, and where it starts, its content starts, and it ends."""
    at, size = 0, len(message)
    while at < size:
        start = at
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        content = at
        if wire == _VARINT:
            _, at = _read_varint(message, at)
        elif wire == _BYTES:
            length, content = _read_varint(message, at)
            at = content + length
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire} is unknown")
        if number == 0 or at > size:
            raise ValueError("a field ends beyond its message")
        yield number, wire, start, content, at


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number is cut off")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
