"""From the outcomes of a case and its variant to one record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from conformance.bundle.prepare import Prepared, digest_of, prepare
from conformance.bundle.sensitive_cases import why_insensitive
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.case.variants import RELATIONS
from conformance.harness.jobs import OUTPUT_BYTES, Job
from conformance.harness.outcomes import InfrastructureFailure, Outcome, Ran
from conformance.judge.expectations import Expectation
from conformance.judge.verdict import Judgement, Unjudgeable, judge, read_outputs, relate
from conformance.results.faults import faults_text
from conformance.results.records import InfrastructureRecord, RelationRecord, ResultRecord
from conformance.run.records import result_record
from conformance.run.target import DescribedTarget

Record = ResultRecord | InfrastructureRecord

#: The outputs of a case may have `OUTPUT_BYTES`, and so many for each byte of its inputs and
#: expected outputs: room for two repeats in the widest dtype and in other shapes, which are wrong
#: and are judged as wrong.
OUTPUT_BYTES_PER_BYTE: Final = 32


@dataclass(frozen=True)
class CaseJob(Job):
    """A job that runs a case, or its variant."""

    case: Case = field(kw_only=True)
    prepared: Prepared = field(kw_only=True)
    variant: bool = field(kw_only=True, default=False)


class LastPrepared:
    """Prepares cases, and keeps the last one for its next target."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self._prepared: dict[bool, Prepared] = {}

    def of(self, case: Case, *, variant: bool = False) -> Prepared:
        """The case, or its variant. Raises :class:`conformance.case.given.GivenError`."""
        if case is not self._case:
            self._case, self._prepared = case, {}
        if variant not in self._prepared:
            self._prepared[variant] = (
                prepare(case.call, case.relation)
                if variant
                else prepare(case.call, readings=case.contract.readings, steps=case.steps)
            )
        return self._prepared[variant]


def job_for(
    case: Case, prepared: Prepared, *, variant: bool = False, only_inputs: bool = False
) -> CaseJob:
    """The case, or its variant. ``only_inputs``: the runner reads only what it is told of."""
    return CaseJob(
        variant=variant,
        key=f"the variant of {case.id}" if variant else case.id,
        files=prepared.inputs if only_inputs else prepared.files(),
        folder=digest_of(case.call, prepared.relation),
        steps=prepared.steps,
        most_output_bytes=OUTPUT_BYTES + OUTPUT_BYTES_PER_BYTE * prepared.most_tensor_bytes,
        seconds=case.time_limit_seconds,
        case=case,
        prepared=prepared,
    )


@dataclass(frozen=True)
class _JudgedJob:
    """A job with its outcome, and the judgement or the infrastructure failure.

    ``outputs`` are kept where they have to be compared with those of the variant.
    """

    job: CaseJob
    outcome: Outcome
    judged: Judgement | InfrastructureRecord
    outputs: Outputs | None = None


class Assessment:
    """Makes the records of the cases that run on one target, each from one or two outcomes.

    ``jobs`` gives the jobs to run, and ``record`` takes the outcome of each, in any order.
    ``problems`` has the cases without a record, once there are no more outcomes.
    """

    def __init__(
        self,
        ready: DescribedTarget,
        expectations: Sequence[Expectation] = (),
        last: LastPrepared | None = None,
    ) -> None:
        self._ready = ready
        self._expectations = expectations
        self._last = last or LastPrepared()
        self._insensitive: list[tuple[Case, InfrastructureRecord]] = []
        self._warnings: dict[str, str] = {}
        self._waiting: dict[str, _JudgedJob] = {}
        self._finished: set[str] = set()

    def jobs(self, cases: Iterable[Case]) -> Iterator[CaseJob]:
        """The jobs of those ``cases`` that are not insensitive, each made when it is asked for.

        A case that is not in the corpus is run even if it is insensitive, and its record says so.

        Raises :class:`conformance.case.given.GivenError`.
        """
        for case in cases:
            why = why_insensitive(case)
            if why is not None and is_shipped(case):
                self._insensitive.append((case, self._problem(case, why)))
                continue
            if why is not None:
                self._warnings[case.id] = why
            for variant in (False, True) if case.relation else (False,):
                yield job_for(
                    case,
                    self._last.of(case, variant=variant),
                    variant=variant,
                    only_inputs=self._ready.target.reads_only_inputs,
                )

    def record(self, job: CaseJob, outcome: Outcome) -> Record | None:
        """The record of the job's case, if it is complete with this outcome; else None.

        It is complete when the case itself does not pass, or when the outcomes of both the case
        and its variant are there. There is one record for each case: what comes after it gives
        None.
        """
        case = job.case
        if case.id in self._finished:
            return None
        this = self._judged(job, outcome)
        if not case.relation or (not job.variant and this.outputs is None):
            own, variant = this, None
        elif case.id not in self._waiting:
            self._waiting[case.id] = this
            return None
        else:
            first = self._waiting[case.id]
            own, variant = (first, this) if job.variant else (this, first)
        self.settle(case)
        return self._record(own, variant)

    def settle(self, case: Case) -> None:
        """The case has its record from elsewhere, and needs none from here."""
        self._waiting.pop(case.id, None)
        self._finished.add(case.id)

    def problems(self) -> Iterator[tuple[Case, InfrastructureRecord]]:
        """The cases that were not run, and those of which only one of two outcomes came."""
        yield from self._insensitive
        for waiting in self._waiting.values():
            case = waiting.job.case
            ran, missing = ("variant", "case") if waiting.job.variant else ("case", "variant")
            yield case, self._problem(case, f"The {ran} ran, but the {missing} was not run.")

    def _problem(self, case: Case, message: str, fix: str | None = None) -> InfrastructureRecord:
        return InfrastructureRecord(target=self._ready.name, case=case.id, message=message, fix=fix)

    def _judged(self, job: CaseJob, outcome: Outcome) -> _JudgedJob:
        if isinstance(outcome, InfrastructureFailure):
            problem = self._problem(job.case, outcome.message, outcome.fix)
            return _JudgedJob(job, outcome, problem)
        try:
            judgement = judge(
                job.case,
                job.prepared,
                outcome,
                execution_provider=self._ready.execution_provider,
                target_class=self._ready.target.target_class,
                kernel=self._ready.target.kernel,
            )
            outputs = None
            compared = job.case.relation and job.prepared.unjudged is None
            if compared and isinstance(outcome, Ran) and judgement.verdict == "pass":
                outputs = read_outputs(outcome)
            return _JudgedJob(job, outcome, judgement, outputs)
        except Unjudgeable as error:
            return _JudgedJob(job, outcome, self._problem(job.case, str(error)))

    def _record(self, own: _JudgedJob, variant: _JudgedJob | None) -> Record:
        case, shown, judged = own.job.case, own, own.judged
        relation: RelationRecord | None = None
        if variant is not None and isinstance(judged, Judgement) and own.outputs is not None:
            shown, judged, relation = self._related(own, judged, variant)
        if isinstance(judged, InfrastructureRecord):
            return judged
        record = result_record(
            case, self._ready, judged, shown.outcome, self._expectations, relation
        )
        return record.model_copy(update={"insensitive": self._warnings.get(case.id, "")})

    def _related(
        self, own: _JudgedJob, judged: Judgement, variant: _JudgedJob
    ) -> tuple[_JudgedJob, Judgement | InfrastructureRecord, RelationRecord | None]:
        """The judgement on a passing case, given its variant; and the job whose outcome counts."""
        case = own.job.case
        assert case.relation is not None
        what = RELATIONS[case.relation].what
        if isinstance(variant.judged, InfrastructureRecord):
            return variant, variant.judged, None
        if variant.outputs is None or own.outputs is None:
            reason = f"The variant (the same call {what}): {variant.judged.reason}"
            return variant, replace(variant.judged, reason=reason, of_variant=True), None
        found = relate(
            case.call,
            case.relation,
            (own.outputs, own.job.prepared.expected),
            (variant.outputs, variant.job.prepared.expected),
            self._ready.target.target_class,
        )
        record = RelationRecord(
            name=case.relation,
            what=what,
            share=found.share,
            identical=found.identical,
            sentence=found.sentence,
        )
        if not found.faults:
            how = "bit for bit" if found.identical else f"within {found.share:.2g} of its bound"
            reason = f"{judged.reason} The variant (the same call {what}) agrees {how}."
            return own, replace(judged, reason=reason), record
        reason = f"It ran, but {faults_text(found.faults)}."
        return own, replace(judged, verdict="wrong", reason=reason, faults=found.faults), record
