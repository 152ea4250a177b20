"""Small decoders as exporters write them, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

DOMAIN = "com.microsoft"
BATCH, LENGTH = "batch_size", "sequence_length"


@dataclass(frozen=True)
class Layer:
    """One layer: a projection of the hidden state for each input, and attention.

    ``past`` has the names or numbers of the batch and of the rows of its past, None for a model
    without one. ``borrows`` is the layer whose presents are its past. ``inputs`` replaces or adds
    names in the node's input list; ``outputs`` is its output list.
    """

    heads: int = 4
    kv_heads: int = 2
    size: int = 16
    past: tuple[str | int, str | int] | None = (BATCH, "past_sequence_length")
    present: str | int = "total_sequence_length"
    packed: bool = False
    borrows: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[int, str] = field(default_factory=dict)
    outputs: Sequence[str] | None = None


def decoder(
    *layers: Layer,
    dtype: int = TensorProto.FLOAT,
    batch: str | int = BATCH,
    length: str | int = LENGTH,
    rows: int = 4096,
    hidden: int = 64,
) -> onnx.ModelProto:
    """A model of these layers. Its weights are in a file that is not there."""
    info = helper.make_tensor_value_info
    inputs = [
        info("hidden", dtype, [batch, length, hidden]),
        info("seqlens_k", TensorProto.INT32, [batch]),
        info("total_sequence_length", TensorProto.INT32, []),
    ]
    outputs, nodes, weights = [], [], []
    for number, layer in enumerate(layers):
        kv_width, half = layer.kv_heads * layer.size, layer.size // 2
        for name in ("cos", "sin"):
            weights.append(weight(f"{name}.{number}", dtype, [rows, half]))
        widths = {"q": layer.heads * layer.size, "k": kv_width, "v": kv_width}
        if layer.packed:
            widths = {"q": sum(widths.values())}
        names = []
        for part, width in widths.items():
            if layer.borrows is not None and part != "q":
                inputs.append(info(f"none.{number}.{part}", dtype, [batch, 0, width]))
                names.append(f"none.{number}.{part}")
                continue
            weights.append(weight(f"layers.{number}.{part}.weight", dtype, [hidden, width]))
            made = f"layers.{number}.{part}"
            operands = ["hidden", f"{made}.weight"]
            nodes.append(helper.make_node("MatMul", operands, [made], name=made))
            names.append(made)
        names += [""] * (3 - len(names))
        past = ["", ""]
        if layer.borrows is not None:
            past = [f"present.{layer.borrows}.{part}" for part in ("key", "value")]
        elif layer.past is not None:
            past = [f"past_key_values.{number}.{part}" for part in ("key", "value")]
            dims = [layer.past[0], layer.kv_heads, layer.past[1], layer.size]
            inputs += [info(name, dtype, dims) for name in past]
        given = [*names, *past, "seqlens_k", "total_sequence_length"]
        if layer.attributes.get("do_rotary", 1):
            given += [f"cos.{number}", f"sin.{number}"]
        for place, name in layer.inputs.items():
            given += [""] * (place + 1 - len(given))
            given[place] = name
        presents = [f"present.{number}.{part}" for part in ("key", "value")]
        usual = [f"attention.{number}", *presents]
        made_outputs = usual if layer.outputs is None else layer.outputs
        attributes = {"num_heads": layer.heads, "kv_num_heads": layer.kv_heads, "do_rotary": 1}
        attributes |= {"domain": DOMAIN, **layer.attributes}
        name = f"/model/layers.{number}/attn/GroupQueryAttention"
        attention = helper.make_node("GroupQueryAttention", given, made_outputs, name, **attributes)
        nodes.append(attention)
        outputs.append(info(f"attention.{number}", dtype, None))
        if layer.borrows is None:
            dims = [batch, layer.kv_heads, layer.present, layer.size]
            outputs += [info(each, dtype, dims) for each in presents if each in made_outputs]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    told = {"producer_name": "tests", "producer_version": "1.0", "ir_version": 10}
    return helper.make_model(graph, opset_imports=opsets, **told)


def weight(name: str, dtype: int, dims: Sequence[int]) -> TensorProto:
    """A tensor whose content is in a file that is not there."""
    tensor = TensorProto(name=name, data_type=dtype, dims=dims)
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "no-such-file.bin"
    return tensor


def saved(model: onnx.ModelProto, folder: Path, name: str = "tiny.onnx") -> Path:
    """The model as a file."""
    file = folder / name
    file.write_bytes(model.SerializeToString())
    return file


#: Two layers of their own, and two that borrow from them, as in Gemma 4.
GEMMA = (
    Layer(attributes={"local_window_size": 8}),
    Layer(),
    Layer(borrows=0, attributes={"local_window_size": 8}),
    Layer(borrows=1),
)
