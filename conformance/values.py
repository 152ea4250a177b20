"""A call's input values, by seed: the same numbers on every machine and every NumPy.

Numbers come from ``numpy.random.RandomState``, whose streams are frozen (NEP 19), and only from its
uniform doubles, which are exact arithmetic on integers; a normal draw would go through ``log``.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from conformance.call import Call, Values
from conformance.dtypes import INTEGER_RANGE, NUMPY
from conformance.tensors import Step, Tensor

#: Base of the rotary angles, as in RoPE and Llama.
ROTARY_BASE: Final = 10000.0

Array = np.ndarray


def draw_inputs(call: Call, step: Step) -> dict[str, Array]:
    """All connected inputs of ``step``, each of its shape and dtype.

    A looped call's past is drawn for its first step only: later steps get theirs from the step
    before (see :mod:`conformance.bundle`), so they have no past here.
    """
    return {
        tensor.name: _draw(call, step, tensor)
        for tensor in step.inputs
        if tensor.connected and not (step.carried and tensor.name in ("past_key", "past_value"))
    }


def _draw(call: Call, step: Step, tensor: Tensor) -> Array:
    assert tensor.shape is not None
    integer = tensor.dtype in INTEGER_RANGE
    if tensor.data is not None:
        exact = np.int64 if integer else np.float64
        numbers = np.array(tensor.data, dtype=exact).reshape(tensor.shape)
    elif tensor.values is not None:
        numbers = _numbers(call, step, tensor, tensor.values)
    else:
        numbers = _meant(call, step, tensor)
    if integer:  # by way of int64: what a float beyond the type's range becomes is the machine's
        numbers = numbers.astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(NUMPY[tensor.dtype])


def _numbers(call: Call, step: Step, tensor: Tensor, values: Values) -> Array:
    assert tensor.shape is not None
    if call.key_value == "packed" and tensor.name == "query" and "query" not in call.inputs:
        return _packed(call, step, values)
    return _filled(call, step, tensor.name, tensor.shape, values, tensor.dtype)


def _filled(
    call: Call, step: Step, name: str, shape: tuple[int, ...], values: Values, dtype: str
) -> Array:
    if values.kind == "constant":
        return np.full(shape, values.value)
    stream = np.random.RandomState(zlib.crc32(f"{call.seed}/{step.index}/{name}".encode()))
    uniform = stream.random_sample(shape)
    if dtype in INTEGER_RANGE:
        return np.floor(values.low + uniform * (values.high - values.low + 1))
    numbers = values.low + uniform * (values.high - values.low)
    return np.rint(numbers / values.step) * values.step if values.step else numbers


def _packed(call: Call, step: Step, values: Values) -> Array:
    """Query, key and value side by side, with the very numbers of the unpacked call."""
    batch, length, size = call.batch_size, step.sequence_length, call.head_size
    parts = (
        ("query", call.num_heads * size, values),
        ("key", call.kv_num_heads * size, Values()),
        ("value", call.kv_num_heads * size, Values()),
    )
    return np.concatenate(
        [_filled(call, step, n, (batch, length, width), v, call.dtype) for n, width, v in parts],
        axis=2,
    )


def _meant(call: Call, step: Step, tensor: Tensor) -> Array:
    """The inputs whose numbers have a meaning: lengths, positions and the rotary tables."""
    assert tensor.shape is not None
    if tensor.name == "seqlens_k":
        return np.resize(np.array(step.total_lengths, dtype=np.float64) - 1, tensor.shape)
    if tensor.name == "total_sequence_length":
        return np.full(tensor.shape, float(step.total_sequence_length))
    if tensor.name == "position_ids":
        return np.resize(_positions(call, step), tensor.shape)
    if tensor.name in ("cos_cache", "sin_cache"):
        rows, half = tensor.shape
        frequencies = ROTARY_BASE ** (-np.arange(half) / max(half, 1))
        angles = np.arange(rows)[:, None] * frequencies
        return np.cos(angles) if tensor.name == "cos_cache" else np.sin(angles)
    raise AssertionError(tensor.name)


def _positions(call: Call, step: Step) -> Array:
    """Positions of the new tokens where position_ids is absent: (batch_size, sequence_length).

    A right-padded first prompt counts from 0 in every sequence; later tokens follow the past of
    their own sequence.
    """
    starts = np.array(step.total_lengths) - step.sequence_length
    if step.total_sequence_length == step.sequence_length:
        starts = np.zeros_like(starts)
    return (starts[:, None] + np.arange(step.sequence_length)).astype(np.float64)
