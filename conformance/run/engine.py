"""Runs the cases of a plan on a target. The command line and pytest both use this."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Self

from conformance.base.text import printable
from conformance.base.tuning import reuse_memory
from conformance.case.case import Case
from conformance.expectations.match import Expectation
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome
from conformance.harness.protocol import UnavailableAnswer
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.run.assessment import Assessed, Assessment, prepared_case
from conformance.run.recording import skipped_record
from conformance.run.retries import Instability
from conformance.run.target import DescribedTarget, Plan
from conformance.targets.registry import Target, name_fault
from conformance.targets.setup.installed import with_release


class PlanRun:
    """A target of a run, with its runner: a context manager, which ends all processes on exit.

    ``earlier`` are the runs of the targets before this one, whose names in results it must not use.
    ``ready`` is the target as it describes itself, if that is known.
    ``ends_with_failure``: the run ends with its first failure, so a hang is not tried again.
    """

    def __init__(
        self,
        plan: Plan,
        earlier: Sequence[PlanRun] = (),
        ready: DescribedTarget | None = None,
        ends_with_failure: bool = False,
    ) -> None:
        reuse_memory()
        self.plan = plan
        self._ends_with_failure = ends_with_failure
        described = None if ready is None else ready.reported or ready.described
        self._session = Session(plan.target.command, described=described)
        self._ready = ready
        self._same_name = [run for run in earlier if run.plan.target.may_share_name(plan.target)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close(at_once=error[0] is not None)

    def close(self, at_once: bool = False) -> None:
        """End all processes and remove their files; the target's description stays."""
        self._session.close(at_once)

    def again(self) -> PlanRun:
        """A new run of the same target, with a new runner in another process."""
        return PlanRun(self.plan, (), self.ready, self._ends_with_failure)

    @property
    def is_given_up(self) -> bool:
        """Whether its runner did not start, or failed too often, so that nothing can be run."""
        return self._session.is_given_up

    def rest(self) -> None:
        """End the processes that wait for a case; the next case starts a new one."""
        self._session.renew()

    @property
    def ready(self) -> DescribedTarget:
        """The target as its runner describes it; the first use starts the runner.

        It also starts the runners of earlier targets that may have the same name in results.
        """
        if self._ready is None:
            taken = {run.ready.name for run in self._same_name}
            ready = self._describe()
            while ready.name in taken:
                ready = replace(ready, number=ready.number + 1)
            self._ready = ready
        return self._ready

    def _describe(self) -> DescribedTarget:
        target = with_release(self.plan.target, _tell)
        if target.missing is not None:
            reason = str(target.missing).partition("\n")[0]
            return DescribedTarget(target, None, reason, target.missing.fix)
        try:
            answer = self._session.start()
        except RunnerFailed as error:
            return DescribedTarget(target, None, _sentence(error, target), error.fix, broken=error)
        if isinstance(answer, UnavailableAnswer):
            return DescribedTarget(target, None, answer.reason, _fix(answer.fix, target))
        if target.base is None and answer.name and (fault := name_fault(answer.name)):
            failure = RunnerFailed(f"The runner calls itself {answer.name}, but {fault}.")
            return DescribedTarget(target, None, failure.sentence, None, broken=failure)
        if target.release is not None and answer.version != target.release:
            # tract 0.23.2 calls itself 0.23.2-pre.
            versions = {**answer.versions, "version that it reports": answer.version}
            published = answer.model_copy(update={"version": target.release, "versions": versions})
            return DescribedTarget(target, published, None, None, reported=answer)
        return DescribedTarget(target, answer, None, None)

    @cached_property
    def _lines(self) -> tuple[Expectation, ...]:
        return self.plan.lines_for(self.ready)

    @cached_property
    def _instability(self) -> Instability:
        return Instability(self.ready, self._ends_with_failure, self._lines)

    def run_one(self, case: Case) -> Assessed:
        """The assessment of one case, and any fault that did not repeat when it was run alone.

        Raises :class:`RunnerFailed` if the runner has to be given up.
        """
        if self.ready.broken is not None:
            raise RunnerFailed(*self.ready.broken.args)
        why = self.ready.cannot_take(case)
        if why is not None:
            return Assessed(skipped_record(case, self.ready, why))
        first = self._assessed(case, self._session.run)
        told = self._instability.why_not_alone(case, first)
        alone = self._alone(case) if told is None else None
        return self._instability.settled(case, first, told or "", alone)

    def once(self, case: Case) -> Assessed:
        """The assessment of a case that is tried once, whatever the outcome.

        Raises :class:`RunnerFailed` if the runner has to be given up.
        """
        return self._assessed(case, partial(self._session.run, retried=False))

    def tried(self, case: Case) -> ResultRecord | None:
        """The result of a case that is tried once; None if it has none, as its runner failed."""
        with suppress(RunnerFailed):
            record = self.once(case).record
            return record if isinstance(record, ResultRecord) else None
        return None

    def tried_unless_skipped(self, case: Case) -> ResultRecord | None:
        """The same; None also for a case that the target cannot take."""
        return self.tried(case) if self.ready.cannot_take(case) is None else None

    def _alone(self, case: Case) -> Assessed | None:
        """The assessment of a case alone in a new process; None if none starts."""
        try:
            return self._assessed(case, self._session.run_alone)
        except RunnerFailed:  # the next case raises
            return None

    def _assessed(self, case: Case, run: Callable[[Job], Outcome]) -> Assessed:
        made, measured = prepared_case(case), self.plan.measured
        return Assessment(made, self.ready, run, measured).result(self._lines)

    def trouble(self, error: RunnerFailed) -> InfrastructureRecord:
        """The record for an error that :meth:`run_one` has raised."""
        message = _sentence(error, self.plan.target)
        return InfrastructureRecord(target=self.ready.name, message=message, fix=error.fix)


def _tell(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _fix(said: str | None, target: Target) -> str | None:
    """How to repair a target, with its runner's advice if there is any.

    The packages that ``gqa setup`` installs are not used if an option names the runner's Python.
    """
    if said is None or target.python_by is None or not said.startswith("gqa setup "):
        return said
    return f"leave out {target.python_by} to use what {said} installs"


def _sentence(error: RunnerFailed, target: Target) -> str:
    """The fault of a target's runner, without the target's name at the beginning."""
    text = error.sentence.removeprefix(f"{target.command.name}: ")
    return text[:1].upper() + text[1:]
