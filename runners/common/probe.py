"""The smallest model with which a runner tries its runtime. Standard library only."""

from __future__ import annotations

from tensor_file import length_field, varint_field

FLOAT = 1  # a TensorProto.DataType


def probe_model(data_type: int, *dims: int) -> bytes:
    """A ModelProto with one node, ``y = Relu(x)``, of this TensorProto.DataType and these dims."""

    def value(name: bytes) -> bytes:  # ValueInfoProto
        shape = b"".join(length_field(1, varint_field(1, dim)) for dim in dims)
        tensor_type = varint_field(1, data_type) + length_field(2, shape)
        return length_field(1, name) + length_field(2, length_field(1, tensor_type))

    node = length_field(1, b"x") + length_field(2, b"y") + length_field(4, b"Relu")
    graph = length_field(1, node) + length_field(2, b"probe")
    graph += length_field(11, value(b"x")) + length_field(12, value(b"y"))
    opset = length_field(1, b"") + varint_field(2, 14)
    return varint_field(1, 7) + length_field(7, graph) + length_field(8, opset)
