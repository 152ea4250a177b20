"""From the outcomes of a case and its variant to one record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from conformance.bundle.cache import Bundle, bundle_for
from conformance.bundle.sensitivity import insensitive
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.variants import RELATIONS
from conformance.harness.outcomes import InfrastructureFailure, Outcome, Ran
from conformance.harness.pool import Job
from conformance.judge.expectations import Expectation
from conformance.judge.verdict import Judgement, Unjudgeable, judge, read_outputs, relate
from conformance.results.records import InfrastructureRecord, RelationRecord, ResultRecord
from conformance.run.records import result_record
from conformance.run.target import DescribedTarget


@dataclass(frozen=True)
class CaseJob(Job):
    """A job that knows its case and its bundle."""

    case: Case = field(kw_only=True)
    prepared: Bundle = field(kw_only=True)
    other_form: bool = field(kw_only=True, default=False)


def jobs_for(case: Case) -> Iterator[CaseJob]:
    """The case, and its other form where it names a relation."""
    yield job_for(case)
    if case.relation:
        yield job_for(case, other_form=True)


def job_for(case: Case, *, other_form: bool = False) -> CaseJob:
    """The case with its bundle made. Raises :class:`conformance.bundle.cache.BundleError`."""
    prepared = bundle_for(case.call, relation=case.relation if other_form else None)
    return CaseJob(
        other_form=other_form,
        key=f"{case.id} in its other form" if other_form else case.id,
        bundle=str(prepared.path),
        steps=prepared.steps,
        seconds=case.time_limit_seconds,
        case=case,
        prepared=prepared,
    )


Record = ResultRecord | InfrastructureRecord


@dataclass(frozen=True)
class JudgedJob:
    """A case, or its other form, as it came back: judged, or a problem that is not the runtime's.

    ``outputs`` are kept only where two forms have to be compared.
    """

    job: CaseJob
    outcome: Outcome
    judged: Judgement | InfrastructureRecord
    outputs: Outputs | None = None


def judge_job(job: CaseJob, outcome: Outcome, ready: DescribedTarget) -> JudgedJob:
    """Judges what came of a job. Its output files are not needed afterwards."""
    case = job.case

    def problem(message: str, fix: str | None = None) -> JudgedJob:
        record = InfrastructureRecord(target=ready.name, case=case.id, message=message, fix=fix)
        return JudgedJob(job, outcome, record)

    if not job.other_form and (refusal := insensitive(case, job.prepared.sensitivity)) is not None:
        return problem(refusal)
    if isinstance(outcome, InfrastructureFailure):
        return problem(outcome.message, outcome.fix)
    try:
        judgement = judge(
            case,
            job.prepared,
            outcome,
            execution_provider=ready.execution_provider,
            target_class=ready.target.target_class,
        )
        outputs = None
        if case.relation and isinstance(outcome, Ran) and judgement.verdict == "pass":
            outputs = read_outputs(outcome)
        return JudgedJob(job, outcome, judgement, outputs)
    except Unjudgeable as error:
        return problem(str(error))


def assess(
    own: JudgedJob,
    other: JudgedJob | None,
    ready: DescribedTarget,
    expectations: Sequence[Expectation],
) -> Record:
    """What came of a case, its two forms held against each other, and against what is known."""
    case = own.job.case
    side, judged = own, own.judged
    relation: RelationRecord | None = None
    if other is not None and isinstance(judged, Judgement) and own.outputs is not None:
        side, judged, relation = _related(own, judged, other, ready)
    if isinstance(judged, InfrastructureRecord):
        return judged
    return result_record(case, ready, judged, side.outcome, expectations, relation)


def _related(
    own: JudgedJob, judged: Judgement, other: JudgedJob, ready: DescribedTarget
) -> tuple[JudgedJob, Judgement | InfrastructureRecord, RelationRecord | None]:
    """The judgement of a call that is right by itself, in the light of its other form.

    With it the side whose outcome tells the story.
    """
    case = own.job.case
    assert case.relation is not None
    what = RELATIONS[case.relation].what
    if isinstance(other.judged, InfrastructureRecord):
        return other, other.judged, None
    if other.outputs is None or own.outputs is None:
        reason = f"The same call, {what}: {other.judged.reason}"
        return other, replace(other.judged, reason=reason), None
    found = relate(
        case.call,
        case.relation,
        (own.outputs, own.job.prepared.expected),
        (other.outputs, other.job.prepared.expected),
        ready.target.target_class,
    )
    record = RelationRecord(name=case.relation, what=what, **vars(found))
    if found.share <= 1:
        how = "to the bit" if found.identical else f"within {found.share:.2g} of its bound"
        reason = f"{judged.reason} The same call, {what}, agrees {how}."
        return own, replace(judged, reason=reason), record
    law = RELATIONS[case.relation].law
    reason = f"The same call, {what}, gives other numbers: {found.sentence}; {law}."
    return own, replace(judged, verdict="wrong", reason=reason), record
