"""What a run can say of its failures beyond each of them: what they share, and which known fault
they are like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from conformance.base.paths import data_path
from conformance.base.words import plural
from conformance.base.yaml_source import InputError
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.load import load
from conformance.diagnosis.as_if import AsIf, FaultyKernels, as_if
from conformance.diagnosis.shared import Shared, shared
from conformance.harness.outcomes import Ran
from conformance.harness.runner import RunnerFailed
from conformance.judge.verdict import Unjudgeable, read_outputs
from conformance.results.causes import symptom
from conformance.results.records import CaseRecord, ResultRecord
from conformance.run.assessment import job_for, prepared_case
from conformance.run.engine import TargetRun

#: The most groups of failures that are explained.
MAX_GROUPS: Final = 6


@dataclass(frozen=True)
class Explanation:
    """What the failures of one kind share on one target, and what they are like.

    ``kind`` is the verdict, with the message of a rejection. ``as_if`` are known faults.
    """

    target: str
    kind: str
    shared: Shared
    groups: tuple[tuple[Case, ...], ...]
    passing: tuple[Case, ...]
    as_if: tuple[AsIf, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """A heading and a sentence each; none if there is nothing to say."""
        sentences = (*(one.sentence for one in self.as_if), *self.shared.sentences)
        simplest = [
            f"Simplest: {pattern.simplest.id} ({pattern.simplest.title})"
            for pattern in self.shared.patterns[:1]
        ]
        if not sentences:
            return ()
        verdict, _, message = self.kind.partition(": ")
        number = plural(self.shared.failures, f"{verdict} result")
        heading = f"What {number} on {self.target} share{'s' * (self.shared.failures == 1)}"
        return f"{heading}{f' ({message})' if message else ''}:", *sentences, *simplest


def explanations(
    results: Iterable[tuple[Case, ResultRecord]], *, known: bool = False
) -> list[Explanation]:
    """What unexpected failures share, by target and kind, the largest number first.

    ``known``: failures that an expectation covers count, too.
    """
    failing: dict[tuple[str, str], list[Case]] = {}
    passing: dict[tuple[str, bool], list[Case]] = {}
    for case, result in results:
        if case.is_graph:
            continue
        must_reject = case.contract.demands == "rejects"
        if result.verdict == "pass":
            passing.setdefault((result.target, must_reject), []).append(case)
        elif result.verdict != "skip" and (result.unexpected or known):
            failing.setdefault((result.target, _kind(result)), []).append(case)
    found = []
    for (target, kind), cases in sorted(failing.items(), key=lambda item: -len(item[1])):
        others = passing.get((target, kind.startswith("accepted")), [])
        what = shared(cases, others)
        groups = (*(pattern.selected for pattern in what.patterns), *filter(None, (what.left,)))
        found.append(Explanation(target, kind, what, groups, tuple(others)))
    return found[:MAX_GROUPS]


def with_faults(explanation: Explanation, run: TargetRun, until: float) -> Explanation:
    """The same with the known faults whose values the target returns.

    Some calls are run again on the target. ``until`` is a time of `time.monotonic`.
    """
    if not explanation.kind.startswith("wrong"):
        return explanation

    def outputs_of(case: Case) -> Outputs | None:
        made = prepared_case(case).own
        try:
            outcome = run.run_job(job_for(case, made))
            return read_outputs(outcome) if isinstance(outcome, Ran) else None
        except (RunnerFailed, Unjudgeable):
            return None

    target_class = run.plan.target.target_class
    with FaultyKernels() as kernels:
        found = as_if(
            explanation.groups, explanation.passing, outputs_of, target_class, kernels, until
        )
    return replace(explanation, as_if=tuple(found))


def cases_of(records: Mapping[str, CaseRecord]) -> dict[str, Case]:
    """The cases of a results file, as far as the corpus or their files still have them."""
    files = {data_path("cases").parent / record.file for record in records.values()}
    found: dict[str, Case] = {}
    for file in sorted(files):
        try:
            found |= {case.id: case for case in load([file], checked=False)}
        except (InputError, OSError):
            continue
    return {id: case for id, case in found.items() if id in records}


def _kind(result: ResultRecord) -> str:
    """The verdict of a failure, with the message of a rejection and the signal of a crash."""
    if result.verdict in ("wrong", "accepted", "timeout", "fallback"):
        return result.verdict
    what = symptom(result)
    return f"{result.verdict}: {what}" if what else result.verdict
