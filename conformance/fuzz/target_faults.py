"""Names the faults of one target: each failing call is one of a fault that it has, or a new one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nsmallest
from itertools import takewhile
from pathlib import Path
from typing import Final

from conformance.case.case import Case
from conformance.diagnosis.as_if import MatchingFault, distance
from conformance.diagnosis.explanation import Explanation, with_faults
from conformance.diagnosis.shared import shared
from conformance.diagnosis.smallest import Smallest, calls_alone, reduced_to, smallest
from conformance.expectations.match import Expectation
from conformance.fuzz.drawing import DrawnCall
from conformance.fuzz.naming import NamedFault, needs_of, signature_of
from conformance.fuzz.state import CampaignState, count
from conformance.results.causes import kind_of
from conformance.results.records import ResultRecord
from conformance.results.verdicts import Verdict, verdict_word
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan

#: The most runs that make a failing call smaller.
MOST_RUNS: Final = 300
#: The most seconds of that, of looking for an expectation, and for a known fault with the same
#: values: far more than each takes, except where calls hang and on software GPUs. After the end of
#: the campaign there are fewer.
SECONDS: Final = 60.0
LATE_SECONDS: Final = 5.0
#: The results whose reasons are told of those that did not recur.
UNSTABLE: Final = 8
#: The passing calls among which a known fault is looked for.
PASSING: Final = 200
#: The cases of an expectation that are compared with a fault: those with the most similar features.
NEAR: Final = 4


@dataclass(frozen=True)
class NewFault:
    """A new fault with its smallest call, the result of that, and sentences about both.

    ``targets``: the one that has the fault, and those with another verdict on the call.
    """

    fault: NamedFault
    targets: Sequence[DescribedTarget]
    case: Case
    result: ResultRecord
    sentences: Sequence[str]


@dataclass(frozen=True)
class Failure:
    """How a call fails on the first of the ``runs``; the others have another verdict on it.

    ``beside``: the illegal case that the call is made of.
    """

    signature: tuple[str, ...]
    beside: Case | None
    runs: Sequence[PlanRun]

    @property
    def provider(self) -> str | None:
        """The execution provider of the target."""
        return self.runs[0].ready.execution_provider

    @property
    def is_named_by_signature(self) -> bool:
        """Whether no call needs to be looked at to name its fault."""
        return self.beside is not None or self.signature[0] == "unsupported"

    def again(self, case: Case) -> ResultRecord | None:
        """The result of a call that fails in this way; None of any other."""
        run, *others = self.runs
        record = run.tried(case)
        if record is None or signature_of(case, record, self.beside) != self.signature:
            return None
        for other in others:
            result = other.tried(case)
            if result is None or result.verdict in ("skip", record.verdict):
                return None
        return record

    def about(self, made: Smallest) -> Iterator[str]:
        """Sentences about the smallest call that fails in this way."""
        if made.sentence:
            yield made.sentence
        if self.beside is not None:
            yield f"It must be refused for the reason of {self.beside.theme}/{self.beside.name}."
        for other in self.runs[1:]:
            if record := other.tried(made.case):
                yield f"On {other.ready.name}: {verdict_word(record.verdict)}."

    def needs_no_more(self, case: Case, fault: NamedFault) -> bool:
        """Whether a call that fails in this way does so with only what a fault needs."""
        if self.is_named_by_signature:
            return True
        reduced = reduced_to(case, fault.needs, self.provider)
        return reduced is case or self.again(reduced) is not None


class TargetFaults:
    """The target of a ``plan`` in a campaign, and its faults among those of the campaign.

    ``ready`` is the target as it describes itself, None before its first round. ``corpus`` has the
    cases that the expectations of the plan are about. ``until``: the end of the campaign, a time of
    `time.monotonic`. ``unstable`` has some of what did not fail again: the reason, and the call's
    number.
    """

    def __init__(
        self,
        plan: Plan,
        corpus: Sequence[Case],
        state: CampaignState,
        until: float = math.inf,
    ) -> None:
        self.plan = plan
        self.ready: DescribedTarget | None = None
        self.unstable: dict[str, int] = {}
        self._corpus = corpus
        self._state = state
        self._until = until
        self._passing: list[Case] = []
        self._records: dict[str, ResultRecord | None] = {}
        self._small: dict[str, tuple[Case, NamedFault]] = {}
        self._covered: dict[tuple[Path, int], tuple[Case, ...]] = {}

    def note_passing(self, case: Case) -> None:
        """Keep some of the calls that pass."""
        if len(self._passing) < PASSING:
            self._passing.append(case)

    def note_unstable(self, verdict: Verdict, reason: str, number: int) -> None:
        """Count a result that did not recur."""
        count(self._state.unstable[self.run.ready.name], verdict)
        if len(self.unstable) < UNSTABLE:
            self.unstable.setdefault(reason, number)

    @cached_property
    def run(self) -> PlanRun:
        """The target, to try calls on, when it has described itself."""
        return PlanRun(self.plan, ready=self.ready)

    def close(self) -> None:
        """End its processes; the next call that is tried starts another."""
        self.run.close()
        del self.run

    def named(
        self, drawn: DrawnCall, record: ResultRecord, others: Sequence[TargetFaults] = ()
    ) -> NewFault | None:
        """The new fault that a failing call shows; None if it is counted, or does not fail again.

        ``others`` have another verdict on the calls that show it.
        """
        for target in (self, *others):
            if target.run.is_given_up:
                target.close()
        until, signature = self._limit(), signature_of(drawn.case, record, drawn.beside)
        failure = Failure(signature, drawn.beside, [self.run, *(one.run for one in others)])
        if drawn.case.call.earlier_calls and not failure.is_named_by_signature:
            alone = calls_alone(drawn.case, failure.provider)
            in_time = takewhile(lambda _: time.monotonic() < until, alone)
            drawn = drawn._replace(case=next(filter(failure.again, in_time), drawn.case))
        not_shown = []
        for known in self._mine():
            if known.may_be_in(drawn.case, signature):
                if time.monotonic() >= until or failure.needs_no_more(drawn.case, known):
                    known.calls += 1
                    return None
                not_shown.append(known)
        self.run.rest()
        small = self._smallest(drawn, failure, not_shown)
        if small is None:
            self.note_unstable(record.verdict, record.reason, drawn.number)
            return None
        made, result = small
        needs = {} if failure.is_named_by_signature else needs_of(made)
        fault = NamedFault(self.run.ready.name, signature, needs, drawn.number)
        fault.known = self._known_line(drawn, made.case, fault)
        alike = () if fault.known else self._alike(drawn.case, made.case, result)
        fault.like = tuple(name for one in alike for name in one.names)
        for other in self._mine():
            if other not in not_shown and other.covers(fault):
                other.calls += 1
                return None
        self._state.faults.append(fault)
        if fault.known:
            return None
        sentences = [*failure.about(made), *(one.sentence for one in alike)]
        targets = [run.ready for run in failure.runs]
        return NewFault(fault, targets, made.case, result, sentences)

    def _mine(self) -> Iterator[NamedFault]:
        """The faults of this target."""
        return (fault for fault in self._state.faults if fault.target == self.run.ready.name)

    def _known_line(self, drawn: DrawnCall, case: Case, fault: NamedFault) -> str:
        """The place of the expectation that says that the target has the fault, or nothing."""
        if drawn.beside is not None:
            lines = (line for line in self._fit(fault) if line.covers(drawn.beside))
        else:
            near, until = self._near(fault, case), self._limit()
            in_time = takewhile(lambda _: time.monotonic() < until, near)
            lines = (line for known, line in in_time if self._shows(known, line, case, fault))
        return next((f"{line.place}:{line.line}" for line in lines), "")

    def _fit(self, fault: NamedFault) -> Iterator[Expectation]:
        """The expectations of the verdict of a fault."""
        lines = self.plan.lines_for(self.run.ready)
        return (each for each in lines if fault.signature[0] in each.known.verdicts)

    def _near(self, fault: NamedFault, case: Case) -> list[tuple[Case, Expectation]]:
        """Of each expectation of the verdict, the cases whose features are the most alike.

        The nearest come first.
        """

        def far(other: Case) -> int:
            return distance(other, case)

        pairs = []
        for line in self._fit(fault):
            key = line.file, line.line
            if key not in self._covered:
                covered = (each for each in self._corpus if not each.is_graph and line.covers(each))
                self._covered[key] = tuple(covered)
            pairs += [(each, line) for each in nsmallest(NEAR, self._covered[key], key=far)]
        return sorted(pairs, key=lambda pair: far(pair[0]))

    def _shows(self, known: Case, line: Expectation, case: Case, fault: NamedFault) -> bool:
        """Whether a case of the corpus, made small once, shows the fault of a small call."""
        if known.id not in self._records:
            self._records[known.id] = self.run.tried_unless_skipped(known)
        record = self._records[known.id]
        if record is None or record.verdict not in line.known.verdicts:
            return False
        failure = Failure(signature_of(known, record, None), None, [self.run])
        if failure.signature[-1] != fault.signature[-1]:
            return False
        if known.id not in self._small:
            made, needs = known, {}
            if not failure.is_named_by_signature:
                small = self._smallest(DrawnCall(0, known), failure)
                if small is None:
                    return False
                made, needs = small[0].case, needs_of(small[0])
            self._small[known.id] = made, NamedFault(fault.target, failure.signature, needs, 0)
        made, shown = self._small[known.id]
        same_phase = made.features["phase"] == case.features["phase"]
        needs_lengths_only = not (shown.needs or failure.is_named_by_signature)
        return shown.covers(fault) and (same_phase or not needs_lengths_only)

    def _alike(self, drawn: Case, case: Case, result: ResultRecord) -> tuple[MatchingFault, ...]:
        """The known faults that return the values of a wrong result."""
        kind, passing = kind_of(result, known=True) or "", tuple(self._passing)
        what = shared([drawn, case], passing)
        one = Explanation(result.target, kind, what, ((drawn, case),), passing)
        return with_faults(one, self.run, self._limit(), [case]).as_if

    def _smallest(
        self, drawn: DrawnCall, failure: Failure, not_shown: Sequence[NamedFault] = ()
    ) -> tuple[Smallest, ResultRecord] | None:
        """The smallest call that fails like a drawn one, with its result; None if it does not
        recur.

        It shows none of the faults that the drawn one does not show.
        """
        last: dict[str, ResultRecord] = {}

        def still_fails(candidate: Case) -> bool:
            result = failure.again(candidate)
            if result is None:
                return False
            last[candidate.id] = result
            signature = failure.signature
            may_be = (one for one in not_shown if one.may_be_in(candidate, signature))
            return not any(failure.needs_no_more(candidate, one) for one in may_be)

        if not still_fails(drawn.case):
            return None
        until = self._limit()
        made = smallest(
            drawn.case,
            still_fails,
            MOST_RUNS,
            provider=failure.provider,
            until=until,
            beside=drawn.beside,
        )
        return made, last[made.case.id]

    def _limit(self) -> float:
        """The time until which a call is looked at."""
        now = time.monotonic()
        return now + (LATE_SECONDS if now >= self._until else SECONDS)
