"""Small decoders with random weights, as exporters write them: embedding, attention, projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN = 32, 16


@dataclass
class Decoder:
    """Makes a model.

    ``borrow`` maps a layer to the one whose cache it reads. ``rows`` makes the cache a buffer of
    so many rows. ``norm`` normalises queries and keys, and ``packed`` has query, key and value side
    by side. ``inside`` puts the attention of the last layer into an ``If`` or a function.
    """

    layers: int = 2
    _: KW_ONLY
    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    window: int = -1
    dtype: Any = np.float32
    borrow: Mapping[int, int] = field(default_factory=dict)
    rows: int | None = None
    inside: str = ""
    norm: bool = False
    packed: bool = False
    table: int = 64
    inputs: Sequence[onnx.ValueInfoProto] = ()
    factor: float = 1.0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.dtype = np.dtype(self.dtype)
        self.type = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        info = helper.make_tensor_value_info
        self.inputs = [
            info("input_ids", TensorProto.INT64, ["batch", "new"]),
            info("attention_mask", TensorProto.INT64, ["batch", "total"]),
            *self.inputs,
        ]
        self.outputs: list[onnx.ValueInfoProto] = []
        self._lengths()
        half = self.size // 2
        positions = np.arange(self.table)[:, None] / 100.0 ** (np.arange(half) / half)
        self.constant("cos", np.cos(positions).astype(self.dtype))
        self.constant("sin", np.sin(positions).astype(self.dtype))
        value = self.node("Gather", self.weight("embedding", VOCABULARY, HIDDEN), "input_ids")
        for layer in range(self.layers):
            value = self._layer(layer, value)
        self.node("MatMul", value, self.weight("head", HIDDEN, VOCABULARY), output="logits")
        width = ["batch", "new", VOCABULARY]
        self.outputs.insert(0, info("logits", self.type, width))

    def constant(self, name: str, array: np.ndarray) -> str:
        """An initializer."""
        if array.dtype == np.float64:
            array = array.astype(self.dtype)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        """An initializer with random numbers."""
        numbers = self.random.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        return self.constant(name, (numbers * self.factor).astype(self.dtype))

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node with one output, which is returned."""
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _lengths(self) -> None:
        one = self.constant("one", np.array([1]))
        sums = self.node("ReduceSum", "attention_mask", one, keepdims=0)
        self.node("Cast", self.node("Sub", sums, one), output="seqlens", to=TensorProto.INT32)
        axis = self.constant("axis", np.array(1))
        total = self.node("Gather", self.node("Shape", "attention_mask"), axis)
        self.node("Cast", total, output="total", to=TensorProto.INT32)

    def _layer(self, layer: int, value: str) -> str:
        name = f"model.layers.{layer}"
        width, kv_width = self.heads * self.size, self.kv_heads * self.size
        query = self.node("MatMul", value, self.weight(f"{name}.q", HIDDEN, width))
        source = self.borrow.get(layer, layer)
        cache = [
            f"{'past_key_values' if source == layer else 'present'}.{source}.{part}"
            for part in ("key", "value")
        ]
        if source == layer:
            new = [
                self.node("MatMul", value, self.weight(f"{name}.{part}", HIDDEN, kv_width))
                for part in ("k", "v")
            ]
            rows: list[Any] = [self.rows or "past", self.rows or "total"]
            for part, past in zip(("key", "value"), cache, strict=True):
                dims = ["batch", self.kv_heads, rows[0], self.size]
                self.inputs.append(helper.make_tensor_value_info(past, self.type, dims))
                present = f"present.{layer}.{part}"
                dims = ["batch", self.kv_heads, rows[1], self.size]
                self.outputs.append(helper.make_tensor_value_info(present, self.type, dims))
        else:
            empty = numpy_helper.from_array(np.zeros(1, self.dtype))
            shape = self.constant(f"{name}.empty", np.array([1, 0, kv_width]))
            new = [self.node("ConstantOfShape", shape, value=empty)] * 2
        if self.packed:
            query, new = self.node("Concat", query, *new, axis=2), ["", ""]
        inputs = [query, *new, *cache, "seqlens", "total", "cos", "sin"]
        if self.norm:
            weights = (
                self.constant(f"{name}.{part}_norm", self.random.uniform(1, 2, self.size))
                for part in ("q", "k")
            )
            inputs += ["", "", "", "", "", *weights]
        attended = self._attention(layer, inputs, f"{name}.attention", source == layer)
        out = self.node("MatMul", attended, self.weight(f"{name}.o", width, HIDDEN))
        return self.node("Add", value, out)

    def _attention(self, layer: int, inputs: list[str], name: str, owns: bool) -> str:
        where = "present" if owns else "borrowed"
        outputs = [f"{name}.output", *(f"{where}.{layer}.{part}" for part in ("key", "value"))]
        attributes = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": 1}
        attributes |= {"domain": "com.microsoft", "local_window_size": self.window}
        node = helper.make_node("GroupQueryAttention", inputs, outputs, name, **attributes)
        inside = self.inside if layer == self.layers - 1 else ""
        if inside == "If":
            values = [onnx.ValueInfoProto(name=f"{each}.inside") for each in outputs]
            node.output[:] = [each.name for each in values]
            branch = helper.make_graph([node], "branch", [], values)
            always = self.constant("always", np.array(True))
            branches = {"then_branch": branch, "else_branch": branch}
            self.nodes.append(helper.make_node("If", [always], outputs, "if", **branches))
        elif inside == "function":
            opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
            copied = NodeProto()
            copied.CopyFrom(node)
            copied.input[0] = "scaled"  # a value that exists inside the function only
            identity = helper.make_node("Identity", [inputs[0]], ["scaled"])
            names = list(dict.fromkeys(inputs))
            self.functions.append(
                helper.make_function("own", "Attend", names, outputs, [identity, copied], opsets)
            )
            self.nodes.append(helper.make_node("Attend", names, outputs, name, domain="own"))
        else:
            self.nodes.append(node)
        return outputs[0]

    def model(self) -> ModelProto:
        """The model."""
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.constants)
        opsets = [
            helper.make_opsetid(domain, version)
            for domain, version in (("", 18), ("com.microsoft", 1), ("own", 1))
        ]
        return helper.make_model(
            graph, opset_imports=opsets, functions=self.functions, ir_version=9
        )

    def save(self, folder: Path, external: bool = False) -> Path:
        """The file of the model in ``folder``, with its weights beside it if ``external``."""
        file = folder / "model.onnx"
        place = {"location": "model.onnx.data", "size_threshold": 64}
        onnx.save_model(self.model(), file, save_as_external_data=external, **place)
        return file
