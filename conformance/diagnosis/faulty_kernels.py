"""The kernels with a known fault, and calls that are run with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from conformance.base.array_types import Array
from conformance.base.paths import data_path
from conformance.base.processes import ask
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.runner import Command
from conformance.harness.session import Session
from conformance.judge.verdict import Unjudgeable, read_outputs
from conformance.oracle.tolerance import TargetClass, shares
from conformance.run.assessment import job_for, prepared_case

RUNNER: Final = data_path("mutants") / "runner.py"
#: The correct kernel, which also reports the faults that could change a call.
PROBE: Final = "probe"
#: The outputs of a fault and of the target may differ by this many budgets: both have errors …
BUDGETS: Final = 2.0
#: … or by this share of the largest error.
SHARE: Final = 1e-3


def known_faults() -> list[dict[str, Any]]:
    """The fields of each known fault, as the runner lists them: name, area, what, kind, only."""
    lines = ask((sys.executable, RUNNER, "--list")).stdout.decode().splitlines()
    return [json.loads(line) for line in lines]


class FaultyKernels:
    """The process that runs the kernels with a known fault; a context manager."""

    def __init__(self, without: Sequence[str] = ()) -> None:
        command = Command("faulty kernels", (sys.executable, str(RUNNER), "--by-folder"))
        self._session = Session(command)
        self._without = frozenset(without)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close(at_once=True)

    @cached_property
    def sentences(self) -> dict[str, str]:
        """A sentence for each fault that changes values, by its name."""
        return {
            fault["name"]: " ".join(fault["what"].split())
            for fault in self._listed
            if fault["kind"] == "numbers" and fault["area"] != "process"
            if fault["name"] not in self._without
        }

    @cached_property
    def areas(self) -> dict[str, str]:
        """The area of the operator that each fault belongs to, by its name."""
        return {fault["name"]: fault["area"] for fault in self._listed}

    @cached_property
    def _listed(self) -> list[dict[str, Any]]:
        return known_faults()

    def changing(self, call: SampledCall) -> list[str]:
        """The faults that could change the call."""
        outcome = self._session.run(call.job(PROBE))
        if not isinstance(outcome, Ran):
            return []
        touched = json.loads(outcome.stderr.strip().splitlines()[-1])
        return [name for name in self.sentences if name in touched]

    def outputs(self, call: SampledCall, fault: str) -> Outputs | None:
        """The outputs of the kernel with the fault, or with several, `one+other`.

        None if it returns none.
        """
        outcome = self._session.run(call.job(fault))
        try:
            return read_outputs(outcome) if isinstance(outcome, Ran) else None
        except Unjudgeable:
            return None


class SampledCall:
    """A sampled call: its inputs, the expected outputs, and those of the target."""

    def __init__(self, case: Case, returned: Outputs, target_class: TargetClass) -> None:
        self.case = case
        self.returned = returned
        self._class: TargetClass = target_class
        self._prepared: Prepared = prepared_case(case).own
        self.expected = self._prepared.expected
        self._job = job_for(case, self._prepared, only_inputs=True)

    def job(self, fault: str) -> Job:
        """The call for the kernel with this fault."""
        folder, name = f"{fault}/{self._job.folder}", f"{fault} on {self.case.id}"
        return replace(self._job, case=name, folder=folder, repeat=1, seconds=5.0)

    def is_right(self, outputs: Outputs) -> bool:
        """Whether these outputs are within their error budgets."""
        steps = zip(outputs, self.expected, strict=True)
        return all(self._is_right(step, wanted) for step, wanted in steps)

    def _is_right(self, step: Mapping[str, Array], wanted: Mapping[str, Expected]) -> bool:
        return all(self._near(step.get(n), want.rounded, want, 1.0) for n, want in wanted.items())

    def overlap(self, outputs: Outputs) -> float:
        """The share of wrong elements, in these outputs or the target's, that are wrong in both.

        It is the mean over the outputs that are wrong in either.
        """
        shares_of_outputs = []
        for step, like, wanted in zip(self.returned, outputs, self.expected, strict=True):
            for name, want in wanted.items():
                one, other = (self._wrong(of.get(name), want) for of in (step, like))
                if one.size != other.size:  # one of them has another shape
                    shares_of_outputs.append(0.0)
                elif either := np.count_nonzero(one | other):
                    shares_of_outputs.append(np.count_nonzero(one & other) / either)
        return float(np.mean(shares_of_outputs)) if shares_of_outputs else 0.0

    def _wrong(self, got: Array | None, want: Expected) -> npt.NDArray[np.bool_]:
        """Which defined elements are beyond their error budgets; empty if the shape is wrong."""
        if got is None or got.shape != want.shape:
            return np.ones(0, bool)
        value, budgets = want.defined_of(want.value), want.defined_of(want.units)
        share = shares(want.defined_of(got).astype(np.float64), value, budgets, self._class)
        return ~(share <= 1.0)

    def is_explained(self, outputs: Outputs, in_some_steps: bool = False) -> bool:
        """Whether these outputs are wrong and equal the target's, within their budgets.

        ``in_some_steps``: the target may be right in the others.
        """
        steps = zip(self.returned, outputs, self.expected, strict=True)
        return not self.is_right(outputs) and all(
            all(self._near(step.get(n), like.get(n), want, BUDGETS) for n, want in wanted.items())
            or (in_some_steps and len(outputs) > 1 and self._is_right(step, wanted))
            for step, like, wanted in steps
        )

    def _near(
        self, got: np.ndarray | None, like: np.ndarray | None, want: Expected, most: float
    ) -> bool:
        """Whether two outputs differ by at most ``most`` error budgets in all defined elements.

        A fault's outputs may also differ by a small share of the error, since the budgets are those
        of the right values.
        """
        if got is None or like is None or (got.shape, got.dtype) != (like.shape, like.dtype):
            return False
        if got.shape != want.shape:
            return True
        one, other = (want.defined_of(of).astype(np.float64) for of in (got, like))
        share = shares(one, other, want.defined_of(want.units), self._class)
        share[np.isnan(one) & np.isnan(other)] = 0.0
        if (share <= most).all():
            return True
        with np.errstate(all="ignore"):
            apart, wrong = (
                np.where(np.isnan(one) & np.isnan(of), 0.0, np.abs(one - of))
                for of in (other, want.defined_of(want.value))
            )
        return most > 1.0 and bool(apart.max() <= SHARE * wrong.max())
