"""Recipes: how a call's input values are made, for programs that do not use this suite.

:mod:`conformance.bundle.inputs` makes the values; here its rules become the plain numbers of a
results file. A test checks that both give the same bytes.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from conformance.base.dtypes import INTEGER_RANGE
from conformance.bundle.inputs import (
    packed_parts,
    part_of,
    spread_of,
    starts_of,
    stream_of,
)
from conformance.bundle.script import CARRY
from conformance.operator.call import Call, Values
from conformance.operator.features import INPUT_RULES
from conformance.operator.tensors import Step, Tensor
from conformance.results.records import LaterInput, Recipe

#: A results file lists the values that a file gives up to this number.
MOST_NUMBERS: Final = 2048


def recipe_of(call: Call, step: Step, tensor: Tensor) -> Recipe:
    """The recipe of a connected input, or of a drawn constant, of ``step``."""
    stream = None
    if tensor.node is not None:
        stream = stream_of(call, step, tensor.name)
        call, tensor = tensor.node, tensor._replace(name=tensor.role)
    made = _made(call, step, tensor, stream)
    if tensor.elements:
        exact = int if tensor.dtype in INTEGER_RANGE else float
        but = tuple(
            (at, exact(x)) if count == 1 else (at, exact(x), count)
            for at, count, x in tensor.elements
        )
        made = Recipe.model_validate(vars(made) | {"but": but})
    return made


def numbers_of(array: np.ndarray) -> Recipe | None:
    """The recipe of values from a file; None if they are too many to be listed."""
    if array.size > MOST_NUMBERS:
        return None
    exact = array if array.dtype.kind in "iu" else array.astype(np.float64)
    return _numbers(exact.ravel().tolist())


def later_inputs(call: Call, step: Step, first: Step) -> list[LaterInput]:
    """The inputs of a later call that differ from the first; in a loop its past is carried."""
    later = []
    for tensor in step.inputs:
        if not tensor.fed or (step.carried and tensor.name in CARRY):
            continue
        assert tensor.shape is not None
        recipe, before = recipe_of(call, step, tensor), first.input(tensor.name)
        is_own = tensor.name in CARRY
        if is_own or tensor.shape != before.shape or recipe != recipe_of(call, first, before):
            shape = None if tensor.shape == before.shape else tensor.shape
            later.append(LaterInput(name=tensor.name, shape=shape, recipe=recipe))
    return later


def _made(call: Call, step: Step, tensor: Tensor, stream: str | None) -> Recipe:
    assert tensor.shape is not None
    if 0 in tensor.shape:
        return Recipe(kind="constant")
    if tensor.data is not None:
        exact = int if tensor.dtype in INTEGER_RANGE else float
        return _numbers([exact(number) for number in np.array(tensor.data, object).ravel()])
    if tensor.values is None:
        return _meant(call, step, tensor)
    values = tensor.values
    by_hand = step.refused or "query" in call.inputs
    if call.key_value == "packed" and tensor.name == "query" and not by_hand:
        shape = tensor.shape[:-1]
        return Recipe(
            kind="packed",
            parts=tuple(
                _filled(
                    call, step, name, (*shape, width), each, call.dtype, part_of(stream, name)
                ).model_copy(update={"width": width})
                for name, width, each in packed_parts(call, values)
            ),
        )
    return _filled(call, step, tensor.name, tensor.shape, values, tensor.dtype, stream)


def _filled(
    call: Call,
    step: Step,
    name: str,
    shape: tuple[int, ...],
    values: Values,
    dtype: str,
    stream: str | None,
) -> Recipe:
    if values.kind == "constant":
        value = values.value
        return Recipe(kind="constant", value=int(value) if dtype in INTEGER_RANGE else value)
    stream = stream or stream_of(call, step, name)
    drawn: dict[str, Any] = {"stream": stream, "low": values.low, "high": values.high}
    if dtype in INTEGER_RANGE:
        return Recipe(**drawn)
    of_heads = bool(shape) and call.head_size > 0 and shape[-1] % call.head_size == 0
    if values.kind == "marked" and of_heads and len(shape) in (3, 4):
        starts = starts_of(step, name, shape[0])
        return Recipe(
            **drawn,
            kind="marked",
            head_size=call.head_size,
            starts=tuple(map(int, starts)) if starts.any() else (),
            divisor=spread_of(call.head_size, name),
        )
    if values.odd_heads != 1.0 and of_heads:
        drawn |= {"odd_heads": values.odd_heads, "head_size": call.head_size}
    if values.kind == "uniform":
        drawn["step"] = values.step
    return Recipe(**drawn)


def _meant(call: Call, step: Step, tensor: Tensor) -> Recipe:
    """The recipe of an input whose values have a meaning, such as lengths and positions."""
    assert tensor.shape is not None
    rule, shape = INPUT_RULES.get(tensor.name), tensor.shape
    if rule is not None and rule.numbers is not None:
        starts, count = step.positions.starts, step.sequence_length
        numbers = rule.numbers(step)
        if tensor.name == "position_ids" and not step.positions.gaps:
            return Recipe(kind="positions", starts=starts, count=count)
        if math.prod(shape) > len(numbers) > 1:
            return Recipe(kind="positions", starts=tuple(numbers), count=1)
        return _numbers([*numbers][: math.prod(shape)])
    if tensor.name == "attention_mask":
        ones = [int(i < length) for length in step.total_lengths for i in range(tensor.shape[1])]
        return _numbers(ones)
    return Recipe(kind="cosines" if tensor.name == "cos_cache" else "sines")


def _numbers(numbers: list[int] | list[float]) -> Recipe:
    if len(set(map(repr, numbers))) == 1:
        return Recipe(kind="constant", value=numbers[0])
    return Recipe(kind="numbers", numbers=tuple(numbers))
