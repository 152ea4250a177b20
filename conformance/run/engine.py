"""The engine: cases × targets → judged results. The command line and pytest are faces of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Self

from conformance.bundle.cache import BundleError, intact
from conformance.case.case import Case
from conformance.harness.outcomes import InfrastructureFailure, Outcome
from conformance.harness.pool import Pool
from conformance.harness.process import Limits, RunnerFailed
from conformance.harness.protocol import UnavailableAnswer
from conformance.results.records import InfrastructureRecord
from conformance.run.assessment import (
    CaseJob,
    JudgedJob,
    Record,
    assess,
    job_for,
    jobs_for,
    judge_job,
)
from conformance.run.records import skipped_record
from conformance.run.target import DescribedTarget, TargetPlan
from conformance.targets.registry import Target


class TargetRun:
    """A plan being carried out: its runner processes, and what they say of the target.

    A context manager; leaving it leaves no process behind.
    """

    def __init__(self, plan: TargetPlan, jobs: int = 1) -> None:
        self.plan = plan
        # One more than can be under way or drawn in advance when somebody deletes the cache.
        limits = Limits(failures_in_a_row=2 * jobs + 1)
        self._pool = Pool(plan.target.command, jobs, limits)
        self._ready: DescribedTarget | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close(at_once=error[0] is not None)

    @property
    def ready(self) -> DescribedTarget:
        """The target as its runner describes it; the first use starts the runner."""
        if self._ready is None:
            self._ready = self._describe()
        return self._ready

    @property
    def start_seconds(self) -> float:
        """Time that starting runner processes took, added up."""
        return self._pool.start_seconds

    def _describe(self) -> DescribedTarget:
        target = self.plan.target
        try:
            answer = self._pool.start()
        except RunnerFailed as error:
            return DescribedTarget(target, None, _sentence(error, target), error.fix, broken=True)
        if isinstance(answer, UnavailableAnswer):
            return DescribedTarget(target, None, answer.reason, answer.fix)
        return DescribedTarget(target, answer, None, None)

    def run(self) -> Iterator[tuple[Case, Record]]:
        """Every case of the plan with what came of it, in the order in which they end.

        A case whose bundle was damaged or deleted under the runner is made anew and run once
        more. Raises :class:`RunnerFailed` when the runner has to be given up, and
        :class:`conformance.bundle.cache.BundleError` when the cache cannot be used.
        """
        self._raise_if_broken()
        possible = []
        for case in self.plan.cases:
            why = self.ready.cannot_take(case)
            if why is None:
                possible.append(case)
            else:
                yield case, skipped_record(case, self.ready, why)
        again: list[CaseJob] = []
        waiting: dict[str, JudgedJob] = {}
        settled: set[str] = set()

        def assessed(job: CaseJob, outcome: Outcome) -> Iterator[tuple[Case, Record]]:
            """The case's record, once its call has failed or all its forms are there."""
            side, case = self._look(job, outcome), job.case
            if case.id in settled:
                return
            if not case.relation or (not job.other_form and side.outputs is None):
                settled.add(case.id)
                waiting.pop(case.id, None)
                yield case, self._assess(side)
            elif case.id not in waiting:
                waiting[case.id] = side
            else:
                first = waiting.pop(case.id)
                own, other = (side, first) if first.job.other_form else (first, side)
                yield case, self._assess(own, other)

        try:
            for job, outcome in self._pool.run(chain.from_iterable(map(jobs_for, possible))):
                if isinstance(outcome, InfrastructureFailure) and not intact(job.prepared):
                    again.append(job)
                else:
                    yield from assessed(job, outcome)
            repeated = (job_for(job.case, other_form=job.other_form) for job in again)
            for job, outcome in self._pool.run(repeated):
                yield from assessed(job, outcome)
        except (RunnerFailed, BundleError):
            for side in waiting.values():
                message = "One form of the case ran, and the other was not tried any more."
                case = side.job.case
                yield (
                    case,
                    InfrastructureRecord(target=self.ready.name, case=case.id, message=message),
                )
            raise

    def run_one(self, case: Case) -> Record:
        """What came of one case; raises as :meth:`run` does."""
        self._raise_if_broken()
        why = self.ready.cannot_take(case)
        if why is not None:
            return skipped_record(case, self.ready, why)
        sides = []
        for job in jobs_for(case):
            outcome = self._pool.run_one(job)
            if isinstance(outcome, InfrastructureFailure) and not intact(job.prepared):
                job = job_for(case, other_form=job.other_form)
                outcome = self._pool.run_one(job)
            sides.append(self._look(job, outcome))
        return self._assess(*sides)

    def trouble(self, error: RunnerFailed | BundleError) -> InfrastructureRecord:
        """The record of an error that :meth:`run` has raised."""
        if isinstance(error, BundleError):
            return InfrastructureRecord(target=self.ready.name, message=str(error))
        message = _sentence(error, self.plan.target)
        return InfrastructureRecord(target=self.ready.name, message=message, fix=error.fix)

    def _raise_if_broken(self) -> None:
        if self.ready.broken:
            self._pool.start()  # which says again why it did not start

    def _look(self, job: CaseJob, outcome: Outcome) -> JudgedJob:
        return judge_job(job, outcome, self.ready)

    def _assess(self, own: JudgedJob, other: JudgedJob | None = None) -> Record:
        return assess(own, other, self.ready, self.plan.expectations)


def _sentence(error: RunnerFailed, target: Target) -> str:
    """What is wrong with a target's runner, without the target's name before it."""
    text = error.sentence.removeprefix(f"{target.ep}: ")
    return text[:1].upper() + text[1:]
