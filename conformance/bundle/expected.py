"""The oracle's expectation for one output, and where a runtime's output differs from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from conformance.base.array_types import ONNX_OF_NUMPY, WORD_OF_ONNX, Array
from conformance.oracle import Reference
from conformance.oracle.attention import Watched
from conformance.oracle.block_pass import BoundedOutput
from conformance.oracle.tolerance import PastErrors, arithmetic_budget, unit_budget

#: Elements whose exact units are computed first. After that, few others may be the worst.
_FIRST: Final = 64


class DifferingElements(NamedTuple):
    """The defined elements of an output that differ from the expected ones, or may.

    ``at`` are their indices in the flat output; the other arrays are float64 and have the same
    length.
    """

    at: Array
    got: Array
    value: Array
    unit: Array


@dataclass(frozen=True, eq=False)
class Expected:
    """The oracle's result for one output.

    ``name`` is the output's name. ``past_error`` are the errors of the past, in a loop.
    ``stored_scores``: the budgets are those of a kernel that computes scores in the storage type.
    """

    name: str
    reference: Reference
    past_error: PastErrors | None = None
    stored_scores: bool = False

    @cached_property
    def units(self) -> Array:
        """The units of the error model (tolerance.py), of the output's shape."""
        return unit_budget(self.name, self.reference, self.past_error, self.stored_scores)

    @cached_property
    def rounded(self) -> Array:
        """The values in the output's dtype, with zeros in place of undefined elements."""
        values = self.value  # which has 0 where it is undefined, unless it is watched
        if self.reference.watched:
            values = np.where(self.defined, values, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self.reference.dtype)

    @cached_property
    def arithmetic(self) -> Array:
        """The units of a kernel that rounds to storage only at its end."""
        return arithmetic_budget(self.name, self.reference, self.past_error)

    @property
    def value(self) -> Array:
        """The values in float64, of the output's shape; 0 where they are undefined."""
        return self.reference.value

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return self.value.shape

    @property
    def dtype(self) -> str:
        """The required dtype."""
        return WORD_OF_ONNX[ONNX_OF_NUMPY[self.reference.dtype]]

    @cached_property
    def unit(self) -> Array:
        """The units of the error model, NaN where the element is undefined."""
        return np.where(self.defined, self.units, np.nan)

    @cached_property
    def watched(self) -> dict[Watched, Array]:
        """The units of undefined elements that are watched, by the reason; NaN for all others."""
        there = self.reference.watched
        return {why: np.where(mask, self.units, np.nan) for why, mask in there.items()}

    @cached_property
    def defined(self) -> Array:
        """Which elements are defined."""
        return np.broadcast_to(self.reference.defined, self.shape)

    @cached_property
    def defined_count(self) -> int:
        """The number of defined elements."""
        return int(np.count_nonzero(self.defined))

    def defined_of(self, array: Array) -> Array:
        """The defined elements of an array of the output's shape, one after the other."""
        found: Array = array.reshape(-1)
        if self.defined_count < array.size:
            found = found[self.defined.reshape(-1)]
        return found

    def unlike(self, got: Array) -> DifferingElements:
        """The elements of ``got``, of the output's shape and dtype, but for exact copies."""
        with np.errstate(invalid="ignore"):  # a signalling NaN
            numbers = got.reshape(-1).astype(np.float64)
        value, units = self.value.reshape(-1), self.units.reshape(-1)
        at = np.flatnonzero(((numbers != value) | (units != 0)) & self.defined.reshape(-1))
        return DifferingElements(at, numbers[at], value[at], units[at])

    def worst(self, got: Array) -> DifferingElements:
        """The same, but the units of elements with a smaller share than the largest may be larger.

        If bounds of the units are known, exact ones are computed only where the share may be the
        largest.
        """
        bounded = self._bounded
        if bounded is None:
            return self.unlike(got)
        low, unit = bounded.low, bounded.high.copy()
        defined, value = self.defined.reshape(-1), self.value.reshape(-1)
        with np.errstate(invalid="ignore"):
            numbers = got.reshape(-1).astype(np.float64)
            error = np.where(defined, np.abs(numbers - value), 0.0)
        if not np.isfinite(error).all():
            return self.unlike(got)
        most, largest = error / low, float((error / unit).max())
        (places,) = np.nonzero(most > largest)
        places = places[np.argsort(-most[places])]
        for near in (places[:_FIRST], places[_FIRST:]):
            near = near[most[near] > largest]
            unit[near] = bounded.exact(near)
            largest = max(largest, float((error[near] / unit[near]).max(initial=0.0)))
        at = np.flatnonzero(defined)
        return DifferingElements(at, numbers[at], value[at], unit[at])

    def unit_at(self, place: int) -> float:
        """The unit of a defined element, by its index in the flat output."""
        if self._bounded is None:
            return float(self.units.flat[place])
        return float(self._bounded.exact(np.array([place]))[0])

    @property
    def _bounded(self) -> BoundedOutput | None:
        exact = self.past_error is not None or self.stored_scores or "units" in vars(self)
        return None if exact else self.reference.bounded
