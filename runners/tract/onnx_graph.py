"""The names of a model's outputs, read from the file itself. Standard library only.

The field numbers are those of ``onnx.proto`` (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto).
"""

from __future__ import annotations

from collections.abc import Iterator

from tensor_file import LENGTH, VARINT, BadFile, read_file, read_varint

MODEL_GRAPH, GRAPH_OUTPUT, VALUE_NAME = 7, 12, 1


def output_names(path: str) -> list[str]:
    """The graph's outputs in their order; `BadFile` for what is no model."""
    data = read_file(path)
    try:
        return [
            bytes(name).decode()
            for graph in messages(data, MODEL_GRAPH)
            for output in messages(graph, GRAPH_OUTPUT)
            for name in messages(output, VALUE_NAME)
        ]
    except (IndexError, ValueError) as error:
        raise BadFile(f"{path} is no ONNX model: {error}") from error


def messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """What the fields ``wanted`` of a message hold; IndexError or ValueError if it is none."""
    position = 0
    while position < len(data):
        key, position = read_varint(data, position)
        value, position = read_varint(data, position)
        if key & 7 == LENGTH:
            if key >> 3 == wanted:
                yield data[position : position + value]
            position += value
        elif key & 7 != VARINT:  # models of this suite have no field of another type
            raise ValueError(f"wire type {key & 7} is not expected")
