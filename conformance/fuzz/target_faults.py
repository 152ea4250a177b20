"""Names the faults of one target: each failing call is one of a fault that it has, or a new one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import nsmallest
from itertools import takewhile
from pathlib import Path
from typing import Final

from conformance.case.case import Case
from conformance.diagnosis.as_if import MatchingFault, distance
from conformance.diagnosis.explanation import Explanation, with_faults
from conformance.diagnosis.shared import shared
from conformance.diagnosis.smallest import Smallest, smallest
from conformance.expectations.match import Expectation
from conformance.fuzz.drawing import DrawnCall
from conformance.fuzz.naming import NamedFault, needs_of, signature_of
from conformance.results.causes import kind_of
from conformance.results.records import ResultRecord
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan

#: The most runs that make a failing call smaller.
MOST_RUNS: Final = 300
#: The most seconds of that, of looking for an expectation, and for a known fault with the same
#: values: far more than each takes, except where calls hang and on software GPUs. After the end of
#: the campaign there are fewer.
SECONDS: Final = 60.0
LATE_SECONDS: Final = 5.0
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


class TargetFaults:
    """The target of a ``plan`` in a campaign, and its faults among those of all targets.

    ``ready`` is the target as it describes itself, None before its first round. ``corpus`` has the
    cases that the expectations of the plan are about. ``until``: the end of the campaign, a time of
    `time.monotonic`. ``unstable`` has what did not fail again: the reason, and the call's number.
    """

    def __init__(
        self,
        plan: Plan,
        corpus: Sequence[Case],
        faults: list[NamedFault],
        until: float = math.inf,
    ) -> None:
        self.plan = plan
        self.ready: DescribedTarget | None = None
        self.unstable: dict[str, int] = {}
        self._corpus = corpus
        self._faults = faults
        self._until = until
        self._passing: list[Case] = []
        self._records: dict[str, ResultRecord | None] = {}
        self._needs: dict[str, Mapping[str, str | None]] = {}
        self._covered: dict[tuple[Path, int], tuple[Case, ...]] = {}

    def note_passing(self, case: Case) -> None:
        """Keep some of the calls that pass."""
        if len(self._passing) < PASSING:
            self._passing.append(case)

    def named(
        self, drawn: DrawnCall, record: ResultRecord, others: Sequence[TargetFaults] = ()
    ) -> NewFault | None:
        """The new fault that a failing call shows; None if it is counted, or does not fail again.

        ``others`` have another verdict on the calls that show it.
        """
        signature = signature_of(drawn.case, record, drawn.beside)
        if self._counted(drawn.case, signature):
            return None
        with ExitStack() as stack:
            run, *beside = (stack.enter_context(one._run()) for one in (self, *others))
            small = self._smallest(run, drawn, signature, beside)
            if small is None:
                self.unstable.setdefault(record.reason, drawn.number)
                return None
            made, result = small
            if self._counted(made.case, signature):
                return None
            needs = {} if record.verdict == "unsupported" else needs_of(made)
            fault = NamedFault(run.ready.name, signature, needs, drawn.number)
            fault.known = self._known_line(run, drawn, made.case, signature)
            alike = () if fault.known else self._alike(run, drawn.case, made.case, result)
            fault.like = tuple(name for one in alike for name in one.names)
        for other in self._mine():
            if other.covers(fault):
                other.calls += 1
                return None
        self._faults.append(fault)
        if fault.known:
            return None
        sentences = (*filter(None, [made.sentence]), *(one.sentence for one in alike))
        return NewFault(fault, run.ready, made.case, result, sentences)

    def _run(self) -> PlanRun:
        return PlanRun(self.plan, ready=self.ready)

    def _mine(self) -> Iterator[NamedFault]:
        """The faults of this target."""
        assert self.ready is not None
        return (fault for fault in self._faults if fault.target == self.ready.name)

    def _counted(self, case: Case, signature: tuple[str, ...]) -> bool:
        """Whether a failing call shows a fault that is there, which counts it."""
        fault = next((one for one in self._mine() if one.explains(case, signature)), None)
        if fault is not None:
            fault.calls += 1
        return fault is not None

    def _known_line(
        self, run: PlanRun, drawn: DrawnCall, case: Case, signature: tuple[str, ...]
    ) -> str:
        """The place of the expectation that says that the target has the fault, or nothing."""
        if drawn.beside is not None:
            lines = (line for line in self._fit(run, signature) if line.covers(drawn.beside))
        else:
            near, until = self._near(run, signature, case), self._limit()
            in_time = takewhile(lambda _: time.monotonic() < until, near)
            shown = (pair for pair in in_time if self._shows(run, *pair, case, signature))
            lines = (line for _, line in shown)
        return next((f"{line.place}:{line.line}" for line in lines), "")

    def _fit(self, run: PlanRun, signature: tuple[str, ...]) -> Iterator[Expectation]:
        """The expectations of the verdict of a signature."""
        return (
            each for each in self.plan.lines_for(run.ready) if signature[0] in each.known.verdicts
        )

    def _near(
        self, run: PlanRun, signature: tuple[str, ...], case: Case
    ) -> list[tuple[Case, Expectation]]:
        """Of each expectation of the verdict, the cases whose features are the most alike.

        The nearest come first.
        """

        def far(other: Case) -> int:
            return distance(other, case)

        pairs = []
        for line in self._fit(run, signature):
            key = line.file, line.line
            if key not in self._covered:
                covered = (each for each in self._corpus if not each.is_graph and line.covers(each))
                self._covered[key] = tuple(covered)
            pairs += [(each, line) for each in nsmallest(NEAR, self._covered[key], key=far)]
        return sorted(pairs, key=lambda pair: far(pair[0]))

    def _shows(
        self,
        run: PlanRun,
        known: Case,
        line: Expectation,
        case: Case,
        signature: tuple[str, ...],
    ) -> bool:
        """Whether a case of the corpus, made small once, shows the fault that a call shows."""
        if known.id not in self._records:
            self._records[known.id] = run.tried_unless_skipped(known)
        record = self._records[known.id]
        if record is None or record.verdict not in line.known.verdicts:
            return False
        if signature_of(known, record, None) != signature:
            return False
        if known.id not in self._needs:
            small = None
            if record.verdict != "unsupported":  # whose message says all
                small = self._smallest(run, DrawnCall(0, known), signature)
            self._needs[known.id] = needs_of(small[0]) if small else {}
        needs = self._needs[known.id]
        return all(case.features[name] == value for name, value in needs.items())

    def _alike(
        self, run: PlanRun, drawn: Case, case: Case, result: ResultRecord
    ) -> tuple[MatchingFault, ...]:
        """The known faults that return the values of a wrong result."""
        kind, passing = kind_of(result, known=True) or "", tuple(self._passing)
        what = shared([drawn, case], passing)
        one = Explanation(result.target, kind, what, ((drawn, case),), passing)
        return with_faults(one, run, self._limit(), [case]).as_if

    def _smallest(
        self,
        run: PlanRun,
        drawn: DrawnCall,
        signature: tuple[str, ...],
        others: Sequence[PlanRun] = (),
    ) -> tuple[Smallest, ResultRecord] | None:
        """The smallest call that fails like a drawn one, with its result; None if it does not
        recur."""
        last: dict[str, ResultRecord] = {}

        def still_fails(candidate: Case) -> bool:
            record = run.tried(candidate)
            if record is None or signature_of(candidate, record, drawn.beside) != signature:
                return False
            last[candidate.id] = record
            verdicts = (again.verdict for of in others if (again := of.tried(candidate)))
            return all(verdict not in ("skip", record.verdict) for verdict in verdicts)

        if not still_fails(drawn.case):
            return None
        provider, until = run.ready.execution_provider, self._limit()
        made = smallest(
            drawn.case, still_fails, MOST_RUNS, provider=provider, until=until, beside=drawn.beside
        )
        return made, last[made.case.id]

    def _limit(self) -> float:
        """The time until which a call is looked at."""
        now = time.monotonic()
        return now + (LATE_SECONDS if now >= self._until else SECONDS)
