"""Takes the weights out of an ONNX model. What is left says how an exporter calls each operator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import onnx
from onnx import external_data_helper, helper

#: Integers with at most this many elements are shapes, axes and indices, which shape inference
#: needs.
SMALL: Final = 64
_INTEGERS: Final = {onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
_FOUR_BITS: Final = {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
_VALUES: Final = (
    "raw_data",
    "float_data",
    "int32_data",
    "int64_data",
    "double_data",
    "uint64_data",
)
_ALIGNMENT: Final = 4096


def read_weightless(file: Path, location: str) -> onnx.ModelProto:
    """The model of ``file``; every weight refers to the file ``location``, which nobody wrote.

    Small integers and single numbers stay. Doc strings and metadata, in which exporters keep the
    scopes of Python, are removed; names, the types of values and the producer stay.
    """
    model = onnx.load(file, load_external_data=False)
    end = 0
    for graph in _graphs(model):
        for tensor in _tensors(graph):
            elements = math.prod(tensor.dims)
            if elements <= (SMALL if tensor.data_type in _INTEGERS else 1):
                if external_data_helper.uses_external_data(tensor):
                    external_data_helper.load_external_data_for_tensor(tensor, str(file.parent))
                    tensor.ClearField("data_location")
                    tensor.ClearField("external_data")
                continue
            length = _bytes(tensor.data_type, elements)
            for field in _VALUES:
                tensor.ClearField(field)
            tensor.raw_data = b""
            external_data_helper.set_external_data(tensor, location, end, length)
            tensor.ClearField("raw_data")
            end += -(-length // _ALIGNMENT) * _ALIGNMENT
    _remove_texts(model)
    return model


def _bytes(data_type: int, elements: int) -> int:
    if data_type in _FOUR_BITS:
        return -(-elements // 2)
    return elements * helper.tensor_dtype_to_np_dtype(data_type).itemsize


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and those inside its nodes."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers and the constants of nodes, such as rotary tables in a branch of an If."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _remove_texts(model: onnx.ModelProto) -> None:
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    for function in model.functions:
        for part in (function, *function.node, *function.value_info):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
    for graph in _graphs(model):
        lists = (graph.node, graph.initializer, graph.input, graph.output, graph.value_info)
        for part in (graph, *(part for parts in lists for part in parts)):
            part.ClearField("metadata_props")
            part.ClearField("doc_string")
        for node in graph.node:
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
