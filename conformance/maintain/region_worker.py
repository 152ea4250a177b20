"""Runs mutants on a case in this process, and judges their outputs without files.

It imports the mutants (``mutants/``), so it is meant for processes that do nothing else. A mutant
that ends or stalls its process is not for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

import numpy as np

from conformance.base.array_types import WORD_OF_ONNX
from conformance.base.paths import data_path
from conformance.bundle.cache import Bundle, bundle_for
from conformance.bundle.expected import Expected
from conformance.bundle.sensitive_cases import why_insensitive
from conformance.case.case import Case
from conformance.maintain.power import shows
from conformance.oracle.tolerance import shares

Array = np.ndarray
Outputs = list[dict[str, Array]]

#: The mutants of this area keep something from run to run, so they are run twice.
TWICE: Final = "memory"


@dataclass(frozen=True)
class Seen:
    """What the correct kernel shows of a case.

    ``regions``: those that contain all calls of the case. ``reach``: for each axis the largest
    index in an output, if the case has a single call. ``keys``: of its longest sequence.
    """

    case: str
    regions: frozenset[str] = frozenset()
    reach: Mapping[str, int] = field(default_factory=dict)
    keys: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Trial:
    """One mutant on one case.

    ``share`` of the error budget; infinite for a rejection or a wrong type. ``reach``: for each
    axis the largest index of an element beyond its budget, by output.
    """

    role: str
    differs: bool = False
    killed: bool = False
    share: float = 0.0
    reach: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Worker:
    """Runs mutants, on one case after the other."""

    def __init__(self) -> None:
        mutants, common = data_path("mutants"), data_path("runners") / "common"
        sys.path[:0] = [str(mutants), str(common)]
        self._graph: Any = importlib.import_module("graph")
        self._execution: Any = importlib.import_module("execution")
        self._kernel: Any = importlib.import_module("kernel")
        self._parts: Any = importlib.import_module("parts")
        self._mutants: Any = importlib.import_module("areas").MUTANTS
        self._regions: Any = importlib.import_module("regions").REGIONS
        self._in_region: Any = importlib.import_module("switched").in_region
        self._bundles: Any = self._execution.Bundles()
        self._last: tuple[str, Bundle] | None = None
        self._right: Outputs = []

    def seen(self, case: Case) -> Seen:
        """The case by the correct kernel; without regions if no mutant is to be run on it."""
        nothing = Seen(case.id)
        if case.contract.demands == "rejects":
            return nothing
        bundle = self._bundle(case)
        if why_insensitive(case) is not None:
            return nothing
        calls: list[Any] = []
        try:
            start = perf_counter()
            outputs = self._run(bundle, self._watching(calls))[0]
            seconds = perf_counter() - start
        except self._kernel.Refused:
            return nothing
        self._right = outputs
        found = [self._judged(case, one, outputs, outputs)[0] for one in _answers(bundle)]
        if min(found, default=np.inf) > 1:
            return nothing
        regions = frozenset(
            name
            for name, region in self._regions.items()
            if region.part is None and all(region.holds(call) for call in calls)
        )
        reach: dict[str, int] = {}
        if len(calls) == 1:
            for name, array in outputs[0].items():
                shape = self._parts.with_heads(name, array, calls[0].heads).shape
                for axis, number in self._parts.AXES[name].items():
                    reach[axis] = max(reach.get(axis, 0), shape[number] - 1)
        keys = max(call.total for call in calls)
        return Seen(case.id, regions, reach, keys, seconds)

    def trials(self, case: Case, roles: Sequence[str]) -> Iterator[Trial]:
        """Each of the ``roles``, ``MUTANT`` or ``MUTANT@REGION``, on the case."""
        bundle = self._bundle(case)
        self._right = self._run(bundle, self._kernel.Kernel())[0]
        for role in roles:
            yield self._trial(case, bundle, role)

    def _trial(self, case: Case, bundle: Bundle, role: str) -> Trial:
        name, _, region = role.partition("@")
        mutant = self._mutants[name]
        kernel = self._in_region(mutant.kernel, self._regions[region]) if region else mutant.kernel
        try:
            runs = self._run(bundle, kernel(), 2 if mutant.area == TWICE else 1)
        except Exception:  # what a faulty kernel raises, its users see as an error
            killed = case.contract.demands == "computes" and shows("unsupported", case)
            return Trial(role, True, killed, np.inf if killed else 0.0)
        differs, share = False, np.inf
        reach: dict[str, dict[str, int]] = {}
        for outputs in runs:
            differs = differs or any(
                _bits(mine) != _bits(right)
                for mine, right in zip(outputs, self._right, strict=True)
            )
        if not differs:
            return Trial(role)
        for expected in _answers(bundle):
            worst, places = max(
                (self._judged(case, expected, outputs, runs[0]) for outputs in runs),
                key=lambda found: found[0],
            )
            if worst < share or not reach:
                share, reach = min(share, worst), places
        return Trial(role, True, not share <= 1, share, reach)

    def _judged(
        self,
        case: Case,
        expected: Sequence[Mapping[str, Expected]],
        outputs: Outputs,
        first: Outputs,
    ) -> tuple[float, dict[str, dict[str, int]]]:
        """The largest share, and how far elements beyond their budget reach in a single call."""
        largest = 0.0
        reach: dict[str, dict[str, int]] = {}
        for number, (step, want) in enumerate(zip(outputs, expected, strict=True)):
            for output, one in want.items():
                got = step[output]
                dtype = WORD_OF_ONNX.get(self._graph.ONNX[got.dtype])
                if got.shape != one.value.shape or dtype != one.dtype:
                    return np.inf, {}
                defined = ~np.isnan(one.unit)
                each = shares(got.astype(np.float64), one.value, one.unit, "cpu")
                if outputs is not first:  # two runs must agree in every bit
                    each[(got != first[number][output]) & defined] = np.inf
                worst = float(each.max(initial=0.0))
                largest = max(largest, worst)
                if worst > 1 and len(outputs) == 1:
                    over = self._parts.with_heads(output, each > 1, case.call.num_heads)
                    places = np.nonzero(over)
                    reach[output] = {
                        axis: int(places[number].max())
                        for axis, number in self._parts.AXES[output].items()
                    }
        return largest, reach

    def _bundle(self, case: Case) -> Bundle:
        if self._last is None or self._last[0] != case.id:
            self._last = case.id, bundle_for(case.call, readings=case.contract.readings)
        return self._last[1]

    def _run(self, bundle: Bundle, kernel: Any, repeats: int = 1) -> list[Outputs]:
        """Copies of the outputs of each step, for each repeat in one session."""
        opened = self._bundles.open(str(bundle.path))
        session = self._graph.Session(opened.graph, kernel)
        plan = [step.model_dump() for step in bundle.steps]
        return [
            [
                {name: array.copy() for name, array in step.items()}
                for step in self._execution.steps(session, opened, plan)
            ]
            for _ in range(repeats)
        ]

    def _watching(self, calls: list[Any]) -> Any:
        """The correct kernel, which adds each of its calls to ``calls``."""
        base: Any = self._kernel.Kernel

        class Watching(base):  # type: ignore[misc]
            def known(self, *given: Any) -> Any:
                call = super().known(*given)
                calls.append(call)
                return call

        return Watching()


def _answers(bundle: Bundle) -> list[Sequence[Mapping[str, Expected]]]:
    """What is expected, by each reading."""
    usual = [] if bundle.unjudged is not None else [bundle.expected]
    return [*usual, *bundle.readings.values()]


def _bits(outputs: Mapping[str, Array]) -> list[tuple[Any, ...]]:
    return [(name, array.dtype, array.shape, array.tobytes()) for name, array in outputs.items()]
