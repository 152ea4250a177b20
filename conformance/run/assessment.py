"""From the outcomes of a case and its variant to one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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


class PreparedCase:
    """A case and its variant, each prepared when it is asked for.

    Raises :class:`conformance.case.given.GivenError`.
    """

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def own(self) -> Prepared:
        """The case itself."""
        case = self.case
        return prepare(case.call, readings=case.contract.readings, steps=case.steps)

    @cached_property
    def variant(self) -> Prepared:
        """Its variant."""
        return prepare(self.case.call, self.case.relation)

    @cached_property
    def why_insensitive(self) -> str | None:
        """Why the case cannot show a fault; None if it can."""
        return why_insensitive(self.case)


class LastPrepared:
    """The case that was prepared last, kept for its next target."""

    def __init__(self) -> None:
        self._last: PreparedCase | None = None

    def of(self, case: Case) -> PreparedCase:
        """What is prepared of a case."""
        if self._last is None or self._last.case is not case:
            self._last = PreparedCase(case)
        return self._last


def job_for(case: Case, prepared: Prepared, *, only_inputs: bool = False) -> CaseJob:
    """The case, or its variant. ``only_inputs``: the runner reads only what it is told of."""
    variant = prepared.relation is not None
    return CaseJob(
        variant=variant,
        key=f"the variant of {case.id}" if variant else case.id,
        files=prepared.inputs if only_inputs else prepared.files,
        folder=digest_of(case.call, prepared.relation),
        steps=prepared.steps,
        most_output_bytes=OUTPUT_BYTES + OUTPUT_BYTES_PER_BYTE * prepared.most_tensor_bytes,
        seconds=case.time_limit_seconds,
        case=case,
        prepared=prepared,
    )


@dataclass(frozen=True)
class Assessed:
    """The record of a case, and its jobs with their outcomes: the case's own, and the variant's."""

    record: Record
    tried: tuple[tuple[CaseJob, Outcome], ...] = ()


@dataclass(frozen=True)
class _Judged:
    """The outcome of a job, and the judgement or the infrastructure failure.

    ``outputs`` are kept where they have to be compared with those of the variant.
    """

    job: CaseJob
    outcome: Outcome
    judged: Judgement | InfrastructureRecord
    outputs: Outputs | None = None


class Assessor:
    """Runs cases on one target, each with its variant if it has one, and makes their records."""

    def __init__(
        self,
        ready: DescribedTarget,
        expectations: Sequence[Expectation] = (),
        last: LastPrepared | None = None,
    ) -> None:
        self._ready = ready
        self._expectations = expectations
        self._last = last or LastPrepared()

    def assess(self, case: Case, run: Callable[[CaseJob], Outcome]) -> Assessed:
        """The record of a case, whose jobs ``run`` runs.

        A case of the corpus that is insensitive is not run; another one is, and its record says so.
        The variant is run if the case itself passes. Raises
        :class:`conformance.case.given.GivenError`.
        """
        made = self._last.of(case)
        why = made.why_insensitive
        if why is not None and is_shipped(case):
            return Assessed(self._problem(case, why))
        own = shown = self._judged(case, made.own, run)
        tried = [(own.job, own.outcome)]
        judged, relation = own.judged, None
        if case.relation and isinstance(judged, Judgement) and own.outputs is not None:
            variant = self._judged(case, made.variant, run)
            tried.append((variant.job, variant.outcome))
            shown, judged, relation = self._related(own, judged, variant)
        if isinstance(judged, InfrastructureRecord):
            return Assessed(judged, tuple(tried))
        record = result_record(
            case, self._ready, judged, shown.outcome, self._expectations, relation
        )
        return Assessed(record.model_copy(update={"insensitive": why or ""}), tuple(tried))

    def _problem(self, case: Case, message: str, fix: str | None = None) -> InfrastructureRecord:
        return InfrastructureRecord(target=self._ready.name, case=case.id, message=message, fix=fix)

    def _judged(self, case: Case, prepared: Prepared, run: Callable[[CaseJob], Outcome]) -> _Judged:
        job = job_for(case, prepared, only_inputs=self._ready.target.reads_only_inputs)
        outcome = run(job)
        if isinstance(outcome, InfrastructureFailure):
            return _Judged(job, outcome, self._problem(case, outcome.message, outcome.fix))
        try:
            judgement = judge(
                case,
                prepared,
                outcome,
                execution_provider=self._ready.execution_provider,
                target_class=self._ready.target.target_class,
                kernel=self._ready.target.kernel,
            )
            outputs = None
            compared = case.relation and prepared.unjudged is None
            if compared and isinstance(outcome, Ran) and judgement.verdict == "pass":
                outputs = read_outputs(outcome)
            return _Judged(job, outcome, judgement, outputs)
        except Unjudgeable as error:
            return _Judged(job, outcome, self._problem(case, str(error)))

    def _related(
        self, own: _Judged, judged: Judgement, variant: _Judged
    ) -> tuple[_Judged, Judgement | InfrastructureRecord, RelationRecord | None]:
        """The judgement on a passing case, given its variant; and the job whose outcome counts."""
        case = own.job.case
        assert case.relation is not None
        what = RELATIONS[case.relation].what
        if isinstance(variant.judged, InfrastructureRecord):
            return variant, variant.judged, None
        if variant.outputs is None or own.outputs is None:
            reason = f"The variant (the same call {what}): {variant.judged.reason}"
            return variant, replace(variant.judged, reason=reason, of_variant=True), None
        relation, faults = relate(
            case.call,
            case.relation,
            (own.outputs, own.job.prepared.expected),
            (variant.outputs, variant.job.prepared.expected),
            self._ready.target.target_class,
        )
        if not faults:
            share = f"within {relation.share:.2g} of its bound"
            how = "bit for bit" if relation.identical else share
            reason = f"{judged.reason} The variant (the same call {what}) agrees {how}."
            return own, replace(judged, reason=reason), relation
        reason = f"It ran, but {faults_text(faults)}."
        return own, replace(judged, verdict="wrong", reason=reason, faults=faults), relation
