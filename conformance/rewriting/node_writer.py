"""Writes nodes of standard operators, in the form that the model's operator set gives them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

#: The first operator set in which Softmax, Squeeze and Unsqueeze have today's form.
LOWEST_OPSET: Final = 13
#: The first operator set in which all reductions take their axes as an input.
_AXES_AS_INPUT: Final = 18


class NodeWriter:
    """Collects nodes, and the constants that they read.

    Values get names that begin with ``prefix``, which no name of the model does. A constant is
    kept once for all nodes that read it. ``take`` returns the nodes since it was last called.
    """

    def __init__(self, opset: int, prefix: str) -> None:
        self.opset, self._prefix = opset, prefix
        self._nodes: list[NodeProto] = []
        self._number = 0
        self.constants: dict[tuple[str, tuple[int, ...], bytes], TensorProto] = {}

    def take(self) -> list[NodeProto]:
        """The nodes that were written since the last call, in order."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node of a standard operator with one output, whose name is returned."""
        if not output:
            self._number += 1
            output = f"{self._prefix}{operator}_{self._number}"
        self._nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, numbers: Any, dtype: type = np.int64) -> str:
        """The name of a constant."""
        array: np.ndarray = np.asarray(numbers, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            name = f"{self._prefix}constant_{len(self.constants)}"
            self.constants[key] = numpy_helper.from_array(array, name)
        return self.constants[key].name

    def number(self, value: float) -> str:
        """The name of a float32 scalar."""
        return self.constant(value, np.float32)

    def size(self, value: str, axis: int) -> str:
        """int64 [1]: a dim of the value."""
        return self.node("Gather", self.node("Shape", value), self.constant([axis]), axis=0)

    def shape(self, *parts: str | int) -> str:
        """int64 [parts]: a shape of sizes int64 [1] and of numbers; 0 copies a dim, in Reshape.

        Abs changes nothing, and keeps ONNX Runtime's optimizer from putting -1 in place of a size,
        which is an error where there are no elements.
        """
        names = [self.constant([part]) if isinstance(part, int) else part for part in parts]
        return self.node("Abs", self.node("Concat", *names, axis=0))

    def slice(self, value: str, axis: int, start: str | int, end: str | int, step: int = 1) -> str:
        """The elements of an axis from ``start`` to ``end``, each a number or int64 [1]."""
        ends = (self.constant([at]) if isinstance(at, int) else at for at in (start, end))
        return self.node("Slice", value, *ends, self.constant([axis]), self.constant([step]))

    def steps(self, start: str, end: str) -> str:
        """int64 [end - start]: the numbers from ``start`` to before ``end``, each int64 [1]."""
        ends = (self.node("Squeeze", at, self.constant([0])) for at in (start, end))
        return self.node("Range", *ends, self.constant(1))

    def over_last_axis(self, operator: str, value: str) -> str:
        """A reduction over the last axis, which stays."""
        if self.opset < _AXES_AS_INPUT:
            return self.node(operator, value, axes=[-1], keepdims=1)
        return self.node(operator, value, self.constant([-1]), keepdims=1)
