"""Makes one record from the outcomes of a case and its variant."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from conformance.base.remembered import cache_last
from conformance.base.yaml_source import InputError
from conformance.bundle.effects import why_insensitive
from conformance.bundle.prepare import NoStaticShapesError, Prepared, digest_of, prepare
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.case.relations import RELATIONS
from conformance.expectations.match import Expectation
from conformance.harness.jobs import OUTPUT_BYTES, Job
from conformance.harness.outcomes import InfrastructureFailure, Outcome, Ran, Unavailable
from conformance.judge.verdict import Judgement, Unjudgeable, judge, read_outputs, relate
from conformance.results.faults import faults_text
from conformance.results.records import (
    InfrastructureRecord,
    InstabilityRecord,
    RelationRecord,
    ResultRecord,
)
from conformance.rewriting.standard import standard_model
from conformance.run.recording import result_record
from conformance.run.target import DescribedTarget

CaseResult = ResultRecord | InfrastructureRecord

#: The outputs of a case may have `OUTPUT_BYTES`, and this many more for each byte of its inputs and
#: expected outputs: room for two repeats in the widest dtype and in other shapes, which are wrong
#: and are judged as wrong.
OUTPUT_BYTES_PER_BYTE: Final = 32


class PreparedCase:
    """A case and its variant, each prepared when it is first used."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def own(self) -> Prepared:
        """The case itself."""
        case = self.case
        return prepare(case.call, readings=case.contract.readings, steps=case.steps)

    @cached_property
    def variant(self) -> Prepared:
        """The variant of the case."""
        return prepare(self.case.call, self.case.relation)

    @cached_property
    def why_insensitive(self) -> str | None:
        """Why the case cannot show a fault; None if it can."""
        return why_insensitive(self.case)


#: The case as it is prepared; the last one stays for its next target.
prepared_case: Final = cache_last(PreparedCase)


def job_for(
    case: Case, prepared: Prepared, *, only_inputs: bool = False, model: bytes | None = None
) -> Job:
    """The job of the case, or of its variant. ``only_inputs``: the runner reads no other files.

    ``model`` takes the place of the case's model, if it is given.
    """
    files = prepared.inputs if only_inputs else prepared.files
    folder = digest_of(case.call, prepared.relation)
    if model is not None:
        files = {**files, "model.onnx": model}
        folder = hashlib.sha256(folder.encode() + model).hexdigest()
    return Job(
        case=case.id,
        variant=prepared.relation is not None,
        files=files,
        folder=folder,
        steps=prepared.steps,
        most_output_bytes=OUTPUT_BYTES + OUTPUT_BYTES_PER_BYTE * prepared.most_tensor_bytes,
        seconds=case.time_limit_seconds,
    )


@dataclass(frozen=True)
class Assessed:
    """The record of a case, and its outcomes: that of the case, and that of the variant.

    A case that was not run has no outcomes. ``instability`` belongs to the target: a fault that did
    not repeat when the case was run alone.
    """

    record: CaseResult
    outcomes: tuple[Outcome, ...] = ()
    instability: tuple[InstabilityRecord, ...] = ()


class Assessment:
    """One case on a target: it is run and judged, and so is its variant if it passes.

    ``run`` runs a job; ``outcomes`` are those of the case and of its variant, so far.
    ``measured``: it is measured whether the case can show a fault.
    """

    def __init__(
        self,
        made: PreparedCase,
        ready: DescribedTarget,
        run: Callable[[Job], Outcome],
        measured: bool = True,
    ) -> None:
        self._made = made
        self._ready = ready
        self._run = run
        self._measured = measured
        self.outcomes: list[Outcome] = []

    def result(self, expectations: Sequence[Expectation]) -> Assessed:
        """The record and the outcomes.

        An insensitive case of the corpus is not run; any other insensitive case is, and its record
        says so.
        """
        case = self._made.case
        try:
            why = self._made.why_insensitive if self._measured else None
            if why is not None and is_shipped(case):
                return self._without_result(why)
            judgement, relation = self._judged_with_variant()
        except Unjudgeable as error:
            last = self.outcomes[-1]
            fix = last.fix if isinstance(last, InfrastructureFailure) else None
            return self._without_result(str(error), fix)
        except Exception as error:  # the values are made when they are first used
            why_not = case.unprepared(error)
            if not isinstance(why_not, InputError):
                raise
            return self._without_result(f"{why_not}.")
        shown = self.outcomes[-1] if judgement.of_variant else self.outcomes[0]
        record = result_record(case, self._ready, judgement, shown, expectations, relation)
        grown = round(sum(outcome.grown_bytes for outcome in self.outcomes) / 2**20, 1)
        update = {"insensitive": why or "", "grown_mb": grown}
        return Assessed(record.model_copy(update=update), tuple(self.outcomes))

    def _judged_with_variant(self) -> tuple[Judgement, RelationRecord | None]:
        """The judgement on the case, which its variant can make worse."""
        case, target_class = self._made.case, self._ready.target.entry.target_class
        own = self._made.own.judged_as(target_class)
        judged, outputs = self._judged(own)
        if case.relation is None or outputs is None:
            return judged, None
        variant = self._made.variant.judged_as(target_class)
        of_variant, others = self._judged(variant)
        what = RELATIONS[case.relation].what
        if others is None:
            reason = f"The variant (the same call {what}): {of_variant.reason}"
            return replace(of_variant, reason=reason, of_variant=True), None
        relation, faults = relate(
            case.call,
            case.relation,
            (outputs, own.expected),
            (others, variant.expected),
            target_class,
        )
        if not faults:
            share = f"within {relation.share:.2g} of its bound"
            how = "bit for bit" if relation.identical else share
            reason = f"{judged.reason} The variant (the same call {what}) agrees {how}."
            return replace(judged, reason=reason), relation
        reason = f"It ran, but {faults_text(faults)}."
        return replace(judged, verdict="wrong", reason=reason, faults=faults), relation

    def _judged(self, prepared: Prepared) -> tuple[Judgement, Outputs | None]:
        """Run and judge a call. Its outputs are for the relation: None if they cannot be compared.

        Raises `Unjudgeable`.
        """
        ready, case = self._ready, self._made.case
        outcome = self._outcome(prepared)
        self.outcomes.append(outcome)
        if isinstance(outcome, InfrastructureFailure):
            raise Unjudgeable(outcome.message)
        anywhere = prepared.relation == "standard_operators"
        judgement = judge(
            case,
            prepared,
            outcome,
            execution_provider=None if anywhere else ready.execution_provider,
            target_class=ready.target.entry.target_class,
            kernel=None if anywhere else ready.target.entry.kernel,
        )
        is_compared = case.relation is not None and judgement.verdict == "pass"
        if is_compared and isinstance(outcome, Ran) and prepared.unjudged is None:
            return judgement, read_outputs(outcome)
        return judgement, None

    def _outcome(self, prepared: Prepared) -> Outcome:
        """Run the call; it cannot be tried if the target needs a form of it that there is not."""
        target, model = self._ready.target, None
        if target.in_standard_operators:
            rewritten = standard_model(prepared.script.model)
            if rewritten.left:
                (_, why), *_ = rewritten.left
                return Unavailable(reason=f"It has no form in standard operators: {why}.")
            model = rewritten.model.SerializeToString(deterministic=True)
        elif target.entry.static_shapes:
            try:
                model = prepared.static_model()
            except NoStaticShapesError as error:
                return Unavailable(reason=f"It has no form with static shapes: {error}.")
        job = job_for(self._made.case, prepared, only_inputs=target.reads_only_inputs, model=model)
        return self._run(job)

    def _without_result(self, message: str, fix: str | None = None) -> Assessed:
        record = InfrastructureRecord(
            target=self._ready.name, case=self._made.case.id, message=message, fix=fix
        )
        return Assessed(record, tuple(self.outcomes))
