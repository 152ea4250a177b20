"""A campaign: draws calls in rounds, runs and judges them, and names the faults that they show."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from conformance.case.case import Case
from conformance.fuzz.drawing import Drawing, DrawnCall, values_of
from conformance.fuzz.state import CampaignState, count
from conformance.fuzz.target_faults import NewFault, TargetFaults
from conformance.harness.runner import RunnerFailed
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.results.verdicts import severity
from conformance.run.engine import PlanRun
from conformance.run.shard import Shard
from conformance.run.target import Plan
from conformance.run.worker import run_all

#: The most calls of a round, and those of the first. A round has as many as all before it, so that
#: the first lines of a slow target come soon, and no campaign takes much more than twice --seconds.
#: What is avoided changes at the end of a whole round, so that a campaign that goes on draws the
#: calls that it would have drawn at once.
ROUND: Final = 500
FIRST: Final = 50
#: A result of a drawn call, with the number of its target.
DrawnResult = tuple[int, DrawnCall, ResultRecord]


class Campaign:
    """Draws a shard of the first ``calls``, and runs them on the targets of the ``plans``.

    The plans have no cases; ``corpus`` has those that their expectations are about. ``until`` is a
    time of `time.monotonic`. ``against``: of two targets, a call fails where their verdicts differ,
    on the one with the worse verdict. ``failures`` are sentences on runners; ``unjudged`` has what
    could not be judged, the reason and the first call's number, and ``passing`` the places of
    expectations that cover a call which passes, and its number.
    """

    def __init__(
        self,
        drawing: Drawing,
        plans: Sequence[Plan],
        corpus: Sequence[Case],
        shard: Shard,
        calls: int,
        state: CampaignState,
        *,
        jobs: int,
        until: float = math.inf,
        against: bool = False,
    ) -> None:
        self.state = state
        self.failures: list[str] = []
        self.unjudged: dict[str, int] = {}
        self.passing: dict[str, int] = {}
        self._drawing = drawing
        self._targets = [TargetFaults(plan, corpus, state, until) for plan in plans]
        self._shard = shard
        self._numbers = range(shard.number - 1, calls, shard.of)
        self._jobs = jobs
        self._until = until
        self._against = against

    @property
    def unstable(self) -> dict[str, int]:
        """What did not fail again on any target: the reason, and the first call's number."""
        return {why: number for each in self._targets for why, number in each.unstable.items()}

    def rounds(self, found: Callable[[NewFault], None]) -> Iterator[CampaignState]:
        """The state after each round; ``found`` is called with each new fault.

        A runner that fails ends the campaign.
        """
        while (done := self.state.calls) < len(self._numbers) and time.monotonic() < self._until:
            end = _end_of_round(done)
            numbers, avoided = self._numbers[done:end], frozenset(self.state.avoided)
            calls = [self._drawing.call(number, avoided) for number in numbers]
            drawn = {one.case.id: one for one in calls}
            results = sorted(self._run(drawn), key=lambda one: (one[1].number, one[0]))
            with ExitStack() as stack:
                for target in self._targets:
                    stack.callback(target.close)
                failing = (one for one in results if one[2].unexpected and one[2].verdict != "pass")
                for at, call, record in _differing(results) if self._against else failing:
                    others = [self._targets[1 - at]] if self._against else []
                    new = self._targets[at].named(call, record, others)
                    if new is not None:
                        found(new)
            if self.failures:
                return
            self.state.done[self._shard] = done + len(numbers)
            if self.state.calls == end:
                self.state.avoided = self.state.refused
            yield self.state

    def _run(self, drawn: Mapping[str, DrawnCall]) -> list[DrawnResult]:
        """Run the calls, by their ids, on all targets."""
        cases = tuple(each.case for each in drawn.values())
        runs: list[PlanRun] = []
        for target in self._targets:
            runs.append(PlanRun(replace(target.plan, cases=cases), runs[:], target.ready))
        for run, target in zip(runs, self._targets, strict=True):
            target.ready = ready = run.ready
            if ready.unavailable is not None:
                fix = f"; fix: {ready.fix}" if ready.fix else ""
                self.failures.append(f"{ready.name}: {ready.unavailable}{fix}")
        if self.failures:
            return []
        for run in runs:
            self.state.verdicts.setdefault(run.ready.name, {})
            self.state.known.setdefault(run.ready.name, {})
            self.state.unstable.setdefault(run.ready.name, {})
        results: list[DrawnResult] = []
        ran: dict[str, bool] = {}
        for run, of, record in run_all(runs, self._jobs):
            if of is None or isinstance(record, RunnerFailed):
                self.failures.append(str(record))
                continue
            at, call, verdicts = runs.index(run), drawn[of.id], self.state.verdicts[run.ready.name]
            if isinstance(record, InfrastructureRecord):
                count(verdicts, "not judged")
                self.unjudged.setdefault(record.message, call.number)
            elif isinstance(record, ResultRecord):
                count(verdicts, _counted_as(record))
                results.append((at, call, record))
                ran[of.id] = ran.get(of.id, False) or _ran(record)
                if record.verdict == "pass":
                    self._targets[at].note_passing(of)
                if (line := record.expectation) and not record.unexpected:
                    count(self.state.known[run.ready.name], f"{line.file}:{line.line}")
                elif line and record.verdict == "pass":
                    self.passing.setdefault(f"{line.file}:{line.line}", call.number)
            elif record.unexpected:
                self._targets[at].note_unstable(record.verdict, record.message, call.number)
        for one in drawn.values():
            for value in values_of(one.case) if one.beside is None and one.case.id in ran else ():
                count(self.state.features, value)
                if ran[one.case.id]:
                    count(self.state.computed, value)
        return results


def _end_of_round(done: int) -> int:
    """The number of calls at the end of the round that begins, or goes on, after ``done`` calls."""
    end = FIRST
    while end <= done:
        end += min(ROUND, end)
    return end


def _ran(record: ResultRecord) -> bool:
    """Whether the call was run; its variant may be refused."""
    return record.of_variant or record.outcome not in ("rejected", "unavailable")


def _counted_as(record: ResultRecord) -> str:
    """The verdict, but what passes because it may be refused has computed nothing."""
    return record.verdict if record.verdict != "pass" or _ran(record) else "rightly refused"


def _differing(results: Sequence[DrawnResult]) -> Iterator[DrawnResult]:
    """Of each call that two targets tried and judged differently, the worse result."""
    by_call: dict[int, list[DrawnResult]] = {}
    for one in results:
        by_call.setdefault(one[1].number, []).append(one)
    for both in by_call.values():
        verdicts = {record.verdict for _, _, record in both}
        if len(verdicts) > 1 and "skip" not in verdicts:
            yield min(both, key=lambda one: severity(one[2]))
