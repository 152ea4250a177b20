"""Inputs and outputs written by hand: their dims, their numbers, and what is wrong with them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from conformance.base.dtypes import INTEGER_RANGE
from conformance.operator.call import InputOverride, Values
from conformance.operator.tensors import Elements, ShapeError

#: Largest number of dims of a tensor: NumPy 1 has no more.
MAX_RANK: Final = 32
_EXPRESSION = re.compile(r"([a-z_]+)(?:\s*([-+*])\s*([0-9]{1,9}))?")


def elements_of(
    override: InputOverride, shape: tuple[int, ...], dtype: str, field: str
) -> tuple[Elements, ...]:
    """The elements that an override changes, checked. Raises :class:`ShapeError`."""
    for element in override.elements:
        at, count = element.at, element.count
        within = all(-size <= index < size for index, size in zip(at, shape, strict=False))
        if len(at) > len(shape) or not within:
            raise ShapeError(field, f"index {list(at)} is outside the shape {shape}")
        if at[-1] % shape[len(at) - 1] + count > shape[len(at) - 1]:
            raise ShapeError(field, f"{count} from {list(at)} on end outside the shape {shape}")
        _check_number(element.value, dtype, field)
    return tuple((element.at, element.count, element.value) for element in override.elements)


def dim_of(dim: int | str, names: Mapping[str, int], field: str) -> int:
    """The size of a dim: a number, or a name of ``names`` with an offset or a factor.

    Raises :class:`ShapeError`.
    """
    if isinstance(dim, str):
        match = _EXPRESSION.fullmatch(dim.strip())
        if not match or match[1] not in names:
            known = ", ".join(names)
            sentence = f"dim '{dim}' must be NAME, NAME+N, NAME-N or NAME*N, NAME one of {known}"
            raise ShapeError(field, sentence)
        value = names[match[1]]
        operand = int(match[3] or 0)
        dim = {None: value, "+": value + operand, "-": value - operand, "*": value * operand}[
            match[2]
        ]
    if dim < 0:
        raise ShapeError(field, f"a dim cannot be negative, found {dim}")
    return dim


def check_rank(shape: tuple[int, ...], field: str) -> None:
    """Raises :class:`ShapeError` for a shape with too many dims."""
    if len(shape) > MAX_RANK:
        raise ShapeError(field, f"a shape of {len(shape)} dims; at most {MAX_RANK} are allowed")


def check_values(override: InputOverride, values: Values, dtype: str, field: str) -> None:
    """Raises :class:`ShapeError` for values that cannot be drawn as the override says."""
    unused = Values()
    if override.data is not None:
        raise ShapeError(field, "data holds the values themselves and excludes the field values")
    kind = values.kind
    uniform = values.model_copy(update={"kind": "uniform", "value": unused.value})
    if kind != "uniform" and uniform != unused:
        sentence = f"low, high, step and odd_heads apply to the kind uniform, not to {kind}"
        raise ShapeError(field, sentence)
    if kind != "constant" and values.value != unused.value:
        raise ShapeError(field, f"value applies to the kind constant, not to {kind}")
    if kind == "constant":
        _check_number(values.value, dtype, field)
        return
    if not 0 <= values.high - values.low < math.inf:
        raise ShapeError(
            field, f"low {values.low} and high {values.high} are not a range of finite numbers"
        )
    for bound in (values.low, values.high):
        _check_number(bound, dtype, field)
    if not 0 <= values.step < math.inf:
        raise ShapeError(field, f"step {values.step} must be 0 or a positive, finite number")


def _check_number(number: float, dtype: str, field: str) -> None:
    """Raises ShapeError unless ``dtype`` can hold the number; float types round any number."""
    if dtype not in INTEGER_RANGE:
        try:
            float(number)
        except OverflowError:
            raise ShapeError(field, "data holds a number outside the range of float64") from None
        return
    low, high = INTEGER_RANGE[dtype]
    if not low <= number <= high or number != int(number):
        raise ShapeError(field, f"{number} is not a value of {dtype}")


def shape_of(data: object, dtype: str, field: str) -> tuple[int, ...]:
    """Shape of nested lists of numbers. Raises ShapeError if their lengths differ."""
    if not isinstance(data, list):
        if isinstance(data, bool) or not isinstance(data, int | float):
            raise ShapeError(field, f"data must hold numbers, found {data!r}")
        _check_number(data, dtype, field)
        return ()
    inner = {shape_of(item, dtype, field) for item in data}
    if len(inner) > 1:
        raise ShapeError(field, "the rows of data have different shapes")
    return (len(data), *(inner.pop() if inner else ()))
