"""One result with its case and target, beside the oracle's values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.base.array_types import NUMPY, Array
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.bundle.variants import Outputs
from conformance.oracle.reference import Computation
from conformance.oracle.tolerance import CONSTANTS, TargetClass
from conformance.results.records import CaseRecord, OutputErrorRecord, ResultRecord, TargetRecord
from conformance.targets.catalogue import entry_of

Masked = np.ma.MaskedArray[Any, Any]


@dataclass(frozen=True)
class OneResult:
    """A result with its case and target.

    ``outputs`` are the arrays that the target returned at each step; None if it did not run, or if
    the result is from a file, which has single elements.
    """

    case: CaseRecord
    result: ResultRecord
    target: TargetRecord
    outputs: Outputs | None = None

    @property
    def elements(self) -> tuple[OutputErrorRecord, ...]:
        """The element of each output and step with the largest error; empty for a variant."""
        if self.result.of_variant:
            return ()
        return tuple(error for error in self.result.errors if error.index is not None)

    def returned(self, step: int, expected: Expected) -> Masked:
        """What the target returned for an output, in float64; elements that are not known masked.

        All are masked if it returned another shape or dtype.
        """
        known: Masked = np.ma.MaskedArray(np.zeros(expected.shape), mask=True)
        if self.outputs is None:
            for error in self.elements:
                of_output = (error.output, error.step) == (expected.name, step)
                index = error.index or ()
                if of_output and error.got is not None and is_index(index, known.shape):
                    known[index] = error.got
            return known
        got = self.outputs[step].get(expected.name)
        if got is None or (got.shape, got.dtype) != (expected.shape, NUMPY[expected.dtype]):
            return known
        return np.ma.MaskedArray(got.astype(np.float64))


def is_index(index: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape has an element there; results files are not trusted."""
    inside = (0 <= i < size for i, size in zip(index, shape, strict=False))
    return len(index) == len(shape) and all(inside)


def class_of(one: OneResult | None) -> TargetClass:
    """The class of the target of a result, and without one that of cpu."""
    entry = None if one is None else entry_of(one.target.ep)
    return "cpu" if entry is None else entry.target_class


def read_as(prepared: Prepared, one: OneResult | None) -> Prepared:
    """The prepared case for the reading of the documentation that the result names.

    Its budgets are those of the target's class.
    """
    wanted = None if one is None else one.result.reading
    prepared = prepared.judged_as(class_of(one))
    return next((prepared.by(name) for name in prepared.readings if name == wanted), prepared)


def computed(prepared: Prepared, step: int) -> Computation:
    """The computation from which the outputs of a step of a single node were taken."""
    work = next(iter(prepared.expected[step].values())).reference.work
    assert work is not None
    return work


def arrays_of(prepared: Prepared, step: int, one: OneResult | None) -> dict[str, Array] | None:
    """All values of one step, for every batch, head and token; docs/oracle.md lists the arrays.

    None if they do not fit into memory.
    """
    work = computed(prepared, step)
    if work.is_large:
        return None
    call, a = work.call, work.attention
    arrays: dict[str, Array] = {
        "lengths": call.lengths,
        "past_lengths": call.past_lengths,
        "query_places": call.query_starts[:, None] + np.arange(call.sequence_length),
        "past_row": work.cache.key.past_row,
        "key": a.key,
        "value": a.value,
        "visible": a.visible,
    }
    for name in ("query", "scores", "capped", "logits", "probabilities", "sink_probability"):
        grouped: Array = getattr(a, name)
        arrays[name] = grouped.reshape(call.batch_size, call.num_heads, *grouped.shape[3:])
    for name, expected in prepared.expected[step].items():
        arrays[f"expected_{name}"] = expected.value
        arrays[f"budget_{name}"] = CONSTANTS[class_of(one)] * expected.unit
        got = None if one is None or one.outputs is None else one.outputs[step].get(name)
        if got is not None and got.dtype == NUMPY[expected.dtype]:
            arrays[f"got_{name}"] = got.astype(np.float64)
    return arrays
