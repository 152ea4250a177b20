"""Calls of GroupQueryAttention as bare arrays, and ONNX Runtime to run them: test helpers."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx.helper as oh
from numpy.random import RandomState

from conformance.base.array_types import ONNX
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OP_TYPE, OUTPUT_NAMES

Arrays = dict[str, np.ndarray]
Attributes = dict[str, Any]

ALL = ("output", "present_key", "present_value")

KINDS = (
    *("prompt", "prompt_into_static", "decode", "decode_static", "several_tokens"),
    *("several_tokens_static", "borrowed", "borrowed_static", "borrowed_whole"),
)


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


def random_call(
    rng: RandomState, kind: str, dtype: Any = np.float32, *, ragged_several: bool = False
) -> tuple[Arrays, Attributes]:
    """Return a valid call with random sizes and features.

    ``ragged_several`` allows batches of several tokens on a cache, which ONNX Runtime rejects.
    """

    def pick(*choices: Any) -> Any:
        return choices[rng.randint(len(choices))]

    def chance(share: float) -> bool:
        return bool(rng.random_sample() < share)

    rotary = chance(0.5)
    kv_num_heads, head_size = pick(1, 2, 3), pick(16, 32, 64) if rotary else pick(8, 16, 32, 64)
    num_heads = kv_num_heads * pick(1, 2, 4)
    spread = pick(1.0, 1.0, 3.0)
    queries, new, past, total = _lengths(rng, kind, pick)
    refused = queries > 1 and total > queries  # B > 1 with S > 1 on a past, by ONNX Runtime
    batch_size = 1 if refused and not ragged_several else pick(1, 2, 3)
    shortest = queries if total > queries else 1
    lengths = rng.randint(shortest, total + 1, batch_size)
    lengths[0] = total

    def values(*shape: int) -> np.ndarray:
        return (spread * rng.standard_normal(shape)).astype(dtype)

    attributes: Attributes = {"num_heads": num_heads, "kv_num_heads": kv_num_heads}
    packed = new == queries and chance(0.3)
    sizes = (num_heads, kv_num_heads, head_size)
    inputs = token_inputs(values, sizes, (queries, new, past, total), lengths, packed)
    if rotary:
        half, rows = pick(*(h for h in (8, 16, 32) if 2 * h <= head_size)), total + pick(0, 9)
        inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(rows, half, dtype)
        attributes["do_rotary"] = 1
        if chance(0.5):
            attributes["rotary_interleaved"] = 1
        if chance(0.3):
            last = rows - queries + 1
            inputs["position_ids"] = rng.randint(0, last, (batch_size, queries)).astype(np.int64)
    if chance(0.4):
        attributes["local_window_size"] = pick(1, 2, 5, 64)
    elif chance(0.3):
        attributes["causal"] = 0
    if chance(0.3):
        attributes["softcap"] = pick(1.0, 5.0, 50.0)
    if chance(0.3):
        attributes["scale"] = pick(0.0, 0.5, 1.0, 0.03)
    if chance(0.3):
        rows_ = (pick(1, batch_size), pick(1, num_heads))
        inputs["attention_bias"] = values(*rows_, queries, total)
    if chance(0.4):
        if chance(0.5):
            attributes["smooth_softmax"] = 1
        else:
            inputs["head_sink"] = values(num_heads)
    return inputs, attributes


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


def _lengths(
    rng: RandomState, kind: str, pick: Callable[..., Any]
) -> tuple[int, int, int | None, int]:
    """Return queries, new keys, rows of the past buffer (None: no past), total length."""
    if kind == "prompt":
        total = pick(1, 3, 8, 17, 40)
        return total, total, None, total
    if kind == "prompt_into_static":
        total = pick(1, 3, 8, 17, 40)
        return total, total, total + pick(0, 5), total
    if kind.startswith("borrowed"):
        past = pick(3, 12, 40)
        total = past - pick(0, 1) if kind == "borrowed_static" else past
        queries = total if kind == "borrowed_whole" else min(total - 1, pick(1, 1, 2, 7))
        return queries, 0, past, total
    queries = pick(2, 5, 19) if kind.startswith("several") else 1
    if kind.endswith("static"):
        past = pick(20, 40, 129)
        return queries, queries, past, rng.randint(queries + 1, past + 1)
    past = pick(1, 4, 37, 200)
    return queries, queries, past, past + queries


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
