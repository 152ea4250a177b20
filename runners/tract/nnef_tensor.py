"""Tensors in NNEF's format, in which tract reads and writes them without loss.

A file is a header of 128 bytes and the elements, little-endian, in C order: section 5.2 of the NNEF
specification (https://registry.khronos.org/NNEF/specs/1.0/nnef-1.0.5.html). Standard library only.
"""

from __future__ import annotations

import struct

from tensor_file import BadFile, Tensor, read_file

HEADER_BYTES = 128
MAGIC = b"\x4e\xef"
MOST_DIMS = 8

# Magic, version, bytes of data, rank, dims, bits of an item, item type, vendor of the item type.
HEADER = struct.Struct("<2s2BII8IIHH")

FLOAT, UNSIGNED, QUANTISED_UNSIGNED, QUANTISED_SIGNED, SIGNED, BOOL = range(6)

# TensorProto.DataType → item type and bits of an item. NNEF has neither bfloat16 nor float8.
ITEMS = {
    1: (FLOAT, 32),
    2: (UNSIGNED, 8),
    3: (SIGNED, 8),
    4: (UNSIGNED, 16),
    5: (SIGNED, 16),
    6: (SIGNED, 32),
    7: (SIGNED, 64),
    9: (BOOL, 8),
    10: (FLOAT, 16),
    11: (FLOAT, 64),
    12: (UNSIGNED, 32),
    13: (UNSIGNED, 64),
}
# tract writes plain integers with the item types of quantised ones.
DATA_TYPES = {
    **{item: data_type for data_type, item in ITEMS.items()},
    **{(QUANTISED_UNSIGNED, b): t for t, (kind, b) in ITEMS.items() if kind == UNSIGNED},
    **{(QUANTISED_SIGNED, b): t for t, (kind, b) in ITEMS.items() if kind == SIGNED},
}


def encode(tensor: Tensor) -> bytes:
    """``tensor`` as the content of a file; its data_type is one of `ITEMS`."""
    item_type, bits = ITEMS[tensor.data_type]
    dims = (*tensor.dims, *[0] * (MOST_DIMS - len(tensor.dims)))
    head = HEADER.pack(MAGIC, 1, 0, len(tensor.raw), len(tensor.dims), *dims, bits, item_type, 0)
    return head.ljust(HEADER_BYTES, b"\0") + tensor.raw


def read(path: str, name: str) -> Tensor:
    """The tensor in the file ``path``, called ``name``; raises `BadFile` with the reason."""
    return decode(read_file(path), name, path)


def decode(data: bytes, name: str, path: str) -> Tensor:
    """The tensor in ``data``, the content of ``path``; raises `BadFile` if it is not one."""
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise BadFile(f"{path} is no NNEF tensor: it does not start with a header of 128 bytes")
    _, _, _, size, rank, *dims, bits, item_type, vendor = HEADER.unpack_from(data)
    data_type = DATA_TYPES.get((item_type, bits))
    if vendor or data_type is None or rank > MOST_DIMS:
        what = f"item type {item_type} of vendor {vendor}, {bits} bits, rank {rank}"
        raise BadFile(f"{path} is an NNEF tensor of a kind this runner cannot read: {what}")
    raw = data[HEADER_BYTES:]
    wanted = bits // 8
    for dim in dims[:rank]:
        wanted *= dim
    if not size == len(raw) == wanted:
        raise BadFile(
            f"{path} is an NNEF tensor of dims {dims[:rank]}, which need {wanted} bytes; its header"
            f" says {size}, and there are {len(raw)}"
        )
    return Tensor(name, data_type, tuple(dims[:rank]), raw)
