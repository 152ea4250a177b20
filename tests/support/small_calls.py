"""Calls as bare arrays, small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from gqa_calls import Arrays, Attributes, inputs_of, rotary_caches
from numpy.random import RandomState

from conformance.oracle import reference


def call_of(
    query: Any,
    key: Any,
    value: Any,
    *past: Any,
    heads: tuple[int, int] = (1, 1),
    lengths: Sequence[int] = (),
    total: int | None = None,
    **more: Any,
) -> tuple[Arrays, Attributes]:
    """A call of one sequence from nested lists [S, width]; ``more`` are further inputs.

    It is a first prompt without a past [L, D]. Arrays become inputs, everything else an attribute.
    """
    arrays = [query], [key], [value], *([[rows]] for rows in past)
    inputs = inputs_of(*arrays, lengths=lengths or [len(query)], total=total)
    attributes: Attributes = {"num_heads": heads[0], "kv_num_heads": heads[1]}
    for name, thing in more.items():
        (inputs if isinstance(thing, np.ndarray) else attributes)[name] = thing
    return inputs, attributes


def decode_of(query: Any, keys: Any, values: Any, **more: Any) -> tuple[Arrays, Attributes]:
    """One token, one head, on a cache: the last of ``keys`` and ``values`` are its own."""
    past = keys[:-1], values[:-1]
    return call_of([query], keys[-1:], values[-1:], *past, lengths=[len(keys)], **more)


def output_of(call: tuple[Arrays, Attributes]) -> np.ndarray:
    return reference(*call, ["output"])["output"].value


def good() -> tuple[Arrays, Attributes]:
    """Two tokens on a past of three; 4 heads over 2, head_size 4, everything connected."""
    rng = RandomState(0)
    sizes = (1, 2, 16), (1, 2, 8), (1, 2, 8), (1, 2, 3, 4), (1, 2, 3, 4), (1, 1, 2, 5), (4,)
    *arrays, bias, sink = (rng.randn(*size).astype(np.float32) for size in sizes)
    inputs = inputs_of(*arrays, lengths=[5]) | {"attention_bias": bias, "head_sink": sink}
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(8, 2)
    inputs["position_ids"] = np.array([[3, 4]], np.int64)
    return inputs, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}


FLOAT8 = ml_dtypes.float8_e4m3fn


CODES = {"int8": (np.int8, 8, 2), "int4": (np.uint8, 4, 1), "float8": (FLOAT8, 8, 2)}


def quantised_decode(
    stored: str, keys: list[float], past: Any, scale: Any = 0.5, **attributes: Any
) -> tuple[Arrays, Attributes]:
    """One head of two elements; ``past`` are the raw numbers of its tensor, for key and value."""
    dtype, bits, width = CODES[stored]
    token = np.array(keys, np.float32).reshape(1, 1, 2)
    past_array = np.array(past, dtype).reshape(1, 1, -1, width)
    scales = np.array(scale, np.float32)
    kind = "PER_TENSOR" if scales.size == 1 else "PER_CHANNEL"
    arrays = token, token, token, past_array, past_array
    inputs = inputs_of(*arrays, lengths=[past_array.shape[2] + 1])
    inputs |= {"k_scale": scales, "v_scale": scales}
    said = {"k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits}
    return inputs, {"num_heads": 1, "kv_num_heads": 1} | said | attributes


def resident(total: int, capacity: int, window: int) -> int:
    """L(T) as documented, counted by evicting one group after another."""
    length = 0
    for _ in range(total):
        length += 1
        if length > capacity:
            length -= capacity - window + 1
    return length


def windowed(
    before: int, new: int, capacity: int, window: int
) -> tuple[Arrays, Attributes, np.ndarray]:
    """A call on a sliding-window cache, and all keys of the sequence [tokens, 2]."""
    rng = RandomState(before * 100 + new)
    tokens = rng.randn(before + new, 2).astype(np.float32)
    kept = resident(before, capacity, window)
    past = np.full((1, 1, capacity, 2), np.nan, np.float32)
    past[0, 0, :kept] = tokens[before - kept : before]
    query, key = rng.randn(1, new, 2).astype(np.float32), tokens[None, before:]
    inputs = inputs_of(query, key, key, past, past, lengths=[before + new])
    attributes = {"num_heads": 1, "kv_num_heads": 1, "local_window_size": window}
    return inputs, attributes | {"sliding_window_cache": 1}, tokens


def prompt(
    queries: list[list[float]], keys: list[list[float]], **attributes: Any
) -> tuple[Arrays, Attributes]:
    """One head of each; the values are the keys, scale 1."""
    inputs = inputs_of([queries], [keys], [keys], lengths=[len(keys)])
    return inputs, {"num_heads": 1, "kv_num_heads": 1, "scale": 1.0} | attributes


def normed(
    query_weight: list[float],
    key_weight: list[float],
    query: list[float] | None = None,
    key: list[float] | None = None,
    **attributes: Any,
) -> tuple[Arrays, Attributes]:
    """A token with a norm; its query is (3, 1), with the mean square 5, its key (7, 1), with 25."""
    inputs, attributes = prompt([query or [3.0, 1.0]], [key or [7.0, 1.0]], **attributes)
    inputs["q_norm_weight"] = np.array(query_weight, np.float32)
    inputs["k_norm_weight"] = np.array(key_weight, np.float32)
    return inputs, attributes


def drawn_chunks(
    seed: int, lengths: list[int], counts: list[int], *, rows: int = 12, total: int = 12
) -> tuple[Arrays, Attributes]:
    """Random chunks of four rows, two heads for each of two key/value heads, with rotary."""
    rng, batch = RandomState(seed), len(lengths)

    def numbers(*shape: int) -> np.ndarray:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    tokens = (numbers(batch, 4, width) for width in (32, 16, 16))
    caches = (numbers(batch, 2, rows, 8) for _ in range(2))
    inputs = inputs_of(*tokens, *caches, lengths=lengths, total=total)
    inputs |= {name: numbers(12, 4) for name in ("cos_cache", "sin_cache")}
    inputs["query_seqlens"] = np.array(counts, np.int32)
    return inputs, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 5}
