"""What cases take: as recorded in results files, and else by an estimate.

The estimate is arithmetic on shapes, so it is the same on every machine. Its constants were fitted
on 23 November 2026 to 750 cases of the corpus (preparing, on one core) and to 9,495 results in
float32 on five targets (running), on a virtual machine with 2 cores of 2.8 GHz.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from conformance.case.call import GraphCall
from conformance.case.case import Case
from conformance.results.errors import ResultsError
from conformance.results.reader import MOST_BYTES, MOST_LINES, stream
from conformance.results.records import Header, ResultRecord

#: How many times as long as on ONNX Runtime's CPU kernels a call takes, of targets that are slower.
#: WebGPU is on lavapipe, in all dtypes; the threads are more than the cores.
SLOWER: Final[Mapping[str, float]] = {
    "wasm": 1.5,
    "cpu-threads": 2.0,
    "tract-wheel": 2.0,
    "tract": 5.0,
    "tract-plain": 5.0,
    "webgpu": 25.0,
    "webgpu-jsep": 20.0,
}


@dataclass(frozen=True)
class Times:
    """What cases take, in ms on one core. ``recorded`` is keyed by case id and ``ep``."""

    recorded: Mapping[tuple[str, str], float] = field(default_factory=dict)
    _sizes: dict[int, tuple[Case, _Size]] = field(default_factory=dict, repr=False, compare=False)

    def preparing(self, case: Case) -> float:
        """Making the bundle of a case, the reference's values above all; always estimated.

        A machine that has the bundle in its cache does not need it.
        """
        size = self._size(case)
        return (
            7.0
            + 8.0 * size.products
            + 14.0 * size.elements
            + 6.5 * len(case.steps)
            + 7.0 * bool(case.relation)
            + 100.0 * isinstance(case.call, GraphCall)
        )

    def running(self, case: Case, ep: str) -> float:
        """A request for the case to the target ``ep`` (``cpu``, ``cpu@1.25.1``)."""
        name = ep.partition("@")[0]
        for key in ((case.id, ep), (case.id, name)):
            if key in self.recorded:
                return self.recorded[key]
        size = self._size(case)
        own = 2.0 + 0.5 * size.products + 0.5 * size.elements
        return own * SLOWER.get(name, 1.0) * (1 + bool(case.relation))

    def _size(self, case: Case) -> _Size:
        known = self._sizes.get(id(case))
        if known is None:
            known = self._sizes[id(case)] = case, _size(case)
        return known[1]


@dataclass(frozen=True)
class _Size:
    products: float
    """Millions of multiplications in the scores."""
    elements: float
    """Elements of all inputs, in 100,000."""


def _size(case: Case) -> _Size:
    shapes = [
        [dim for dim in tensor.shape if isinstance(dim, int)]
        for step in case.steps
        for tensor in step.inputs
        if tensor.connected and tensor.shape is not None
    ]
    return _Size(
        scores(case) * max(case.call.head_size, 1) / 1e6, sum(math.prod(s) for s in shapes) / 1e5
    )


def scores(case: Case) -> int:
    """The number of attention scores of a case, which the reference's time grows with."""
    call = case.call
    return (
        call.num_heads
        * call.batch_size
        * sum(step.sequence_length * max(step.total_sequence_length, 1) for step in case.steps)
    )


def recorded_times(files: Iterable[Path]) -> Times:
    """The times of all results in these files; the mean where several have a case on an ``ep``.

    A release without times of its own (``cpu@1.25.1``) has the mean of the others.
    Raises `ResultsError`.
    """
    all_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for file in files:
        eps: dict[str, str] = {}
        found = False
        for _, record in stream(file, [], MOST_LINES, MOST_BYTES):
            if isinstance(record, Header):
                eps = {target.name: target.ep for target in record.targets}
            elif isinstance(record, ResultRecord) and (ms := _total(record)) is not None:
                ep = eps.get(record.target, record.target)
                for key in {ep, ep.partition("@")[0]}:
                    all_of[record.case, key].append(ms)
                found = True
        if not found:
            raise ResultsError(f"{file} has no times: --times takes the results of a run, whole.")
    return Times({key: mean(values) for key, values in all_of.items()})


def _total(result: ResultRecord) -> float | None:
    """The time of a result from request to answer, if it has a sensible one."""
    total = result.ms.total if result.ms else None
    return total if total is not None and math.isfinite(total) and total >= 0 else None


def mean(values: Sequence[float]) -> float:
    """The mean, rounded to a µs, so that the order of the files does not matter."""
    return round(math.fsum(values) / len(values), 3)
