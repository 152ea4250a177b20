"""A campaign: draws calls in rounds, runs and judges them, and names the faults that they show."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from conformance.case.case import Case
from conformance.diagnosis.as_if import MatchingFault, distance
from conformance.diagnosis.explanation import Explanation, with_faults
from conformance.diagnosis.shared import shared
from conformance.diagnosis.smallest import Smallest, smallest
from conformance.expectations.match import Expectation
from conformance.fuzz.drawing import Drawing, DrawnCall
from conformance.fuzz.naming import NamedFault, needs_of, signature_of
from conformance.harness.runner import RunnerFailed
from conformance.operator.call import Length
from conformance.results.causes import kind_of
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.results.verdicts import severity
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan
from conformance.run.worker import run_all

#: The calls of a round.
ROUND: Final = 500
#: The most runs that make a failing call smaller, the most seconds, and those after the campaign's.
MOST_RUNS: Final = 300
SMALLER_SECONDS: Final = 60.0
LATE_SECONDS: Final = 5.0
#: The seconds that look for a known fault with the same values.
SECONDS: Final = 8.0
#: The passing calls among which a known fault is looked for.
PASSING: Final = 200
#: The cases of an expectation that are compared with a fault: those with the most similar features.
NEAR: Final = 4


@dataclass(frozen=True)
class NewFault:
    """A new fault with its smallest call, the result of that, and sentences about both."""

    fault: NamedFault
    ready: DescribedTarget
    case: Case
    result: ResultRecord
    sentences: tuple[str, ...] = ()


@dataclass
class CampaignState:
    """How far a campaign has come: the calls done, their verdicts and features, and the faults.

    ``settings`` must stay the same while it goes on.
    """

    settings: dict[str, str]
    done: Length = 0
    verdicts: dict[str, Length] = field(default_factory=dict)
    features: dict[str, Length] = field(default_factory=dict)
    faults: list[NamedFault] = field(default_factory=list)


#: Reads and writes the file of a campaign.
STATE: Final = TypeAdapter(CampaignState)


class Campaign:
    """Draws the calls with these ``numbers``, and runs them on the targets of the ``plans``.

    The plans have no cases; ``corpus`` has those that their expectations are about. ``until`` is a
    time of `time.monotonic`. ``against``: of two targets, a call fails where their verdicts differ,
    on the one with the worse verdict.
    """

    def __init__(
        self,
        drawing: Drawing,
        plans: Sequence[Plan],
        corpus: Sequence[Case],
        numbers: range,
        state: CampaignState,
        *,
        jobs: int,
        until: float = math.inf,
        against: bool = False,
    ) -> None:
        self._against = against
        self._drawing = drawing
        self._plans = plans
        self._corpus = corpus
        self._numbers = numbers
        self.state = state
        self._jobs = jobs
        self._until = until
        self.failures: list[str] = []
        #: What could not be judged, or did not fail again: the reason, and the first call's number.
        self.unjudged: dict[str, int] = {}
        self.unstable: dict[str, int] = {}
        self._ready: list[DescribedTarget | None] = [None for _ in plans]
        self._passing: list[list[Case]] = [[] for _ in plans]
        self._known: dict[tuple[str, str], NamedFault | None] = {}
        self._covered: dict[tuple[int, Path, int], tuple[Case, ...]] = {}

    def rounds(self, found: Callable[[NewFault], None]) -> Iterator[CampaignState]:
        """The state after each round; ``found`` is called with each new fault.

        A runner that fails ends the campaign; ``failures`` has a sentence about it.
        """
        while self.state.done < len(self._numbers) and time.monotonic() < self._until:
            numbers = self._numbers[self.state.done : self.state.done + ROUND]
            drawn = {one.case.id: one for one in map(self._drawing.call, numbers)}
            results = self._run(drawn)
            unexpected = (one for one in results if one[2].unexpected)
            failing = _differing(results) if self._against else unexpected
            order = {id: place for place, id in enumerate(drawn)}
            for at, case, record in sorted(failing, key=lambda one: (order[one[1].id], one[0])):
                new = self._named(at, drawn[case.id], record)
                if new is not None:
                    found(new)
            if self.failures:
                return
            self.state.done += len(numbers)
            yield self.state

    def _run(self, drawn: Mapping[str, DrawnCall]) -> list[tuple[int, Case, ResultRecord]]:
        """Run the calls on all targets; the results, each with its target's number."""
        cases = tuple(each.case for each in drawn.values())
        verdicts, features = Counter(self.state.verdicts), Counter(self.state.features)
        for case in cases:
            features.update(f"{name}={value}" for name, value in case.features.items() if value)
        runs: list[PlanRun] = []
        for plan, ready in zip(self._plans, self._ready, strict=True):
            runs.append(PlanRun(replace(plan, cases=cases), runs[:], ready))
        for run in runs:
            if run.ready.unavailable is not None:
                fix = f"; fix: {run.ready.fix}" if run.ready.fix else ""
                self.failures.append(f"{run.ready.name}: {run.ready.unavailable}{fix}")
        if self.failures:
            return []
        found = []
        for run, of, record in run_all(runs, self._jobs):
            if of is None or isinstance(record, RunnerFailed):
                self.failures.append(str(record))
            elif isinstance(record, InfrastructureRecord):
                verdicts["not judged"] += 1
                self.unjudged.setdefault(record.message, drawn[of.id].number)
            elif isinstance(record, ResultRecord):
                verdicts[record.verdict] += 1
                at = runs.index(run)
                found.append((at, of, record))
                if record.verdict == "pass" and len(self._passing[at]) < PASSING:
                    self._passing[at].append(of)
            else:
                self.unstable.setdefault(record.message, drawn[of.id].number)
        self._ready = [run.ready for run in runs]
        self.state.verdicts, self.state.features = dict(verdicts), dict(features)
        return found

    # What a failing call shows

    def _named(self, at: int, drawn: DrawnCall, record: ResultRecord) -> NewFault | None:
        """A new fault that a failing call shows; a known one is counted."""
        ready, faults = self._ready[at], self.state.faults
        assert ready is not None
        signature = signature_of(drawn.case, record, drawn.beside)
        of_target = [fault for fault in faults if fault.target == ready.name]
        for fault in of_target:
            if fault.explains(drawn.case, signature):
                fault.calls += 1
                return None
        with ExitStack() as stack:
            run, *others = (
                stack.enter_context(PlanRun(self._plans[n], ready=self._ready[n]))
                for n in ([at, 1 - at] if self._against else [at])
            )
            small = _smallest(run, drawn, signature, self._late(), *others)
            if small is None:
                self.unstable.setdefault(record.reason, drawn.number)
                return None
            made, result = small
            needs = {} if record.verdict == "unsupported" else needs_of(made)
            fault = NamedFault(ready.name, signature, needs, drawn.number)
            for other in of_target:
                if other.explains(made.case, signature):
                    other.calls += 1
                    return None
            faults.append(fault)
            fault.known = self._known_line(at, run, drawn, made.case, signature)
            if fault.known:
                return None
            alike = self._alike(at, run, drawn.case, made.case, result)
            fault.like = tuple(name for one in alike for name in one.names)
            for other in of_target:
                if fault.like and other.like == fault.like and other.signature[0] == signature[0]:
                    other.calls += 1
                    faults.remove(fault)
                    return None
        sentences = (*filter(None, [made.sentence]), *(one.sentence for one in alike))
        return NewFault(fault, ready, made.case, result, sentences)

    def _known_line(
        self, at: int, run: PlanRun, drawn: DrawnCall, case: Case, signature: tuple[str, ...]
    ) -> str:
        """The place of the expectation that says that the target has the fault, or nothing."""
        for line in self._plans[at].lines_for(run.ready):
            if signature[0] not in line.known.verdicts:
                continue
            if drawn.beside is not None:
                is_known = line.covers(drawn.beside)
            else:
                known = (self._fault_of(run, each, line) for each in self._near(at, line, case))
                is_known = any(one is not None and one.explains(case, signature) for one in known)
            if is_known:
                return f"{line.place}:{line.line}"
        return ""

    def _near(self, at: int, line: Expectation, case: Case) -> Sequence[Case]:
        """The cases that an expectation decides about and whose features are the most alike."""
        key = at, line.file, line.line
        if key not in self._covered:
            covered = (each for each in self._corpus if not each.is_graph and line.covers(each))
            self._covered[key] = tuple(covered)
        return nsmallest(NEAR, self._covered[key], key=lambda each: distance(each, case))

    def _fault_of(self, run: PlanRun, case: Case, line: Expectation) -> NamedFault | None:
        """The known fault that a case of the corpus shows, made small once."""
        key = run.ready.name, case.id
        if key not in self._known:
            fault = None
            record = _result(run, case) if run.ready.cannot_take(case) is None else None
            if record is not None and record.verdict in line.known.verdicts:
                signature = signature_of(case, record, None)
                refused = record.verdict == "unsupported"
                small = (
                    None if refused else _smallest(run, DrawnCall(0, case), signature, self._late())
                )
                fault = NamedFault(
                    run.ready.name, signature, needs_of(small[0]) if small else {}, 0
                )
            self._known[key] = fault
        return self._known[key]

    def _alike(
        self, at: int, run: PlanRun, drawn: Case, case: Case, result: ResultRecord
    ) -> tuple[MatchingFault, ...]:
        """The known faults that return the values of a wrong result."""
        kind, passing = kind_of(result, known=True) or "", self._passing[at]
        what = shared([drawn, case], passing)
        one = Explanation(result.target, kind, what, ((drawn, case),), tuple(passing))
        return with_faults(one, run, time.monotonic() + SECONDS, [case]).as_if

    def _late(self) -> float:
        """The time until which a call may be made smaller."""
        now = time.monotonic()
        return now + (LATE_SECONDS if now >= self._until else SMALLER_SECONDS)


def _differing(
    results: Sequence[tuple[int, Case, ResultRecord]],
) -> Iterator[tuple[int, Case, ResultRecord]]:
    """Of each case that two targets tried and judged differently, the worse result."""
    by_case: dict[str, list[tuple[int, Case, ResultRecord]]] = {}
    for one in results:
        by_case.setdefault(one[1].id, []).append(one)
    for both in by_case.values():
        verdicts = {record.verdict for _, _, record in both}
        if len(verdicts) > 1 and "skip" not in verdicts:
            yield min(both, key=lambda one: severity(one[2]))


def _smallest(
    run: PlanRun, drawn: DrawnCall, signature: tuple[str, ...], until: float, *others: PlanRun
) -> tuple[Smallest, ResultRecord] | None:
    """The smallest call that fails like a drawn one, with its result; None if it does not recur.

    ``others`` have another verdict on it, and ``until`` is a time of `time.monotonic`.
    """
    last: dict[str, ResultRecord] = {}

    def still_fails(candidate: Case) -> bool:
        record = _result(run, candidate)
        if record is None or signature_of(candidate, record, drawn.beside) != signature:
            return False
        last[candidate.id] = record
        verdicts = (again.verdict for of in others if (again := _result(of, candidate)))
        return all(verdict not in ("skip", record.verdict) for verdict in verdicts)

    if not still_fails(drawn.case):
        return None
    provider = run.ready.execution_provider
    made = smallest(drawn.case, still_fails, MOST_RUNS, provider=provider, until=until)
    return made, last[made.case.id]


def _result(run: PlanRun, case: Case) -> ResultRecord | None:
    """The result of a call that is tried once; None if it has none."""
    with suppress(RunnerFailed):
        record = run.once(case).record
        return record if isinstance(record, ResultRecord) else None
    return None
