"""The names of a model's outputs, read from the ModelProto itself.

tract's Python binding drops them: it gives each output of a node with several outputs the node's
name, and in a simplified graph outputs have the names of other nodes. Its command line names files
by these names, and may leave one out. OpenVINO gives an output every name that its tensor has.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensor_file import LENGTH, VARINT, BadFile, read_file, read_varint

# Fields of ModelProto, GraphProto and ValueInfoProto.
GRAPH, OUTPUT, NAME = 7, 12, 1

# Wire types that a tensor's file does not use: a number in 8 or in 4 bytes.
FIXED = {1: 8, 5: 4}


def output_names(path: str) -> list[str]:
    """The outputs of the graph in ``path``, in its order; raises `BadFile` if it is not a model."""
    data = read_file(path)
    try:
        names = [
            data[name].decode()
            for graph in submessages(data, slice(0, len(data)), GRAPH)
            for output in submessages(data, graph, OUTPUT)
            for name in submessages(data, output, NAME)
        ]
    except (IndexError, ValueError) as error:
        raise BadFile(f"{path} is no ONNX model") from error
    if not names:
        raise BadFile(f"{path} is no ONNX model with an output")
    return names


def submessages(data: bytes, message: slice, wanted: int) -> Iterator[slice]:
    """Position of each field ``wanted`` of ``message``; IndexError or ValueError if invalid."""
    position = message.start
    while position < message.stop:
        key, position = read_varint(data, position)
        field, wire = key >> 3, key & 7
        if wire == VARINT:
            _, position = read_varint(data, position)
        elif wire == LENGTH:
            size, position = read_varint(data, position)
            if position + size > message.stop:
                raise ValueError("it ends in the middle of a field")
            if field == wanted:
                yield slice(position, position + size)
            position += size
        elif wire in FIXED:
            position += FIXED[wire]
        else:
            raise ValueError(f"wire type {wire} is not expected")
