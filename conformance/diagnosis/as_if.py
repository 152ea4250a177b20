"""Names the known fault whose wrong values a target returns: a fault dictionary of kernels.

``mutants/`` has a correct kernel and some 400 small faults of it. A fault explains failures if the
kernel with this fault returns the target's values, within the error budget, for most of the sampled
failures, and does not break calls that pass on the target. Otherwise no fault is named.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final, Self
from zlib import crc32

import numpy as np

from conformance.base.paths import data_path
from conformance.base.processes import ask
from conformance.base.words import plural
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import Prepared
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.diagnosis.shared import effort, simplicity
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
#: Failures sampled.
FAILURES: Final = 8
#: Passing calls sampled that differ from each other as much as possible.
SPREAD: Final = 16
#: Passing calls sampled in all: also those nearest to the failures, alternating with random ones.
TRIED: Final = 1000
#: Passing calls that are tried even if the time is up.
ENOUGH: Final = 400
#: Sampled failures that are compared with all faults.
SEEDS: Final = 3
#: One unexplained failure is allowed for this many explained ones: a kernel has several faults.
EXCEPTIONS: Final = 2
#: A fault that breaks more of the passing calls than this is dropped.
BROKEN: Final = 2
#: The outputs of a fault and of the target may differ by this many budgets: both have errors …
BUDGETS: Final = 2.0
#: … or by this share of the largest error.
SHARE: Final = 1e-3
#: Calls with more than this many products of scores are not sampled, or not tried.
MAX_EFFORT: Final = 20_000_000
MAX_EFFORT_TRIED: Final = 2_000_000
#: Calls are sampled from the simplest ones, at most this many.
SIMPLE: Final = 200
#: If the sampled calls do not tell several faults apart, up to this many are named.
MAX_NAMES: Final = 3

#: The outputs of a call on the target; None if it does not run.
OutputsOf = Callable[[Case], Outputs | None]


@dataclass(frozen=True)
class MatchingFault:
    """A fault whose values the target returns, or several that no sampled call tells apart.

    ``explained``: the failures that were run again and have the values of the fault. ``others``:
    the other failures that were run again. ``broken``: passing calls that fail with this fault.
    """

    names: tuple[str, ...]
    sentences: tuple[str, ...]
    explained: tuple[Case, ...]
    others: tuple[Case, ...]
    broken: tuple[Case, ...]

    @property
    def sentence(self) -> str:
        """The fault in words, the number of failures that it explains, and the exceptions."""
        faults = [f"{text[:1].lower()}{text[1:].rstrip('.')}" for text in self.sentences]
        names = ", ".join(self.names)
        tried = len(self.explained) + len(self.others)
        but = f", but not in {self.others[0].id}" if self.others else ""
        if self.broken:
            calls = plural(len(self.broken), "call")
            but += f"; it would also break {calls} that passed, such as {self.broken[0].id}"
        return (
            f"As if {'; or '.join(faults)} ({names}): it gives the same wrong values in "
            f"{len(self.explained)} of {tried} failures that were run again{but}."
        )


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
        lines = ask((sys.executable, RUNNER, "--list")).stdout.decode().splitlines()
        faults = (json.loads(line) for line in lines)
        return {
            fault["name"]: " ".join(fault["what"].split())
            for fault in faults
            if fault["kind"] == "numbers" and fault["area"] != "process"
            if fault["name"] not in self._without
        }

    def changing(self, call: SampledCall) -> list[str]:
        """The faults that could change the call."""
        outcome = self._session.run(call.job(PROBE))
        if not isinstance(outcome, Ran):
            return []
        touched = json.loads(outcome.stderr.strip().splitlines()[-1])
        return [name for name in self.sentences if name in touched]

    def outputs(self, call: SampledCall, fault: str) -> Outputs | None:
        """The outputs of the kernel with the fault; None if it returns none."""
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
        pairs = zip(outputs, self.expected, strict=True)
        return all(
            self._near(step.get(name), want.rounded, want, 1.0)
            for step, wanted in pairs
            for name, want in wanted.items()
        )

    def is_explained(self, outputs: Outputs) -> bool:
        """Whether these outputs are wrong and equal the target's, within their budgets."""
        steps = zip(self.returned, outputs, self.expected, strict=True)
        return not self.is_right(outputs) and all(
            self._near(step.get(name), like.get(name), want, BUDGETS)
            for step, like, wanted in steps
            for name, want in wanted.items()
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


def as_if(
    failing: Sequence[Sequence[Case]],
    passing: Sequence[Case],
    outputs_of: OutputsOf,
    target_class: TargetClass,
    kernels: FaultyKernels,
    until: float = float("inf"),
) -> list[MatchingFault]:
    """The faults that explain failures, in the order of the groups.

    Args:
        failing: groups of failing calls; some of each are sampled.
        passing: calls that pass.
        outputs_of: runs a call on the target.
        target_class: whose error budgets count.
        kernels: the faults.
        until: when to stop, a time of `time.monotonic`.
    """
    found: dict[tuple[str, ...], MatchingFault] = {}
    known: set[str] = set()
    for group in failing:
        calls = (_call(case, outputs_of, target_class) for case in _spread(group, FAILURES))
        samples = [call for call in calls if call and call.case.id not in known]
        for seed in samples[:SEEDS]:
            if time.monotonic() >= until:
                return [*found.values()]
            one = _explained(seed, samples, passing, outputs_of, target_class, kernels, until)
            if one is not None:
                before = found.get(one.names, replace(one, explained=(), others=(), broken=()))
                found[one.names] = replace(
                    one,
                    explained=(*before.explained, *one.explained),
                    others=(*before.others, *one.others),
                    broken=tuple(
                        {case.id: case for case in (*before.broken, *one.broken)}.values()
                    ),
                )
                known |= {case.id for case in one.explained}
                break
    return [*found.values()]


def _explained(
    seed: SampledCall,
    samples: Sequence[SampledCall],
    passing: Sequence[Case],
    outputs_of: OutputsOf,
    target_class: TargetClass,
    kernels: FaultyKernels,
    until: float,
) -> MatchingFault | None:
    """The fault that explains ``seed`` and the other samples.

    None if no fault does, or if the time is up before it was tried with passing calls.
    """
    like = {name: [seed] for name in kernels.changing(seed) if _explains(seed, name, kernels)}
    others = dict.fromkeys(like, 0)
    for call in samples:
        for name in [*like] if call is not seed else ():
            outputs = kernels.outputs(call, name)
            if outputs is not None and call.is_explained(outputs):
                like[name].append(call)
            elif outputs is None or not call.is_right(outputs):
                others[name] += 1
    like = {
        name: calls
        for name, calls in like.items()
        if 2 * len(calls) > len(samples) and len(calls) >= others[name] * EXCEPTIONS
    }
    broken: dict[str, list[Case]] = {name: [] for name in like}
    for number, case in enumerate(_telling(passing, [c.case for c in samples]) if like else ()):
        if number >= ENOUGH and time.monotonic() >= until:
            break
        if not like or time.monotonic() >= until:
            return None
        if call_passing := _right_call(case, outputs_of, target_class):
            for name in like:
                broken[name] += [case] * (not _keeps(call_passing, name, kernels))
            like = {name: calls for name, calls in like.items() if len(broken[name]) <= BROKEN}
    order = {n: (len(calls), -others[n] - len(broken[n])) for n, calls in like.items()}
    best = tuple(name for name in like if order[name] == max(order.values()))
    if not 0 < len(best) <= MAX_NAMES:
        return None
    explained = tuple(call.case for call in like[best[0]])
    others_of = tuple(call.case for call in samples if call not in like[best[0]])
    sentences = tuple(kernels.sentences[name] for name in best)
    return MatchingFault(best, sentences, explained, others_of, tuple(broken[best[0]]))


def _call(case: Case, outputs_of: OutputsOf, target_class: TargetClass) -> SampledCall | None:
    """The call with the outputs of the target; None if these cannot be compared."""
    outputs = outputs_of(case)
    if outputs is None:
        return None
    call = SampledCall(case, outputs, target_class)
    return call if all(call.expected) else None


def _right_call(case: Case, outputs_of: OutputsOf, target_class: TargetClass) -> SampledCall | None:
    """A passing call that the target computes; None if it may have passed by a rejection."""
    contract = case.contract
    if contract.demands == "computes" and not (contract.providers or contract.readings):
        return SampledCall(case, (), target_class)
    call = _call(case, outputs_of, target_class)
    return call if call and call.is_right(call.returned) else None


def _explains(call: SampledCall, fault: str, kernels: FaultyKernels) -> bool:
    outputs = kernels.outputs(call, fault)
    return outputs is not None and call.is_explained(outputs)


def _keeps(call: SampledCall, fault: str, kernels: FaultyKernels) -> bool:
    """Whether the call is right with the fault, too."""
    outputs = kernels.outputs(call, fault)
    return outputs is not None and call.is_right(outputs)


def _spread(cases: Sequence[Case], most: int) -> list[Case]:
    """At most ``most`` simple cases: the simplest, then those that differ most in their features.

    Simple cases have few features and therefore meet few other faults.
    """
    left = sorted(_small(cases), key=simplicity)
    left = left[: min(max(2 * most, len(left) // 4), SIMPLE)]
    chosen = left[:1]
    left = left[1:]
    while left and len(chosen) < most:
        chosen.append(max(left, key=lambda case: min(_distance(case, one) for one in chosen)))
        left.remove(chosen[-1])
    return chosen


def _telling(passing: Sequence[Case], failing: Sequence[Case]) -> list[Case]:
    """The passing calls that are tried with a fault, each once, in an order free of sizes."""
    small = [case for case in _small(passing) if effort(case) <= MAX_EFFORT_TRIED]
    drawn = sorted(small, key=lambda case: crc32(case.id.encode()))
    near = sorted(drawn, key=lambda case: min(_distance(case, one) for one in failing))
    order = (*_spread(small, SPREAD), *chain.from_iterable(zip(near, drawn, strict=True)))
    return [*{case.id: case for case in order}.values()][:TRIED]


def _small(cases: Sequence[Case]) -> Iterator[Case]:
    return (case for case in cases if not case.is_graph and effort(case) <= MAX_EFFORT)


def _distance(one: Case, other: Case) -> int:
    """The number of features in which two calls differ."""
    others: Mapping[str, str | None] = other.features
    return sum(value != others[name] for name, value in one.features.items())
