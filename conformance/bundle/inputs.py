"""A call's input values, drawn by seed: the same numbers on every machine and with every NumPy.

They come from ``numpy.random.RandomState``, whose streams are frozen (NEP 19), and only from its
uniform doubles, which use exact integer arithmetic; normally distributed values would need ``log``.
"""

from __future__ import annotations

import math
import zlib
from functools import lru_cache
from typing import Final

import numpy as np

from conformance.base.array_types import NUMPY, Array
from conformance.base.dtypes import INTEGER_RANGE
from conformance.case.given import given_inputs
from conformance.operator.call import Call, GivenCall, Values
from conformance.operator.features import INPUT_RULES
from conformance.operator.parts.key_value import token_values
from conformance.operator.parts.rotary import ROTARY_BASE, ROTARY_FACTOR
from conformance.operator.tensors import Step, Tensor

#: Seeded again for each input: a new generator takes 90 microseconds, a seed 1.5.
_RANDOM: Final = np.random.RandomState()

#: The most elements of numbers that are kept: consecutive calls often have the same inputs.
_MAX_KEPT: Final = 1 << 18


def draw_inputs(call: Call, step: Step) -> dict[str, Array]:
    """All connected inputs of ``step``, including constants, each with its shape and dtype.

    In a loop only the first step has a drawn past. Later steps take their past from the step before
    (:func:`conformance.bundle.prepare.computed_steps`), so it is missing here. Raises
    :class:`conformance.case.given.GivenError` if a file with the values cannot be read.
    """
    if isinstance(call, GivenCall):
        found = given_inputs(call, step)
    else:
        found = {
            tensor.name: _draw(call, step, tensor)
            for tensor in step.inputs
            if tensor.connected
            and not tensor.same_as
            and not (step.carried and tensor.name in ("past_key", "past_value"))
        }
    return found | {each.name: found[each.same_as] for each in step.inputs if each.same_as}


def draw_weights(call: Call, step: Step) -> dict[str, Array]:
    """The constants of a graph whose data is not in its file."""
    return {tensor.name: _draw(call, step, tensor) for tensor in step.weights}


def _draw(call: Call, step: Step, tensor: Tensor) -> Array:
    assert tensor.shape is not None
    integer = tensor.dtype in INTEGER_RANGE
    stream = None
    if tensor.node is not None:  # an input of a graph has the values of an input of its node
        stream = stream_of(call, step, tensor.name)
        call, tensor = tensor.node, tensor._replace(name=tensor.role)
    if tensor.data is not None:
        written = np.int64 if integer else np.float64
        numbers = np.array(tensor.data, dtype=written).reshape(tensor.shape)
    elif tensor.values is not None:
        packed = call.key_value == "packed" and tensor.name == "query"
        by_hand = step.refused or "query" in call.inputs
        make = _packed if packed and not by_hand else _filled
        numbers = make(call, step, tensor, stream)
    else:
        numbers = _derived(call, step, tensor)
    if tensor.elements:
        numbers = numbers.copy()
        for (*rows, first), count, number in tensor.elements:
            below = numbers[tuple(rows)]
            below[first % len(below) :][:count] = number
    # Casting a float outside the range of an integer type depends on the machine, and so does the
    # sign of the NaN that YAML's .nan becomes.
    exact = numbers.astype(np.int64) if integer else numbers
    if not integer and np.isnan(numbers.min(initial=0.0)):
        exact = np.where(np.isnan(numbers), np.nan, numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        return exact.astype(NUMPY[tensor.dtype])


def _filled(call: Call, step: Step, tensor: Tensor, stream: str | None) -> Array:
    name, shape, values = tensor.name, tensor.shape, tensor.values
    assert shape is not None
    assert values is not None
    if values.kind == "constant":
        return np.full(shape, values.value)
    starts: tuple[int, ...] = ()
    if values.kind == "marked" and len(shape) in (3, 4):
        starts = tuple(starts_of(step, name, shape[0]).tolist())
    draw = _drawn if math.prod(shape) <= _MAX_KEPT else _drawn.__wrapped__
    stream = stream or stream_of(call, step, name)
    integer = tensor.dtype in INTEGER_RANGE
    numbers: Array = draw(stream, shape, values, integer, call.head_size, name, starts)
    return numbers


@lru_cache(maxsize=64)
def _drawn(
    stream: str,
    shape: tuple[int, ...],
    values: Values,
    integer: bool,
    head_size: int,
    name: str,
    starts: tuple[int, ...],
) -> Array:
    """Drawn numbers, which must not be changed; ``starts`` are the starts of marked tokens."""
    _RANDOM.seed(zlib.crc32(stream.encode()))
    numbers: Array = _RANDOM.random_sample(shape)
    numbers *= values.high - values.low + integer
    numbers += values.low
    if integer:
        numbers = np.floor(numbers)
    else:
        # Whether the last dim is one or more whole heads:
        of_heads = numbers.ndim > 0 and numbers.size > 0 and head_size > 0
        of_heads = of_heads and shape[-1] % head_size == 0
        if values.odd_heads != 1.0 and of_heads:
            numbers.reshape(*shape[:-1], -1, head_size)[..., 1::2, :] *= values.odd_heads
        if values.kind == "marked":
            if of_heads and starts:
                _mark(numbers, head_size, name, starts)
        elif values.step:
            numbers = np.rint(numbers / values.step) * values.step
    numbers = np.asarray(numbers)  # of rank 0, it is no array
    numbers.flags.writeable = False
    return numbers


def _mark(numbers: Array, size: int, name: str, starts: tuple[int, ...]) -> None:
    """Change ``numbers`` in [-1, 1) so that one element stands out in each head of a token.

    The output is a weighted mean of values. In a mean of similar numbers the contribution of one
    token is lost among rounding errors. So is a small change of a score, which is a sum. Therefore
    each token has one element, chosen by the token's place in the sequence, that is large (0.5 to
    1) in this token and small in the neighbouring tokens. That element of the output shows how much
    this one token contributes. ``starts`` are the places of the first token of each sequence.
    """
    if numbers.ndim == 3:
        tokens = numbers.reshape(*numbers.shape[:2], -1, size)
    else:
        tokens = numbers.swapaxes(1, 2)[..., :size]
    batch, length, heads, _ = tokens.shape
    place = np.array(starts)[:, None] + np.arange(length) + 5 * np.arange(batch)[:, None]
    place = place[:, :, None] + 3 * np.arange(heads)
    element = (_stride(size) * place % size)[..., None]
    stands_out = 0.5 + np.abs(np.take_along_axis(tokens, element, axis=-1)) / 2
    tokens /= spread_of(size, name)
    np.put_along_axis(tokens, element, stands_out, axis=-1)


def stream_of(call: Call, step: Step, name: str) -> str:
    """The name of an input's random stream, which is its seed."""
    rule = INPUT_RULES.get(name)
    always_the_same = (rule is not None and rule.same_in_a_loop) or name in call.constants
    index = 0 if always_the_same else step.index
    return f"{call.seed}/{index}/{name}"


def starts_of(step: Step, name: str, batch: int) -> Array:
    """The place in its sequence of the first token in the input ``name``."""
    if name in ("key", "value") and len(step.total_lengths) == batch:
        added = step.new_tokens if step.query_lengths is None else np.array(step.query_lengths)
        starts: Array = np.maximum(np.array(step.total_lengths) - added, 0)
        return starts
    return np.zeros(batch, np.int64)


def spread_of(size: int, name: str) -> float:
    """The divisor for the elements that do not stand out.

    In values a large divisor makes a single token easy to see. In keys the other elements must
    contribute to the score too, but not dominate it.
    """
    return max(16.0, size / 2) if name.endswith("key") else 64.0


def _stride(size: int) -> int:
    """The step from one token's marked element to the next token's.

    It is coprime to ``size`` and large, so that even a few tokens mark elements all over the head.
    """
    strides = range(1 + 3 * size // 8, 2 * size + 2)
    return next(stride for stride in strides if math.gcd(stride, size) == 1)


def _packed(call: Call, step: Step, tensor: Tensor, stream: str | None) -> Array:
    """Query, key and value side by side, with exactly the values of the unpacked call."""
    assert tensor.shape is not None
    assert tensor.values is not None
    parts = [
        tensor._replace(name=name, shape=(*tensor.shape[:-1], width), values=values)
        for name, width, values in packed_parts(call, tensor.values)
    ]
    drawn = [_filled(call, step, part, part_of(stream, part.name)) for part in parts]
    return np.concatenate(drawn, axis=-1)


def part_of(stream: str | None, name: str) -> str | None:
    """The random stream of a part of a packed query of a graph."""
    return None if stream is None else f"{stream}/{name}"


def packed_parts(call: Call, values: Values) -> tuple[tuple[str, int, Values], ...]:
    """The parts of a packed query: the input that each replaces, its width and its values."""
    size = call.head_size
    return (
        ("query", call.num_heads * size, values),
        ("key", call.kv_num_heads * size, token_values(call)),
        ("value", call.kv_num_heads * size, token_values(call)),
    )


def _derived(call: Call, step: Step, tensor: Tensor) -> Array:
    """The values of inputs that follow from the call: lengths, positions and rotary tables."""
    assert tensor.shape is not None
    rule = INPUT_RULES.get(tensor.name)
    if rule is not None and rule.numbers is not None:
        return np.resize(np.array(rule.numbers(step), np.float64), tensor.shape)
    if tensor.name == "attention_mask":  # of a graph
        return np.arange(tensor.shape[1]) < np.array(step.total_lengths)[:, None]
    if tensor.name in ("cos_cache", "sin_cache"):
        # A table of another rank, invalid on purpose, gets the values of a single column.
        rows, half = tensor.shape if tensor.rank == 2 else (math.prod(tensor.shape), 1)
        return _table(tensor.name, rows, half).reshape(tensor.shape)
    raise AssertionError(tensor.name)


@lru_cache(maxsize=8)
def _table(name: str, rows: int, half: int) -> Array:
    """A rotary table, (rows, half)."""
    frequencies = ROTARY_BASE ** (-np.arange(half) / max(half, 1))
    angles = ROTARY_FACTOR * np.arange(rows)[:, None] * frequencies
    return np.cos(angles) if name == "cos_cache" else np.sin(angles)
