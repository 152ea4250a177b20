"""What the oracle expects of one output, and where a runtime's output is unlike it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from conformance.bundle.float_arrays import SparseArray
from conformance.oracle.attention import Watched

Array = np.ndarray


class Unlike(NamedTuple):
    """The defined elements of an output that may differ from the expected ones.

    ``at`` are their places in the flat output; the others are float64 and have its length.
    """

    at: Array
    got: Array
    value: Array
    unit: Array


@dataclass(frozen=True, eq=False)
class Expected:
    """The oracle's result for one output.

    ``value`` and ``unit`` are float64 and have the output's shape. ``unit`` is the unit of the
    error model (tolerance.py), NaN where the element is undefined. ``dtype`` is the required dtype.
    ``arithmetic`` exists only for the variant of a relation: the unit of a kernel that rounds to
    storage only at its end (:func:`conformance.oracle.tolerance.arithmetic_budget`). ``watched``
    has the units of undefined elements that are watched, NaN for all others.

    Most elements of a long cache are copies without an error. They are not held in float64 until
    somebody asks for ``value`` or ``unit``.
    """

    sparse_value: SparseArray
    sparse_unit: SparseArray
    dtype: str
    sparse_arithmetic: SparseArray | None = None
    sparse_watched: Mapping[Watched, SparseArray] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The output's shape."""
        return self.sparse_value.shape

    @cached_property
    def value(self) -> Array:
        """The values, of the output's shape; 0 where they are undefined."""
        return self.sparse_value.dense()

    @cached_property
    def unit(self) -> Array:
        """The units of the error model, of the output's shape."""
        return self.sparse_unit.dense()

    @cached_property
    def arithmetic(self) -> Array | None:
        """The units of a kernel that rounds to storage only at its end."""
        return None if self.sparse_arithmetic is None else self.sparse_arithmetic.dense()

    @cached_property
    def watched(self) -> dict[Watched, Array]:
        """The units of watched elements, by why they are watched."""
        return {why: units.dense() for why, units in self.sparse_watched.items()}

    @cached_property
    def defined(self) -> Array:
        """Which elements are defined."""
        defined: Array = ~self.sparse_unit.is_nan().reshape(self.shape)
        return defined

    @cached_property
    def defined_count(self) -> int:
        """How many elements are defined."""
        return int(np.count_nonzero(self.defined))

    def defined_of(self, array: Array) -> Array:
        """The defined elements of an array of the output's shape, one after the other."""
        found: Array = array.reshape(-1)
        if self.defined_count < array.size:
            found = found[self.defined.reshape(-1)]
        return found

    def unlike(self, got: Array) -> Unlike:
        """Where ``got``, of the output's shape and dtype, is not a copy without an error."""
        mask = self.sparse_value.unlike(got) | self.sparse_unit.own
        at, unit = np.flatnonzero(mask), self.sparse_unit.elements(mask)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            numbers = got.reshape(-1)[mask].astype(np.float64)
        found = numbers, self.sparse_value.elements(mask), unit
        if self.defined_count == got.size:
            return Unlike(at, *found)
        defined = ~np.isnan(unit)
        return Unlike(at[defined], *(array[defined] for array in found))
