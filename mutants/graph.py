"""Executes a model's graph node by node: GroupQueryAttention by a kernel, others by onnx."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from kernel import Kernel

Arrays = dict[str, np.ndarray]

#: The protocol's names of dtypes, with their ONNX and NumPy types.
TYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "float32": (1, np.dtype(np.float32)),
    "float16": (10, np.dtype(np.float16)),
    "bfloat16": (16, np.dtype(ml_dtypes.bfloat16)),
    "int8": (3, np.dtype(np.int8)),
    "uint8": (2, np.dtype(np.uint8)),
    "float8e4m3fn": (17, np.dtype(ml_dtypes.float8_e4m3fn)),
    "int32": (6, np.dtype(np.int32)),
    "int64": (7, np.dtype(np.int64)),
}
NUMPY = {**dict(TYPES.values()), 9: np.dtype(np.bool_)}
ONNX = {dtype: number for number, dtype in NUMPY.items()}

OPERATOR = "GroupQueryAttention"


class Graph:
    """The parts of a model that are needed to run it."""

    def __init__(self, model: bytes) -> None:
        proto = onnx.load_from_string(model)
        self.nodes = [Node(node, proto.opset_import) for node in proto.graph.node]
        self.constants = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer
        }
        self.outputs = [output.name for output in proto.graph.output]


class Node:
    """One node. ``inputs`` and ``outputs`` are its lists of names, empty where omitted."""

    def __init__(self, proto: onnx.NodeProto, opsets: Any) -> None:
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self.is_gqa = proto.op_type == OPERATOR
        self.attributes = {
            attribute.name: _text(onnx.helper.get_attribute_value(attribute))
            for attribute in (proto.attribute if self.is_gqa else ())
        }
        self._proto, self._opsets = proto, {opset.domain: opset.version for opset in opsets}
        self._evaluator: Any = None

    def by_onnx(self, values: Arrays) -> list[np.ndarray]:
        """Computes the node by onnx's reference implementation.

        Attention in float32, as kernels do: the implementation rounds each step to the type.
        """
        if self._evaluator is None:
            from onnx.reference import ReferenceEvaluator  # takes half a second to import

            self._evaluator = ReferenceEvaluator(self._proto, opsets=self._opsets)
        feeds = {name: values[name] for name in self.inputs if name}
        if self._proto.op_type != "Attention":
            made: list[np.ndarray] = self._evaluator.run(None, feeds)
            return made
        dtype = feeds[self.inputs[0]].dtype
        exact = {
            name: array.astype(np.float32) if array.dtype == dtype else array
            for name, array in feeds.items()
        }
        return [array.astype(dtype) for array in self._evaluator.run(None, exact)]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


#: The operator's inputs and outputs in their order.
INPUTS = [
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
    "position_ids",
    "attention_bias",
    "head_sink",
    "k_scale",
    "v_scale",
    "q_norm_weight",
    "k_norm_weight",
    "query_seqlens",
]
OUTPUTS = ["output", "present_key", "present_value", "output_qk"]


def _named(names: list[str], given: list[str]) -> list[tuple[str, str]]:
    """The connected ones of the operator's ``names``, each with its value."""
    return [pair for pair in zip(names, given, strict=False) if pair[1]]


class Session:
    """A graph with a kernel, which may keep state between runs."""

    def __init__(self, graph: Graph, kernel: Kernel) -> None:
        self.graph, self.kernel = graph, kernel

    def run(self, feeds: Arrays) -> Arrays:
        """Computes the graph's outputs. Raises what the kernel raises."""
        values = {**self.graph.constants, **feeds}
        for node in self.graph.nodes:
            if not node.is_gqa:
                made = dict(zip((n for n in node.outputs if n), node.by_onnx(values), strict=True))
                values.update(made)
                continue
            inputs = {
                name: values[given]
                for name, given in zip(INPUTS, node.inputs, strict=False)
                if given
            }
            names = {
                name: given for name, given in zip(OUTPUTS, node.outputs, strict=False) if given
            }
            outputs = self.kernel.run(inputs, node.attributes, tuple(names))
            values.update({given: outputs[name] for name, given in names.items()})
        return {name: values[name] for name in self.graph.outputs}
