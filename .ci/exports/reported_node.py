"""Writes a node that somebody reported, as a model of its own: the exporter is not at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: The inputs in the order of the report; ``position_ids`` has none.
INPUTS: Final = {
    "query": (TensorProto.FLOAT, ["batch_size", "sequence_length", 1024]),
    "key": (TensorProto.FLOAT, ["batch_size", "sequence_length", 256]),
    "value": (TensorProto.FLOAT, ["batch_size", "sequence_length", 256]),
    "past_key": (TensorProto.FLOAT, ["batch_size", 1, "past_sequence_length", 256]),
    "past_value": (TensorProto.FLOAT, ["batch_size", 1, "past_sequence_length", 256]),
    "seqlens_k": (TensorProto.INT32, ["batch_size"]),
    "total_seq": (TensorProto.INT32, []),
    "cos_cache": None,
    "sin_cache": None,
    "": None,
    "attention_bias": (
        TensorProto.FLOAT,
        ["batch_size", 1, "sequence_length", "total_sequence_length"],
    ),
}


def main(target: Path) -> None:
    """Write sonos/tract#2345's node of a Gemma 3 1B into the folder ``target``."""
    target.mkdir()
    node = helper.make_node(
        "GroupQueryAttention",
        [*INPUTS],
        ["output", "present_key", "present_value"],
        name="GroupQueryAttention",
        domain="com.microsoft",
        num_heads=4,
        kv_num_heads=1,
        scale=0.0625,
        local_window_size=512,
        softcap=0.0,
        do_rotary=1,
        rotary_interleaved=0,
    )
    present: list[str | int | None] = ["batch_size", 1, "total_sequence_length", 256]
    angles = np.outer(np.arange(32768), 10000.0 ** (-np.arange(128) / 128))
    graph = helper.make_graph(
        [node],
        "gemma_3_layer",
        [
            helper.make_tensor_value_info(name, *known)
            for name, known in INPUTS.items()
            if known is not None
        ],
        [
            helper.make_tensor_value_info(
                "output", TensorProto.FLOAT, ["batch_size", "sequence_length", 1024]
            ),
            helper.make_tensor_value_info("present_key", TensorProto.FLOAT, present),
            helper.make_tensor_value_info("present_value", TensorProto.FLOAT, present),
        ],
        [
            numpy_helper.from_array(np.cos(angles).astype(np.float32), "cos_cache"),
            numpy_helper.from_array(np.sin(angles).astype(np.float32), "sin_cache"),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), target / "model.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
