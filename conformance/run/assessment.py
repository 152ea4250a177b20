"""From the outcomes of a case and its variant to one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from conformance.base.remembered import of_the_last
from conformance.bundle.prepare import Prepared, digest_of, prepare
from conformance.bundle.sensitivity import why_insensitive
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


#: The case as it is prepared; the last one stays for its next target.
prepared_case: Final = of_the_last(PreparedCase)


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
    )


@dataclass(frozen=True)
class Assessed:
    """The record of a case, and the outcomes that it is about: the case's own, and the variant's.

    There is none of a case that was not run.
    """

    record: Record
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class _Judged:
    """The outcome of a job, and the judgement or the infrastructure failure.

    ``outputs`` are kept where they have to be compared with those of the variant.
    """

    prepared: Prepared
    outcome: Outcome
    judged: Judgement | InfrastructureRecord
    outputs: Outputs | None = None


def assess(
    made: PreparedCase,
    ready: DescribedTarget,
    expectations: Sequence[Expectation],
    run: Callable[[CaseJob], Outcome],
) -> Assessed:
    """The record of a case on a target; ``run`` runs the case, and its variant if it passes.

    A case of the corpus that is insensitive is not run; another one is, and its record says so.
    Raises :class:`conformance.case.given.GivenError`.
    """
    case, why = made.case, made.why_insensitive
    if why is not None and is_shipped(case):
        return Assessed(infrastructure_record(ready, case, why))
    own = shown = _judged(case, made.own, ready, run)
    outcomes: tuple[Outcome, ...] = (own.outcome,)
    judged, relation = own.judged, None
    if case.relation and isinstance(judged, Judgement) and own.outputs is not None:
        variant = _judged(case, made.variant, ready, run)
        outcomes = (own.outcome, variant.outcome)
        shown, judged, relation = _related(case, ready, own, judged, variant)
    if isinstance(judged, InfrastructureRecord):
        return Assessed(judged, outcomes)
    record = result_record(case, ready, judged, shown.outcome, expectations, relation)
    return Assessed(record.model_copy(update={"insensitive": why or ""}), outcomes)


def infrastructure_record(
    ready: DescribedTarget, case: Case, message: str, fix: str | None = None
) -> InfrastructureRecord:
    """The record of a case that has no result, and why."""
    return InfrastructureRecord(target=ready.name, case=case.id, message=message, fix=fix)


def _judged(
    case: Case, prepared: Prepared, ready: DescribedTarget, run: Callable[[CaseJob], Outcome]
) -> _Judged:
    outcome = run(job_for(case, prepared, only_inputs=ready.target.reads_only_inputs))
    if isinstance(outcome, InfrastructureFailure):
        trouble = infrastructure_record(ready, case, outcome.message, outcome.fix)
        return _Judged(prepared, outcome, trouble)
    try:
        judgement = judge(
            case,
            prepared,
            outcome,
            execution_provider=ready.execution_provider,
            target_class=ready.target.target_class,
            kernel=ready.target.kernel,
        )
        outputs = None
        compared = case.relation and prepared.unjudged is None
        if compared and isinstance(outcome, Ran) and judgement.verdict == "pass":
            outputs = read_outputs(outcome)
        return _Judged(prepared, outcome, judgement, outputs)
    except Unjudgeable as error:
        return _Judged(prepared, outcome, infrastructure_record(ready, case, str(error)))


def _related(
    case: Case, ready: DescribedTarget, own: _Judged, judged: Judgement, variant: _Judged
) -> tuple[_Judged, Judgement | InfrastructureRecord, RelationRecord | None]:
    """The judgement on a passing case, given its variant; and the one whose outcome counts."""
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
        (own.outputs, own.prepared.expected),
        (variant.outputs, variant.prepared.expected),
        ready.target.target_class,
    )
    if not faults:
        share = f"within {relation.share:.2g} of its bound"
        how = "bit for bit" if relation.identical else share
        reason = f"{judged.reason} The variant (the same call {what}) agrees {how}."
        return own, replace(judged, reason=reason), relation
    reason = f"It ran, but {faults_text(faults)}."
    return own, replace(judged, verdict="wrong", reason=reason, faults=faults), relation
