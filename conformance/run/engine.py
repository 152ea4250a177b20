"""The engine: cases × targets → judged results. The command line and pytest are faces of it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final, Self

from conformance import __version__
from conformance.base.dtypes import NUMPY
from conformance.base.paths import data_path, shown
from conformance.bundle.cache import Bundle, BundleError, bundle_for, intact
from conformance.bundle.sensitivity import unfit
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.tensors import Tensor, attributes_of
from conformance.case.variants import RELATIONS
from conformance.harness.outcomes import InfrastructureFailure, Outcome, Ran, Rejected, Unavailable
from conformance.harness.pool import Job, Pool
from conformance.harness.process import Limits, RunnerFailed
from conformance.harness.protocol import DescribedAnswer, UnavailableAnswer
from conformance.judge.expectations import (
    Expectation,
    check_stale,
    expectation_for,
    load_expectations,
)
from conformance.judge.verdict import Judgement, Unjudgeable, judge, read_outputs, relate
from conformance.results.records import (
    CaseRecord,
    Error,
    ExpectationRecord,
    Header,
    InfrastructureRecord,
    Milliseconds,
    RelationRecord,
    ResultRecord,
    Selection,
    TargetDescription,
    TargetRecord,
)
from conformance.run.recipes import later_inputs, recipe_of
from conformance.targets.registry import ADAPTERS, EXEC, Target

#: Verdicts that are never red, whatever was expected.
FINE: Final = ("pass", "skip")


@dataclass(frozen=True)
class Plan:
    """What is run on one target: these cases, with what is known of them."""

    target: Target
    cases: tuple[Case, ...]
    expectations: tuple[Expectation, ...]


def plans(
    cases: Sequence[Case],
    targets: Sequence[Target],
    *,
    selected: Callable[[Case, Target], bool] = lambda case, target: True,
    whole_corpus: bool,
) -> list[Plan]:
    """A plan for each target: of all loaded ``cases`` those that are ``selected`` for it.

    Raises :class:`conformance.base.yaml_source.InputError` for wrong or stale expectations.
    """
    made = []
    for target in targets:
        lines = load_expectations(target.expectations)
        # A user's own file may be called as one of ours: it makes no line of ours stale.
        check_stale(lines, [case for case in cases if is_shipped(case)], whole=whole_corpus)
        chosen = tuple(case for case in cases if selected(case, target))
        made.append(Plan(target, chosen, tuple(lines)))
    return made


@dataclass(frozen=True)
class Ready:
    """A target as its runner describes it.

    ``name`` is what results call it: ``cpu@1.31.1``, or ``webgpu@1.30.0+lavapipe`` where results
    may differ by the adapter.
    """

    target: Target
    described: DescribedAnswer | None
    unavailable: str | None
    fix: str | None
    broken: bool = False

    @property
    def name(self) -> str:
        """The target's name with its version and its adapter, where those are known."""
        if self.described is None:
            return self.target.ep
        adapter = f"+{self.described.adapter}" if self.described.adapter else ""
        return f"{self.target.ep}@{self.described.version}{adapter}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the command line needs to mean it again, its adapter too if it can be named."""
        adapter = self.described.adapter if self.described else None
        known = self.target.arguments
        if self.target.ep.startswith(EXEC) or adapter not in ADAPTERS or "--adapter" in known:
            return known
        return (*known, "--adapter", adapter)

    @property
    def execution_provider(self) -> str | None:
        """Where nodes must run."""
        if self.target.execution_provider is not None:
            return self.target.execution_provider
        return self.described.execution_provider if self.described else None

    def record(self) -> TargetRecord:
        """For the results file's header."""
        describe = None
        if self.described is not None:
            values = self.described.model_dump(exclude={"id", "outcome"})
            describe = TargetDescription(**values)
        return TargetRecord(
            name=self.name,
            ep=self.target.ep,
            describe=describe,
            unavailable=self.unavailable,
            fix=self.fix,
        )

    def cannot_take(self, case: Case) -> str | None:
        """Why the case cannot be tried here, as its runner described itself; None if it can."""
        if self.described is None:
            return self.unavailable or "the target is not available"
        tensors = (*case.steps[0].inputs, *case.steps[0].outputs)
        wanted = {tensor.dtype for tensor in tensors if tensor.connected}
        missing = sorted(wanted - set(self.described.dtypes), key=list(NUMPY).index)
        if missing:
            return f"{self.name} cannot take {', '.join(missing)}"
        shares = case.call.shared_buffer or case.relation == "shared_buffer"
        if shares and "shared_buffer" not in self.described.features:
            return f"{self.name} cannot make past and present share a buffer"
        return None


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


class TargetRun:
    """A plan being carried out: its runner processes, and what they say of the target.

    A context manager; leaving it leaves no process behind.
    """

    def __init__(self, plan: Plan, jobs: int = 1) -> None:
        self.plan = plan
        # One more than can be under way or drawn in advance when somebody deletes the cache.
        limits = Limits(failures_in_a_row=2 * jobs + 1)
        self._pool = Pool(plan.target.command, jobs, limits)
        self._ready: Ready | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.close(at_once=error[0] is not None)

    @property
    def ready(self) -> Ready:
        """The target as its runner describes it; the first use starts the runner."""
        if self._ready is None:
            self._ready = self._describe()
        return self._ready

    @property
    def start_seconds(self) -> float:
        """Time that starting runner processes took, added up."""
        return self._pool.start_seconds

    def _describe(self) -> Ready:
        target = self.plan.target
        try:
            answer = self._pool.start()
        except RunnerFailed as error:
            return Ready(target, None, _sentence(error, target), error.fix, broken=True)
        if isinstance(answer, UnavailableAnswer):
            return Ready(target, None, answer.reason, answer.fix)
        return Ready(target, answer, None, None)

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
                yield case, _skipped(case, self.ready, why)
        again: list[CaseJob] = []
        waiting: dict[str, Side] = {}
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
            return _skipped(case, self.ready, why)
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

    def _look(self, job: CaseJob, outcome: Outcome) -> Side:
        return look(job, outcome, self.ready)

    def _assess(self, own: Side, other: Side | None = None) -> Record:
        return assess(own, other, self.ready, self.plan.expectations)


def _sentence(error: RunnerFailed, target: Target) -> str:
    """What is wrong with a target's runner, without the target's name before it."""
    text = error.sentence.removeprefix(f"{target.ep}: ")
    return text[:1].upper() + text[1:]


@dataclass(frozen=True)
class Side:
    """A case, or its other form, as it came back: judged, or a problem that is not the runtime's.

    ``outputs`` are kept only where two forms have to be compared.
    """

    job: CaseJob
    outcome: Outcome
    judged: Judgement | InfrastructureRecord
    outputs: Outputs | None = None


def look(job: CaseJob, outcome: Outcome, ready: Ready) -> Side:
    """Judges what came of a job. Its output files are not needed afterwards."""
    case = job.case

    def problem(message: str, fix: str | None = None) -> Side:
        record = InfrastructureRecord(target=ready.name, case=case.id, message=message, fix=fix)
        return Side(job, outcome, record)

    if not job.other_form and (refusal := unfit(case, job.prepared.matters)) is not None:
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
        return Side(job, outcome, judgement, outputs)
    except Unjudgeable as error:
        return problem(str(error))


def assess(
    own: Side, other: Side | None, ready: Ready, expectations: Sequence[Expectation]
) -> Record:
    """What came of a case, its two forms held against each other, and against what is known."""
    case = own.job.case
    side, judged = own, own.judged
    relation: RelationRecord | None = None
    if other is not None and isinstance(judged, Judgement) and own.outputs is not None:
        side, judged, relation = _related(own, judged, other, ready)
    if isinstance(judged, InfrastructureRecord):
        return judged
    return _result(case, ready, judged, side.outcome, expectations, relation)


def _related(
    own: Side, judged: Judgement, other: Side, ready: Ready
) -> tuple[Side, Judgement | InfrastructureRecord, RelationRecord | None]:
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


def _skipped(case: Case, ready: Ready, reason: str) -> ResultRecord:
    return _result(case, ready, Judgement("skip", reason), Unavailable(reason=reason), ())


_OUTCOME: Final = {
    "Ran": "ran",
    "Rejected": "rejected",
    "Crashed": "crashed",
    "TimedOut": "timed_out",
    "Unavailable": "unavailable",
}


def _result(
    case: Case,
    ready: Ready,
    judgement: Judgement,
    outcome: Outcome,
    expectations: Sequence[Expectation],
    relation: RelationRecord | None = None,
) -> ResultRecord:
    stage, message, code, milliseconds, placement = None, None, None, None, None
    if isinstance(outcome, Rejected):
        stage, message, code = outcome.stage, outcome.message, outcome.code
    elif isinstance(outcome, Ran):
        placement = outcome.placement
        milliseconds = Milliseconds(
            load=outcome.load_ms, run=outcome.run_ms, total=round(outcome.total_ms, 3)
        )
    elif not isinstance(outcome, InfrastructureFailure | Unavailable):
        message = judgement.reason
    version, adapter = "", None
    if ready.described is not None:
        version, adapter = ready.described.version, ready.described.adapter
    known = expectation_for(case, version, adapter, expectations)
    unexpected = judgement.verdict not in FINE
    if judgement.verdict == "unsupported" and case.contract.basis == "requested":
        unexpected = False
    reason, record = judgement.reason, None
    if judgement.verdict == "skip":
        known = None
    if known is not None:
        differs = known.differs(judgement.verdict, stage, message or reason)
        unexpected = differs is not None
        if differs is not None:
            reason += (
                f" {shown(known.file)}:{known.line} expects otherwise of {known.known.where}:"
                f" {differs}; close that range of versions, or change the line."
            )
    if known is not None and (known.known.verdict != "pass" or unexpected):
        record = ExpectationRecord(
            file=shown(known.file),
            line=known.line,
            verdict=known.known.verdict,
            link=known.known.link,
            why=known.known.why,
        )
    return ResultRecord(
        case=case.id,
        target=ready.name,
        verdict=judgement.verdict,
        unexpected=unexpected,
        vague=judgement.vague,
        outcome=_OUTCOME[type(outcome).__name__],
        stage=stage,
        code=code,
        message=message,
        reason=reason,
        errors=tuple(Error(**vars(errors)) for errors in judgement.errors),
        share=judgement.share,
        relation=relation,
        placement=placement,
        ms=milliseconds,
        stderr=outcome.stderr,
        bits=judgement.bits,
        values_right=judgement.values_right,
        expectation=record,
        reproduce=reproduce(case, ready.arguments),
    )


@lru_cache(maxsize=1024)
def _is_shipped(file: Path) -> bool:
    return file.resolve().is_relative_to(data_path("cases").resolve())


def is_shipped(case: Case) -> bool:
    """Whether the case is of the suite's own corpus."""
    return _is_shipped(case.file)


def argument_for(case: Case) -> str:
    """What names the case on the command line: its id, or its place in a file of the user's own."""
    return case.id if is_shipped(case) else f"{shown(case.file)}::{case.label}"


def reproduce(case: Case, arguments: Sequence[str]) -> str:
    """The command that runs this case alone, on the target that ``arguments`` mean."""
    return shlex.join(["gqa", "run", argument_for(case), *arguments])


def case_record(case: Case) -> CaseRecord:
    """The case for the results file and for ``gqa show``."""
    first = case.steps[0]
    inputs = [
        {
            **_place(tensor),
            "values": _values_text(tensor) if tensor.connected else None,
            "dims": tensor.dims if any(tensor.dims) else (),
            "recipe": recipe_of(case.call, first, tensor) if tensor.connected else None,
        }
        for tensor in first.inputs
    ]
    return CaseRecord.model_validate(
        {
            "id": case.id,
            "file": f"cases/{case.file.name}" if is_shipped(case) else shown(case.file),
            "theme": case.theme,
            "question": case.question,
            "name": case.name,
            "title": case.title,
            "axes": case.axes,
            "why": case.why,
            "tags": case.tags,
            "links": case.links,
            "contract": case.contract,
            "relation": RELATIONS[case.relation].sentence if case.relation else None,
            "call": {
                "inputs": inputs,
                "outputs": [_place(tensor) for tensor in first.outputs],
                "attributes": attributes_of(case.call),
                "steps": len(case.steps),
                "later": [later_inputs(case.call, step, first) for step in case.steps[1:]],
                "shared_buffer": case.call.shared_buffer,
            },
        }
    )


def _place(tensor: Tensor) -> dict[str, object]:
    """A tensor's place in the call, for the record."""
    dtype = tensor.dtype if tensor.connected else None
    return {"name": tensor.name, "state": tensor.state, "shape": tensor.shape, "dtype": dtype}


def _values_text(tensor: Tensor) -> str:
    """How an input's numbers are made, in words."""
    if tensor.shape is not None and 0 in tensor.shape:
        return "no elements"
    if tensor.but:
        rest = _values_text(replace(tensor, but=()))
        return f"{rest}, but {', '.join(f'{value:g} at {list(at)}' for at, value in tensor.but)}"
    if tensor.data is not None:
        return f"{tensor.data}"
    if tensor.values is None:
        return {
            "seqlens_k": "tokens of each sequence, less one",
            "total_sequence_length": "tokens of the longest sequence",
            "position_ids": "positions of the new tokens",
            "cos_cache": "cosines of position x 10000^(-2i/rotary_dim)",
            "sin_cache": "sines of position x 10000^(-2i/rotary_dim)",
        }.get(tensor.name, "")
    if tensor.values.kind == "constant":
        return f"all {tensor.values.value:g}"
    if tensor.values.kind == "marked":
        return "one element of each token in ±[0.5, 1), the rest in [-0.125, 0.125)"
    text = f"uniform in [{tensor.values.low:g}, {tensor.values.high:g})"
    factor = tensor.values.odd_heads
    return text if factor == 1.0 else f"{text}, times {factor:g} in every other head"


def header(plans: Sequence[Plan], targets: Sequence[Ready], selection: str) -> Header:
    """The first line of the results file."""
    size = sum(len(plan.cases) for plan in plans)
    cases = {case.id for plan in plans for case in plan.cases}
    return Header(
        suite=__version__,
        corpus=corpus_digest(plans),
        selection=Selection(text=selection, cases=len(cases), results=size),
        targets=tuple(ready.record() for ready in targets),
        machine=machine(),
        start=datetime.now(UTC),
    )


def corpus_digest(plans: Sequence[Plan]) -> str:
    """Digest of the files that a run depends on: its cases' and its targets' expectations."""
    files = {case.file for plan in plans for case in plan.cases}
    files |= {line.file for plan in plans for line in plan.expectations}
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, str]:
    """What the results were made on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
    }
