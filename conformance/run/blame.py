"""Whose fault a result is, found out by running cases again in fresh processes.

A case's own result is the one that it has alone. What it met in the company of others, and not
alone, is booked on the case before it if the two of them repeat it, and else on the target, as
instability. Two things are met in company: a crash or a failure of the device, of which the pool
says that it did not repeat alone (`conformance.harness.outcomes.Unrepeated`), and an unexpected
result, which is tried alone here.

The cost is bounded. Each crash costs at most one search, and searches end after `FRUITLESS` that
found nothing. Of unexpected results that are alike, `ALIKE` are tried alone that turn out to
repeat, and `RETRIES` of those with one verdict.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from conformance.bundle.cache import BundleError, untouched
from conformance.case.case import Case
from conformance.harness.outcomes import Crashed, Outcome, Ran, Rejected, Unrepeated
from conformance.harness.pool import Pool
from conformance.harness.process import Limits, RunnerFailed
from conformance.harness.protocol import DescribedAnswer
from conformance.judge.verdict import Judgement
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.verdicts import VERDICTS, Verdict, is_silent_failure, severity
from conformance.run.assessment import Assessment, CaseJob, Record, jobs_for
from conformance.run.records import argument_for, expected_instability, result_record
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
#: A case is to blame for the one after it if the two of them repeat it so many times in a row. Of
#: crashes that come at random, with one case in ten, one in a thousand is booked on a wrong case.
TIMES: Final = 3
#: Where so many cases have been found to blame, harm does not come at random: once is enough.
CONVINCING: Final = 5
#: Searches for the case to blame end after so many that found none.
FRUITLESS: Final = 10

#: The severity of what has no verdict, and gets none from another case.
_WITHOUT_A_VERDICT: Final = -1

Reported = ResultRecord | InfrastructureRecord | InstabilityRecord
Watch = Callable[[CaseJob, Outcome], None]


def unwatched(job: CaseJob, outcome: Outcome) -> None:
    """Watches nothing."""


@dataclass(frozen=True)
class _Company:
    """A job of a case, and the one before it in its process; None: there was none."""

    job: CaseJob
    before: CaseJob | None


class Blame:
    """Settles the results of one target's cases.

    ``damaged``: a process that still runs may be damaged; whoever reads it sets it back.
    """

    def __init__(self, plan: TargetPlan, ready: DescribedTarget, limits: Limits) -> None:
        self._plan = plan
        self._ready = ready
        self._limits = limits
        self._company: dict[str, list[_Company]] = {}
        self._severity: dict[str, int] = {}
        #: Results that repeated alone, by their verdict and by their kind.
        self._repeated: Counter[tuple[object, ...]] = Counter()
        self._harmless: CaseJob | None = None
        #: Jobs that came to harm and left their process alive; the value: a case has been blamed.
        self._harmed: dict[str, bool] = {}
        self._found = self._fruitless = 0
        self.damaged = False

    def settled(
        self, job: CaseJob, outcome: Outcome, record: Record | None, watch: Watch = unwatched
    ) -> Iterator[tuple[Case, Reported]]:
        """What ``outcome`` and the ``record`` that it completes come to, each with its case.

        First the record of the job's case; then that of the case before, if it is to blame
        (`ResultRecord.blamed_for`), or the target's instability. ``watch`` gets the outcomes of a
        case that is tried alone.
        """
        before = outcome.before if isinstance(outcome.before, CaseJob) else None
        self._company.setdefault(job.case.id, []).append(_Company(job, before))
        if record is not None:
            yield from self._of_result(job.case, record, outcome, watch)
        if outcome.unrepeated is not None:
            yield from self._of_crash(job, outcome.unrepeated)

    # Results

    def _of_result(
        self, case: Case, record: Record, outcome: Outcome, watch: Watch
    ) -> Iterator[tuple[Case, Reported]]:
        company = self._company.pop(case.id)
        befores = [one.before for one in company if one.before is not None]
        if befores and isinstance(record, ResultRecord) and not record.unexpected:
            self._harmless = befores[-1]
        if not isinstance(record, ResultRecord) or not _doubtful(record, outcome, company):
            yield self._kept(case, record)
            return
        kind = _kind(case, record)
        if self._repeated[kind] >= ALIKE:
            yield self._kept(case, record)
            return
        if (repeated := self._repeated[record.verdict,]) >= RETRIES[record.verdict]:
            told = (
                f" It was not tried alone, since {repeated} unexpected results of this target with "
                "this verdict were, and repeated."
            )
            yield self._kept(case, record.model_copy(update={"reason": record.reason + told}))
            return
        try:
            alone = self._alone(case, watch)
        except (KeyboardInterrupt, BundleError):
            yield self._kept(case, record)
            raise
        if not isinstance(alone, ResultRecord) or alone.outcome == "unavailable":
            yield self._kept(case, record)
            return
        yield self._kept(case, alone)
        if alone.unexpected and severity(alone) <= severity(record):
            self._repeated.update([(record.verdict,), kind])
            return
        self.damaged = True
        suspects = [one for one in company if one.job.variant == record.of_variant]
        if record.relation is not None:
            suspects = company  # either of the two may have been spoilt
        yield from self._of_damage(case, record, suspects)

    def _kept(self, case: Case, record: Record) -> tuple[Case, Record]:
        self._severity[case.id] = (
            severity(record) if isinstance(record, ResultRecord) else _WITHOUT_A_VERDICT
        )
        return case, record

    def _alone(self, case: Case, watch: Watch) -> Record | None:
        """The record of the case, each of its jobs alone in a fresh process; None: it has none."""
        assessment = self._assessment()
        for job in assessment.jobs([case]):
            outcome = self._together(job)
            if outcome is None or outcome.unrepeated is not None:
                return None
            watch(job, outcome)
            if (record := assessment.record(job, outcome)) is not None:
                return record
        return None

    def _of_damage(
        self, case: Case, record: ResultRecord, suspects: Sequence[_Company]
    ) -> Iterator[tuple[Case, Reported]]:
        befores = [one.before for one in suspects if one.before is not None]
        event = self._event(case, record.verdict, befores[0] if befores else None, record.reason)
        self._harmed |= dict.fromkeys((one.job.key for one in suspects), False)
        for one in suspects if is_silent_failure(record) else ():
            before, job = one.before, one.job
            if before is not None and self._harmed.get(before.key):
                self._harmed[job.key] = True  # by the same case
                return
            if before is None or not self._may_accuse(before, "wrong"):
                continue
            try:
                found = self._is_to_blame(before, partial(self._spoils, job, record.verdict))
            except (KeyboardInterrupt, BundleError):
                yield case, event
                raise
            if found:
                self._harmed[job.key] = True
                yield before.case, self._spoiler(before, job, record)
                return
        yield case, event

    def _spoils(self, job: CaseJob, verdict: Verdict, before: CaseJob) -> bool:
        """Whether ``job`` after ``before`` gives its case this verdict, and unexpectedly."""
        assessment = self._assessment()
        for each in jobs_for(job.case):
            in_company = each.variant == job.variant
            outcome = self._together(*([before] if in_company else []), each)
            if outcome is None or (in_company and outcome.before is not before):
                return False
            found = assessment.record(each, outcome)
            if found is not None:
                return (
                    isinstance(found, ResultRecord)
                    and found.verdict == verdict
                    and found.unexpected
                )
        return False

    def _spoiler(self, before: CaseJob, job: CaseJob, record: ResultRecord) -> ResultRecord:
        said = (
            f"It spoils its process: {job.key}, which ran next, is {record.verdict} each time "
            f"after it, and not alone: {record.reason}"
        )
        ran = Ran(runs=(), placement=None, load_ms=0.0, run_ms=0.0)
        found = self._accused(before, job, Judgement("wrong", said), ran)
        return found.model_copy(update={"message": said, "ms": None})

    # Crashes

    def _of_crash(self, job: CaseJob, crash: Unrepeated) -> Iterator[tuple[Case, Reported]]:
        before = crash.before if isinstance(crash.before, CaseJob) else None
        event = self._event(job.case, "crash", before, crash.message)
        if before is None or not self._may_accuse(before, "crash"):
            yield job.case, event
            return
        try:
            found = self._is_to_blame(before, partial(self._kills, job))
        except (KeyboardInterrupt, BundleError):
            yield job.case, event
            raise
        if not found:
            yield job.case, event
            return
        said = (
            f"It damages its process: {job.key}, which ran next, ends so each time after it, and "
            f"not alone: {crash.message}"
        )
        died = Crashed(signal=crash.signal, message=said, repeated=True, stderr=crash.stderr)
        yield before.case, self._accused(before, job, Judgement("crash", said), died)

    def _kills(self, job: CaseJob, before: CaseJob) -> bool:
        """Whether ``job`` crashes or fails so after ``before``, or the process does before it."""
        outcome = self._together(before, job)
        if isinstance(outcome, Crashed) or (outcome is not None and outcome.damaged):
            return outcome.before is before
        return outcome is not None and outcome.unrepeated is not None

    # Both

    def _event(
        self, case: Case, verdict: Verdict, before: CaseJob | None, message: str
    ) -> InstabilityRecord:
        if before is not None and self._fruitless >= FRUITLESS:
            message += (
                f" Whether {before.key} is to blame was not tried, after {FRUITLESS} such cases "
                "that were not."
            )
        described = self._ready.described
        assert described is not None  # a case ran
        known = expected_instability(
            verdict, described.version, described.adapter, self._ready.target.expectations
        )
        return InstabilityRecord(
            target=self._ready.name,
            case=case.id,
            verdict=verdict,
            before=before.case.id if before else None,
            message=message,
            unexpected=known is None,
            expectation=known,
        )

    def _accused(
        self, before: CaseJob, job: CaseJob, judgement: Judgement, outcome: Outcome
    ) -> ResultRecord:
        """The record of the case ``before``, which is to blame for what ``job`` met."""
        case = before.case
        record = result_record(
            case,
            self._ready,
            replace(judgement, of_variant=before.variant),
            outcome,
            self._plan.lines_for(self._ready),
        )
        both = dict.fromkeys(argument_for(each.case) for each in (before, job))
        command = shlex.join(["gqa", "run", *both, *self._ready.arguments])
        self._severity[case.id] = severity(record)
        return record.model_copy(update={"blamed_for": job.case.id, "reproduce": command})

    def _may_accuse(self, before: CaseJob, verdict: Verdict) -> bool:
        """Whether to search: there is hope, and the case before has no such verdict already."""
        known = self._severity.get(before.case.id, len(VERDICTS))
        return self._fruitless < FRUITLESS and known > VERDICTS.index(verdict)

    def _is_to_blame(self, before: CaseJob, harms: Callable[[CaseJob], bool]) -> bool:
        """Whether the harm comes each time after ``before``, and not after a harmless case, too."""
        sure = self._found >= CONVINCING
        found = all(harms(before) for _ in range(1 if sure else TIMES))
        other = None if sure else self._harmless
        if found and other is not None and other.case.id != before.case.id:
            found = not harms(other)
        self._found += found
        self._fruitless += not found
        return found

    def _together(self, *jobs: CaseJob) -> Outcome | None:
        """The outcome of the last job, which ran after the others in a fresh process.

        None: it says nothing, since the runner does not start, is another one, or a bundle changed.
        """
        outcome: Outcome | None = None
        try:
            alone = len(jobs) == 1
            command = self._plan.target.command
            with Pool(command, 1, self._limits, second_tries=alone) as pool:
                answer = pool.start()
                if not isinstance(answer, DescribedAnswer) or not self._is_same(answer):
                    return None
                for job in jobs:
                    outcome = pool.run_one(job)
        except RunnerFailed:
            return None
        return outcome if all(untouched(job.prepared) for job in jobs) else None

    def _is_same(self, answer: DescribedAnswer) -> bool:
        described = self._ready.described
        return described is not None and answer.model_copy(update={"id": described.id}) == described

    def _assessment(self) -> Assessment:
        return Assessment(self._ready, self._plan.lines_for(self._ready))


def _doubtful(record: ResultRecord, outcome: Outcome, company: Sequence[_Company]) -> bool:
    """Whether the result is worth another try, alone."""
    if not record.unexpected or record.verdict not in RETRIES:
        return False
    if isinstance(outcome, Rejected) and outcome.repeated:
        return False  # it was tried alone
    if any(one.before is not None for one in company):
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
