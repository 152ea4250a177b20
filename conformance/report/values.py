"""The oracle's values beside what a target returned: of one query, or of all as arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from conformance.base.array_types import NUMPY
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.bundle.values import computation_of
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.oracle.numbers import Bool, Float
from conformance.oracle.reference import Computation
from conformance.oracle.tolerance import CONSTANTS, TargetClass, shares
from conformance.oracle.values import (
    QueryValues,
    RowValues,
    last_token,
    present_rows,
    query_values,
    row_values,
)
from conformance.results.records import OutputErrorRecord, ResultRecord

Array = np.ndarray[Any, Any]


class NoSuchPlace(ValueError):
    """The case has no such batch, head, token, step or element; the message names existing ones."""


@dataclass(frozen=True)
class Element:
    """One element of an output, as reports name it: ``present_key[0, 1, 3, 16]``."""

    output: str
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.output}[{', '.join(map(str, self.index))}]"


@dataclass(frozen=True)
class Returned:
    """The outputs of a target: all of them for each step, or single elements of a results file."""

    target: str
    target_class: TargetClass
    result: ResultRecord
    outputs: Outputs | None

    @property
    def elements(self) -> tuple[OutputErrorRecord, ...]:
        """The element of each output and step with the largest error; empty for a variant."""
        if self.result.of_variant:
            return ()
        return tuple(error for error in self.result.errors if error.index is not None)


def read_as(prepared: Prepared, returned: Returned | None) -> Prepared:
    """The prepared case for the reading of the documentation that the result names."""
    wanted = None if returned is None else returned.result.reading
    return next((prepared.by(name) for name in prepared.readings if name == wanted), prepared)


@dataclass(frozen=True)
class QueryPlace:
    """The query that a user asked for; None is chosen by the element, or by the defaults."""

    step: int | None = None
    batch: int | None = None
    head: int | None = None
    token: int | None = None
    element: Element | None = None


@dataclass(frozen=True, eq=False)
class Compared:
    """A vector of an output beside the values that a target returned. All arrays are float64 [n].

    ``first`` is the index of the first element. ``budget`` is the largest error allowed, NaN for an
    undefined element. ``got``, and ``share``, the error as a share of the budget, are valid where
    ``known`` is true.
    """

    output: str
    first: tuple[int, ...]
    expected: Float
    budget: Float
    got: Float
    share: Float
    known: Bool


@dataclass(frozen=True, eq=False)
class Values:
    """The values of one query.

    ``query`` is None if the step has no query token. ``row`` is None if no present is connected, or
    if its row holds no token. ``element`` is the element that chose the query, if one did.
    ``outputs`` has the vectors of the outputs that belong to the query or the row.
    """

    step: int
    query: QueryValues | None
    row: RowValues | None
    element: Element | None
    outputs: Mapping[str, Compared] = field(default_factory=dict)


def values_of(
    case: Case, prepared: Prepared, asked: QueryPlace, returned: Returned | None
) -> Values:
    """The values of the query that ``asked`` describes.

    By default it is the query of the element that was asked for, or else of the worst wrong element
    that was returned. If there is none, it is the last token of batch 0, head 0, last step.

    ``prepared.unjudged`` must be None. Raises :class:`NoSuchPlace`.
    """
    step, element = _element(prepared, asked, returned)
    computation, expected = computation_of(case.call, prepared, step), prepared.expected[step]
    call = computation.call
    batch, head, token, row = _NOWHERE if element is None else _place(element, computation)
    sizes = {"batch": call.batch_size, "head": call.num_heads, "token": call.sequence_length}
    for name, size in sizes.items():
        number = getattr(asked, name)
        if number is not None and number >= size:
            there = f"{name} 0 … {size - 1}" if size else f"no {name}"
            raise NoSuchPlace(f"There is no {name} {number}: the call has {there}.")
    if not call.batch_size:
        return Values(step, None, None, element)
    if asked.batch is not None and asked.batch != batch:
        batch, token, row = asked.batch, None, None
    if asked.token is not None and asked.token != token:
        token, row = asked.token, None
    head = head if asked.head is None else asked.head
    kv_head = head // computation.group
    token = last_token(computation, batch) if token is None else token
    query = query_values(computation, batch, head, token) if call.sequence_length else None
    if row is None:  # the row of the token itself; for padding, that of the last token
        last = int(call.lengths[batch]) - 1
        row = int(present_rows(call, batch)[last if query is None else min(query.place, last)])
    stored = None
    if row >= 0 and {"present_key", "present_value"} & {*expected}:
        stored = row_values(computation, batch, kv_head, row)
    outputs = {}
    for name, one in expected.items():
        at: tuple[int, ...] = (batch, kv_head, row)
        if name == "output":
            at = batch, token, head
        elif name == "output_qk":
            at = batch, head, token
        if (stored if name.startswith("present") else query) is not None:
            outputs[name] = _compared(name, at, step, one, returned, call.num_heads)
    return Values(step, query, stored, element, outputs)


#: The batch, head, token and row of the presents of a query. None stands for the last token, and
#: for the row of the token.
_Place = tuple[int, int, int | None, int | None]
_NOWHERE: Final[_Place] = (0, 0, None, None)


def _element(
    prepared: Prepared, asked: QueryPlace, returned: Returned | None
) -> tuple[int, Element | None]:
    """The step, and the element that chooses the query; None if there is none."""
    last = len(prepared.expected) - 1
    if asked.step is not None and asked.step > last:
        raise NoSuchPlace(f"There is no step {asked.step}: the case has the steps 0 … {last}.")
    step = last if asked.step is None else asked.step
    if asked.element is not None:
        _check(asked.element, prepared.expected[step])
        return step, asked.element
    wrong: list[tuple[float, int, Element]] = []
    for error in () if returned is None else returned.elements:
        share = error.share or 0.0
        if share <= 1 or asked.step not in (None, error.step) or not 0 <= error.step <= last:
            continue
        element = Element(error.output, error.index or ())
        with suppress(NoSuchPlace):  # results files are not trusted
            _check(element, prepared.expected[error.step])
            wrong.append((math.inf if math.isnan(share) else share, error.step, element))
    _, step, worst = max(wrong, key=lambda one: one[0], default=(0.0, step, None))
    return step, worst


def _check(element: Element, expected: Mapping[str, Expected]) -> None:
    if element.output not in expected:
        raise NoSuchPlace(f"There is no {element.output}: the case has {', '.join(expected)}.")
    shape, index = expected[element.output].value.shape, element.index
    if len(index) != len(shape) or not all(0 <= i < n for i, n in zip(index, shape, strict=True)):
        raise NoSuchPlace(f"There is no {element}: {element.output} has the shape {list(shape)}.")


def _place(element: Element, computation: Computation) -> _Place:
    """The place of an element. For one of a present, it has the token that wrote it, if one did."""
    call, index = computation.call, element.index
    if element.output == "output":
        return index[0], index[2] // call.head_size, index[1], None
    if element.output == "output_qk":
        return index[0], index[1], index[2], None
    batch, kv_head, row = index[:3]
    stored = row_values(computation, batch, kv_head, row)
    token = None
    if stored is not None and 0 <= stored.place - call.query_starts[batch] < call.sequence_length:
        token = stored.place - int(call.query_starts[batch])
    return batch, kv_head * computation.group, token, row


def _compared(
    name: str,
    at: tuple[int, ...],
    step: int,
    expected: Expected,
    returned: Returned | None,
    num_heads: int,
) -> Compared:
    """The vector of an output ``at`` these indices; for ``output``, they end with the head."""
    shape = expected.value.shape
    size = shape[-1] // num_heads if name == "output" else shape[-1]
    *leading, start = (*at[:-1], at[-1] * size) if name == "output" else (*at, 0)
    index = (*leading, slice(start, start + size))
    value, unit = expected.value[index], expected.unit[index]
    target_class: TargetClass = returned.target_class if returned is not None else "cpu"
    got, known = np.zeros_like(value), np.zeros(value.shape, bool)
    if returned is not None and returned.outputs is not None:
        whole = returned.outputs[step].get(name)
        if whole is not None and (whole.shape, whole.dtype) == (shape, NUMPY[expected.dtype]):
            got, known = whole[index].astype(np.float64), ~known
    elif returned is not None:
        for error in returned.elements:
            if (error.output, error.step) == (name, step) and error.index and error.got is not None:
                *others, last = error.index
                if others == leading and start <= last < start + size:
                    got[last - start], known[last - start] = error.got, True
    share = shares(got, value, unit, target_class)
    first = (*leading, start)
    return Compared(name, first, value, CONSTANTS[target_class] * unit, got, share, known)


def arrays_of(
    case: Case, prepared: Prepared, step: int, returned: Returned | None
) -> dict[str, Array] | None:
    """All values of one step, for every batch, head and token; docs/oracle.md lists the arrays.

    None if they do not fit into memory.
    """
    computation = computation_of(case.call, prepared, step)
    if computation.is_large:
        return None
    call, a, cache = computation.call, computation.attention, computation.cache
    b, k, g, s, _ = a.query.shape

    def by_head(grouped: Array) -> Array:
        return grouped.reshape(b, k * g, s, *grouped.shape[4:])

    arrays: dict[str, Array] = {
        "lengths": call.lengths,
        "past_lengths": call.past_lengths,
        "query_places": call.query_starts[:, None] + np.arange(s),
        "past_row": cache.key.past_row,
        "query": by_head(a.query),
        "key": a.key,
        "value": a.value,
        "visible": a.visible,
        "scores": by_head(a.scores),
        "capped": by_head(a.capped),
        "logits": by_head(a.logits),
        "probabilities": by_head(a.probabilities),
        "sink_probability": by_head(a.sink_probability),
    }
    for name, expected in prepared.expected[step].items():
        arrays[f"expected_{name}"] = expected.value
        target_class: TargetClass = returned.target_class if returned is not None else "cpu"
        arrays[f"budget_{name}"] = CONSTANTS[target_class] * expected.unit
        if returned is not None and returned.outputs is not None:
            got = returned.outputs[step].get(name)
            if got is not None and got.dtype == NUMPY[expected.dtype]:
                arrays[f"got_{name}"] = got.astype(np.float64)
    return arrays
