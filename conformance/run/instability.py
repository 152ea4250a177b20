"""Results that a case does not have alone, found out by running it again in a fresh process.

A case's own result is the one that it has alone. What it met in the company of others, and not
alone, is booked on the target, as instability, with the case before it. Two things are met in
company: a crash or a failure of the device, of which the session says that it did not repeat alone
(`conformance.harness.outcomes.Unrepeated`), and an unexpected result, which is tried alone here.

The cost is bounded: of unexpected results that are alike, `ALIKE` are tried alone that turn out to
repeat, and `RETRIES` of those with one verdict.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from conformance.case.case import Case
from conformance.harness.outcomes import Outcome, Rejected
from conformance.harness.process import RunnerFailed
from conformance.harness.protocol import DescribedAnswer
from conformance.harness.session import Session
from conformance.judge.expectations import instability_for
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.verdicts import Verdict, severity
from conformance.run.assessment import Assessed, Assessor, CaseJob, Record
from conformance.run.target import DescribedTarget, TargetPlan

#: Of unexpected results that are alike (`_kind`) so many are tried alone that turn out to repeat …
ALIKE: Final = 2
#: … and of all with a verdict so many. A timeout takes long, and only one in company is tried.
RETRIES: Final[Mapping[Verdict, int]] = {
    "timeout": 3,
    "wrong": 50,
    "accepted": 50,
    "unsupported": 50,
}
Reported = ResultRecord | InfrastructureRecord | InstabilityRecord
Watch = Callable[[CaseJob, Outcome], None]


def unwatched(job: CaseJob, outcome: Outcome) -> None:
    """Watches nothing."""


class _NotAlone(Exception):
    """The runner does not start, is another one, or a result in a fresh process says nothing."""


class Retries:
    """Settles the results of one target's cases, by trying them again alone where that can tell
    more.
    """

    def __init__(self, plan: TargetPlan, ready: DescribedTarget, assessor: Assessor) -> None:
        self._plan = plan
        self._ready = ready
        self._assessor = assessor
        #: Results that repeated alone, by their verdict and by their kind.
        self._repeated: Counter[tuple[object, ...]] = Counter()

    def settled(
        self, case: Case, first: Assessed, watch: Watch = unwatched
    ) -> tuple[Record, list[InstabilityRecord]]:
        """The record of a case that was ``first`` assessed so, and the target's instability.

        After one that is no crash, the process in which it was seen still runs, and may be damaged.
        ``watch`` gets the outcomes of a case that is tried alone.
        """
        record, events = self._of_result(case, first, watch)
        crashes = [outcome.unrepeated for _, outcome in first.tried if outcome.unrepeated]
        events += [self._event(case, "crash", one.before, one.message) for one in crashes]
        return record, events

    def _of_result(
        self, case: Case, first: Assessed, watch: Watch
    ) -> tuple[Record, list[InstabilityRecord]]:
        record = first.record
        befores = [outcome.before for _, outcome in first.tried if outcome.before is not None]
        if not isinstance(record, ResultRecord) or not _doubtful(
            record, first.tried[-1][1], bool(befores)
        ):
            return record, []
        kind = _kind(case, record)
        if self._repeated[kind] >= ALIKE:
            return record, []
        if (repeated := self._repeated[record.verdict,]) >= RETRIES[record.verdict]:
            told = (
                f" It was not tried alone, since {repeated} unexpected results of this target with "
                "this verdict were, and repeated."
            )
            return record.model_copy(update={"reason": record.reason + told}), []
        alone = self._alone(case, watch)
        if not isinstance(alone, ResultRecord) or alone.outcome == "unavailable":
            return record, []
        if alone.unexpected and severity(alone) <= severity(record):
            self._repeated.update([(record.verdict,), kind])
            return alone, []
        before = befores[0] if befores else None
        return alone, [self._event(case, record.verdict, before, record.reason)]

    def _alone(self, case: Case, watch: Watch) -> Record | None:
        """The record of the case, each of its jobs alone in a fresh process; None: it has none."""

        def run(job: CaseJob) -> Outcome:
            outcome = self._run_alone(job)
            watch(job, outcome)
            return outcome

        try:
            return self._assessor.assess(case, run).record
        except _NotAlone:
            return None

    def _event(
        self, case: Case, verdict: Verdict, before: object, message: str
    ) -> InstabilityRecord:
        described = self._ready.described
        assert described is not None  # a case ran
        known = instability_for(
            verdict, described.version, described.adapter, self._ready.target.expectations
        )
        return InstabilityRecord(
            target=self._ready.name,
            case=case.id,
            verdict=verdict,
            before=before.case.id if isinstance(before, CaseJob) else None,
            message=message,
            unexpected=known is None,
            expectation=known,
        )

    def _run_alone(self, job: CaseJob) -> Outcome:
        """The outcome of the job in a fresh process. Raises `_NotAlone`."""
        try:
            with Session(self._plan.target.command) as session:
                answer = session.start()
                if not isinstance(answer, DescribedAnswer) or not self._is_same(answer):
                    raise _NotAlone
                outcome = session.run(job)
        except RunnerFailed:
            raise _NotAlone from None
        if outcome.unrepeated is not None:
            raise _NotAlone
        return outcome

    def _is_same(self, answer: DescribedAnswer) -> bool:
        described = self._ready.described
        return described is not None and answer.model_copy(update={"id": described.id}) == described


def _doubtful(record: ResultRecord, outcome: Outcome, in_company: bool) -> bool:
    """Whether the result is worth another try, alone."""
    if not record.unexpected or record.verdict not in RETRIES:
        return False
    if isinstance(outcome, Rejected) and outcome.repeated:
        return False  # it was tried alone
    if in_company:
        return True
    return record.verdict != "timeout" and outcome.unrepeated is None


def _kind(case: Case, record: ResultRecord) -> tuple[object, ...]:
    """What a result has in common with others of one defect.

    Of a rejection it is the message without its numbers, else the entry of the case and what is
    wrong.
    """
    if record.message is not None:
        return record.verdict, record.stage, record.code, re.sub(r"\d+", "N", record.message)
    faults = [(fault.kind, fault.output) for fault in record.faults]
    return record.verdict, case.theme, case.name, *faults
