"""Calls of GroupQueryAttention as bare arrays, and ONNX Runtime to run them: test helpers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx.helper as oh

from conformance.base.array_types import ONNX
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OP_TYPE, OUTPUT_NAMES

Arrays = dict[str, np.ndarray]
Attributes = dict[str, Any]

ALL = ("output", "present_key", "present_value")


def inputs_of(*arrays: Any, lengths: Sequence[int], total: int | None = None) -> Arrays:
    """The inputs of a call: query, key, value and, maybe, the past; lists become float32.

    ``lengths`` are the tokens of each sequence after it, ``total`` those of the longest one.
    """
    inputs = {
        name: array if isinstance(array, np.ndarray) else np.array(array, np.float32)
        for name, array in zip(INPUT_NAMES, arrays, strict=False)
    }
    inputs["seqlens_k"] = np.array(lengths, np.int32) - np.int32(1)
    inputs["total_sequence_length"] = np.array(total or max(lengths), np.int32)
    return inputs


def token_inputs(
    values: Callable[..., np.ndarray],
    sizes: tuple[int, int, int],
    tokens: tuple[int, int, int | None, int],
    lengths: np.ndarray,
    packed: bool,
) -> Arrays:
    """Return the inputs that every call has, with numbers from ``values(*shape)``.

    ``sizes``: num_heads, kv_num_heads, head_size. ``tokens``: queries, new keys, rows of the past
    buffer (None: no past), total length. ``lengths``: [B], tokens of each sequence. ``packed``: key
    and value are part of query.
    """
    num_heads, kv_num_heads, head_size = sizes
    queries, new, past, total = tokens
    batch_size = len(lengths)
    inputs: Arrays = {}
    if packed:
        width = (num_heads + 2 * kv_num_heads) * head_size
        inputs["query"] = values(batch_size, queries, width)
    else:
        inputs["query"] = values(batch_size, queries, num_heads * head_size)
        inputs["key"] = values(batch_size, new, kv_num_heads * head_size)
        inputs["value"] = values(batch_size, new, kv_num_heads * head_size)
    if past is not None:
        inputs["past_key"] = values(batch_size, kv_num_heads, past, head_size)
        inputs["past_value"] = values(batch_size, kv_num_heads, past, head_size)
    inputs["seqlens_k"] = (lengths - 1).astype(np.int32)
    inputs["total_sequence_length"] = np.array(total, np.int32)
    return inputs


def rotary_caches(rows: int, half: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin caches [rows, half] as models have them, base 10000."""
    angles = np.outer(np.arange(rows), 10000.0 ** (-np.arange(half) / half))
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def run_onnxruntime(
    inputs: Arrays, attributes: Attributes, outputs: Collection[str] = ALL
) -> Arrays:
    """Run a call on ONNX Runtime's CPU provider in this process.

    The environment variable ORT_GQA_DISABLE_FLASH_ATTENTION=1 chooses its other code path.
    """
    connected = tuple(name if name in inputs else "" for name in INPUT_NAMES)
    signature = tuple((name, str(inputs[name].dtype), inputs[name].ndim) for name in inputs)
    plain = os.environ.get("ORT_GQA_DISABLE_FLASH_ATTENTION") == "1"
    session = _session(connected, signature, tuple(attributes.items()), tuple(outputs), plain)
    results = session.run(list(outputs), inputs)
    return dict(zip(outputs, results, strict=True))


@cache
def _session(
    connected: tuple[str, ...],
    signature: tuple[tuple[str, str, int], ...],
    attributes: tuple[tuple[str, Any], ...],
    outputs: tuple[str, ...],
    plain: bool,  # read from the environment by the kernel itself, when the session is made
) -> Any:
    import onnxruntime

    node_outputs = [name if name in outputs else "" for name in OUTPUT_NAMES]
    node = oh.make_node(OP_TYPE, connected, node_outputs, domain=DOMAIN, **dict(attributes))
    dtype = next(word for name, word, _ in signature if name == "query")
    graph = oh.make_graph(
        [node],
        "call",
        [
            oh.make_tensor_value_info(name, ONNX[word], [f"{name}_{axis}" for axis in range(rank)])
            for name, word, rank in signature
        ],
        [
            oh.make_tensor_value_info(name, ONNX[dtype], [None] * (3 if name == "output" else 4))
            for name in outputs
        ],
    )
    opsets = [oh.make_opsetid("", 21), oh.make_opsetid(DOMAIN, 1)]
    model = oh.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
