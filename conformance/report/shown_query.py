"""Which query ``gqa show --values`` shows: as options, an element or a result choose it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.oracle.cache import present_places
from conformance.oracle.query_values import present_rows
from conformance.oracle.reference import Computation
from conformance.report.repro.one_result import OneResult, computed, is_index


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
class QueryPlace:
    """The query that a user asked for; None is chosen by the element, or by the defaults."""

    step: int | None = None
    batch: int | None = None
    head: int | None = None
    token: int | None = None
    element: Element | None = None


@dataclass(frozen=True, eq=False)
class ShownQuery:
    """The query of a computed step whose values are shown, and what is expected of the step.

    ``token`` is None if the step has no query token. ``row`` is the row of the presents that is
    shown; None if no present is connected, or if the row holds no token. ``element`` is the element
    that chose the query, if one did.
    """

    work: Computation
    expected: Mapping[str, Expected]
    step: int
    element: Element | None
    batch: int = 0
    head: int = 0
    token: int | None = None
    row: int | None = None


def values_of(prepared: Prepared, asked: QueryPlace, one: OneResult | None) -> ShownQuery:
    """The values of the query that ``asked`` describes.

    By default it is the query of the element that was asked for, or else of the worst wrong element
    that was returned. If there is none, it is the last token of batch 0, head 0, last step.

    ``prepared`` is of a single node, and its ``unjudged`` is None. Raises :class:`NoSuchPlace`.
    """
    step, element = _element(prepared, asked, one)
    expected, work = prepared.expected[step], computed(prepared, step)
    call = work.call
    sizes = {"batch": call.batch_size, "head": call.num_heads, "token": call.sequence_length}
    for name, size in sizes.items():
        number = getattr(asked, name)
        if number is not None and number >= size:
            there = f"{name} 0 … {size - 1}" if size else f"no {name}"
            raise NoSuchPlace(f"There is no {name} {number}: the call has {there}.")
    if not call.batch_size:
        return ShownQuery(work, expected, step, element)
    batch, head, token, row = _place(element, work)
    if asked.batch is not None and asked.batch != batch:
        batch, token, row = asked.batch, None, None
    if asked.token is not None and asked.token != token:
        token, row = asked.token, None
    head = head if asked.head is None else asked.head
    last, start = int(call.lengths[batch]) - 1, int(call.query_starts[batch])
    if token is None and call.sequence_length:  # the last that is not padding
        token = max(min(last - start, call.sequence_length - 1), 0)
    if row is None:  # the row of the token itself; for padding, that of the last token
        place = last if token is None else min(start + token, last)
        row = int(present_rows(call, batch)[place])
    connected = {"present_key", "present_value"} & {*expected}
    if row < 0 or not connected or present_places(call)[batch, row] < 0:
        row = None
    return ShownQuery(work, expected, step, element, batch, head, token, row)


def _element(
    prepared: Prepared, asked: QueryPlace, one: OneResult | None
) -> tuple[int, Element | None]:
    """The step, and the element that chooses the query; None if there is none."""
    last = len(prepared.expected) - 1
    if asked.step is not None and asked.step > last:
        raise NoSuchPlace(f"There is no step {asked.step}: the case has the steps 0 … {last}.")
    step = last if asked.step is None else asked.step
    if not prepared.expected[step]:
        raise NoSuchPlace(f"Step {step} has no values: it is a call that must be refused.")
    if asked.element is not None:
        _check(asked.element, prepared.expected[step])
        return step, asked.element
    wrong: list[tuple[float, int, Element]] = []
    for error in () if one is None else one.elements:
        share = error.share or 0.0
        if share <= 1 or asked.step not in (None, error.step) or not 0 <= error.step <= last:
            continue
        element = Element(error.output, error.index or ())
        with suppress(NoSuchPlace):  # results files are not trusted
            _check(element, prepared.expected[error.step])
            wrong.append((math.inf if math.isnan(share) else share, error.step, element))
    _, step, worst = max(wrong, key=lambda each: each[0], default=(0.0, step, None))
    return step, worst


def _check(element: Element, expected: Mapping[str, Expected]) -> None:
    if element.output not in expected:
        raise NoSuchPlace(f"There is no {element.output}: the case has {', '.join(expected)}.")
    shape = expected[element.output].shape
    if not is_index(element.index, shape):
        raise NoSuchPlace(f"There is no {element}: {element.output} has the shape {list(shape)}.")


def _place(element: Element | None, work: Computation) -> tuple[int, int, int | None, int | None]:
    """The batch, head, token and row of the presents of an element, by default of no element.

    The token of an element of a present is the one that wrote it. None stands for the last token,
    and for the row of the token.
    """
    if element is None:
        return 0, 0, None, None
    call, index = work.call, element.index
    if element.output == "output":
        return index[0], index[2] // call.head_size, index[1], None
    if element.output == "output_qk":
        return index[0], index[1], index[2], None
    batch, kv_head, row = index[:3]
    place = int(present_places(call)[batch, row])
    token = place - int(call.query_starts[batch])
    written = place >= 0 and 0 <= token < call.sequence_length
    return batch, kv_head * work.group, token if written else None, row
