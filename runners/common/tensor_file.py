"""Tensors in files: reads and writes the protobuf message ``TensorProto`` of ONNX.

Supports only the content of bundles: one tensor of numbers whose elements are in ``raw_data``.
The field numbers are those of ``onnx.proto``
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
Standard library only, so that it needs no ``onnx`` in the interpreter under test.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

# Fields of TensorProto.
DIMS, DATA_TYPE, NAME, RAW_DATA = 1, 2, 8, 9
# The typed fields that may hold the elements instead (float_data … uint64_data, external_data).
OTHER_DATA = frozenset({4, 5, 6, 7, 10, 11, 13})

# Wire types of protobuf: a number; a number of bytes, and the bytes.
VARINT, LENGTH = 0, 2

# TensorProto.DataType → bytes of one element.
ITEM_BYTES = {
    1: 4,  # FLOAT
    2: 1,  # UINT8
    3: 1,  # INT8
    4: 2,  # UINT16
    5: 2,  # INT16
    6: 4,  # INT32
    7: 8,  # INT64
    9: 1,  # BOOL
    10: 2,  # FLOAT16
    11: 8,  # DOUBLE
    12: 4,  # UINT32
    13: 8,  # UINT64
    16: 2,  # BFLOAT16
    17: 1,  # FLOAT8E4M3FN
    18: 1,  # FLOAT8E4M3FNUZ
    19: 1,  # FLOAT8E5M2
    20: 1,  # FLOAT8E5M2FNUZ
}

# Bytes of the first read, which is the only one for most files.
SMALL = 1 << 16


class BadFile(Exception):
    """A file of the bundle cannot be read: a defect of the bundle, never of the runtime."""


class Tensor(NamedTuple):
    """One tensor as it is stored in its file."""

    name: str
    data_type: int  # TensorProto.DataType
    dims: tuple[int, ...]  # () is a scalar
    raw: bytes  # the elements, little-endian, in C order


def first_rows(tensor: Tensor, rows: int) -> Tensor:
    """The first ``rows`` of a past or present: the start of the third dim of the tensor.

    A tensor of another rank than theirs, which a faulty runtime may return, is left as it is.
    """
    if len(tensor.dims) != 4:
        return tensor
    batch, heads, there, size = tensor.dims
    row = size * ITEM_BYTES[tensor.data_type]
    starts = range(0, len(tensor.raw), max(there * row, 1))
    kept = min(rows, there)
    raw = b"".join(tensor.raw[start : start + kept * row] for start in starts)
    return tensor._replace(dims=(batch, heads, kept, size), raw=raw)


def read_file(path: str) -> bytes:
    """The bytes of ``path``; raises `BadFile` with the reason if it cannot be read.

    Plain system calls: a case reads about eight small files, and buffered files cost twice as much.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, SMALL)
            if len(data) < SMALL:
                return data
            pieces = [data]
            while piece := os.read(descriptor, os.fstat(descriptor).st_size):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error


def read_tensor(path: str) -> Tensor:
    """The tensor in ``path``; raises `BadFile` with the reason if there is none."""
    data = read_file(path)
    try:
        return parse(data)
    except (IndexError, ValueError) as error:
        # An index past the end means a truncated message.
        reason = error if isinstance(error, ValueError) else "it ends in the middle of a field"
        raise BadFile(f"{path} is not a TensorProto this runner can read: {reason}") from error


def parse(data: bytes) -> Tensor:
    """``data`` parsed as a TensorProto; IndexError or ValueError if it is not one."""
    name = ""
    data_type = 0
    dims: list[int] = []
    raw = b""
    position, end = 0, len(data)
    while position < end:
        # A field is a key, a number and, for one wire type, as many bytes as the number says.
        # Nearly all keys and numbers are one byte: those are read here, without a call.
        key = data[position]
        position += 1
        if key >= 0x80:
            key, position = read_varint(data, position - 1)
        value = data[position]
        position += 1
        if value >= 0x80:
            value, position = read_varint(data, position - 1)
        start = position
        wire = key & 7
        if wire == LENGTH:
            position += value
            if position > end:
                raise ValueError("it ends in the middle of a field")
        elif wire != VARINT:  # a TensorProto has no field of another wire type
            raise ValueError(f"wire type {wire} is not expected")

        field = key >> 3
        if field == DIMS:
            if wire == VARINT:
                dims.append(value)
            else:  # all of them packed into one field, as some writers do
                dims += read_varints(data, start, position)
        elif field == DATA_TYPE:
            data_type = value
        elif field == NAME:
            name = data[start:position].decode()
        elif field == RAW_DATA:
            raw = data[start:position]
        elif field in OTHER_DATA:
            raise ValueError(f"its elements are in field {field}, not in raw_data")
    check_size(data_type, dims, len(raw))
    return Tensor(name, data_type, tuple(dims), raw)


def check_size(data_type: int, dims: list[int], size: int) -> None:
    """Raise ValueError unless ``size`` bytes are exactly the elements of such a tensor."""
    if data_type not in ITEM_BYTES:
        raise ValueError(f"its data_type is {data_type}")
    wanted = ITEM_BYTES[data_type]
    for dim in dims:
        wanted *= dim
    if size != wanted:
        raise ValueError(f"{size} bytes of raw_data where dims {dims} need {wanted}")


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The base-128 number at ``position`` and the position after it."""
    byte = data[position]
    position += 1
    if byte < 0x80:  # true for nearly all of them
        return byte, position
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")


def read_varints(data: bytes, position: int, end: int) -> list[int]:
    """The numbers between ``position`` and ``end``."""
    values = []
    while position < end:
        value, position = read_varint(data, position)
        values.append(value)
    return values


def write_tensor(path: str, tensor: Tensor) -> None:
    """Write one tensor to the file ``path``; raises OSError if that fails."""
    name, data_type, dims, raw = tensor
    head = header(name, data_type, dims, len(raw))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        written = os.writev(descriptor, (head, raw))
        if written < len(head) + len(raw):  # over 2 GiB, or the disk is full: the next write fails
            rest = memoryview(head + raw)[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


@lru_cache(maxsize=256)
def header(name: str, data_type: int, dims: tuple[int, ...], size: int) -> bytes:
    """A whole TensorProto except its ``size`` bytes of raw_data.

    Cached, because most cases have outputs of the same few shapes.
    """
    parts = [varint_field(DIMS, dim) for dim in dims]
    parts.append(varint_field(DATA_TYPE, data_type))
    parts.append(length_field(NAME, name.encode()))
    parts.append(varint(RAW_DATA << 3 | LENGTH) + varint(size))
    return b"".join(parts)


def varint(value: int) -> bytes:
    """``value`` as a base-128 number."""
    if value < 0x80:
        return bytes((value,))
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def varint_field(field: int, value: int) -> bytes:
    """A field that holds a number."""
    return varint(field << 3 | VARINT) + varint(value)


def length_field(field: int, value: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return varint(field << 3 | LENGTH) + varint(len(value)) + value
