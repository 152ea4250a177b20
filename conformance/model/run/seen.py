"""Whether a target loads and runs the model itself, and what the graph computes on that target."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from conformance.base.explain import reason_of
from conformance.graph.reading import ReadModel
from conformance.harness.outcomes import Crashed, Outcome, Ran, Rejected
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.model.answer.answers import AnswerPart, ModelAnswer, short
from conformance.model.calls.decoder_program import (
    CallSequence,
    ComputedCall,
    DecoderProgram,
    job_of,
    with_outputs,
)
from conformance.model.calls.feeds import CannotFeed, ProgramCall, interface_of
from conformance.model.calls.groups import Group
from conformance.model.config.configuration import Configuration
from conformance.model.run.graph_defects import GraphDefect, disagreements, findings
from conformance.model.run.skeleton import part, whole
from conformance.report.model_table import IN_MODEL, LOADING, USES, AnswerKind, Use
from conformance.run.target import DescribedTarget

#: ONNX Runtime takes weights as inputs; others want constants.
_TAKES_WEIGHTS: Final = ("onnxruntime", "onnxruntime-web")


@dataclass(frozen=True)
class ModelTrouble:
    """Something that keeps the model itself from running right in one use.

    ``where``, ``message`` and ``call`` are those of an :class:`AnswerPart`, and ``nodes`` are the
    names of the nodes that it concerns, empty for all. ``by_result``: it is reported only if the
    cases of the nodes are not wrong.
    """

    use: Use
    kind: AnswerKind
    where: str
    nodes: frozenset[str] = frozenset()
    message: str = ""
    call: str = ""
    by_result: bool = False


@dataclass(frozen=True)
class ModelRun:
    """What a target did with the model itself.

    ``load`` is the message with which the target refused to load it. ``unseen`` is the reason why
    it was not run, "" if it was.
    """

    load: str = ""
    troubles: tuple[ModelTrouble, ...] = ()
    unseen: str = ""


@dataclass(frozen=True)
class ModelProgram:
    """A model as a program runs it. ``why`` is the reason why there is none, "" if there is one.

    ``only_load`` is the model as it is written, if another model is run: one without its many
    weights, which are inputs there, or one whose activations have fixed scales.
    """

    program: DecoderProgram | None
    only_load: bytes | None = None
    why: str = ""


def program_of(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> ModelProgram:
    """The model of ``groups``, to be run on targets.

    If no runnable part can be cut out of the model, its nodes are only called alone, and ``why``
    gives the reason.
    """
    nodes = [node for group in groups for node in group.nodes]
    try:
        skeleton = whole(model, nodes)
        only_load = (skeleton.model if skeleton.only_loads else skeleton.as_written) or None
        skeleton = part(model, nodes) if skeleton.only_loads else skeleton
        interface = interface_of(model, groups, configuration)
        return ModelProgram(DecoderProgram(skeleton, interface, groups), only_load)
    except Exception as error:
        return ModelProgram(None, _content(model), why=reason_of(error))


def refusal_of(model: ReadModel, ready: DescribedTarget) -> str:
    """The message with which a target refuses to load the model, "" if it loads it."""
    return run_model(ModelProgram(None, _content(model)), ready).load


def _content(model: ReadModel) -> bytes | None:
    """A model that is known to be faulty, to be loaded; None if its fault prevents that."""
    with suppress(Exception):
        return whole(model, ()).model
    return None


def run_model(model: ModelProgram, ready: DescribedTarget) -> ModelRun:
    """Load and run the model on the target."""
    described = ready.reported or ready.described
    if described is None:
        return ModelRun(unseen="the target is not available")
    with Session(ready.target.command, described=described) as session:
        try:
            return _seen(model, described.runtime, session)
        except (RunnerFailed, OSError) as error:
            return ModelRun(unseen=f"its runner failed: {error}")
        except Exception as error:
            return ModelRun(unseen=reason_of(error))


def _seen(model: ModelProgram, runtime: str, session: Session) -> ModelRun:
    if model.only_load is not None and runtime in _TAKES_WEIGHTS:
        refusal = _load_refusal(session, model.only_load)
        if refusal:
            return ModelRun(load=refusal)
    program = model.program
    if program is None:
        return ModelRun(unseen=model.why)
    troubles: dict[ModelTrouble, None] = {}
    done: list[tuple[CallSequence, Sequence[ComputedCall]]] = []
    causes: dict[str, ModelTrouble] = {}
    for number, run in enumerate(program.runs()):
        try:
            steps = program.steps(run)
        except CannotFeed as error:
            refusal = _load_refusal(session, program.skeleton.model)
            return ModelRun(load=refusal, unseen=str(error))
        job = job_of(program.skeleton.model, steps, "the model itself")
        outcome = session.run(job)
        if isinstance(outcome, Ran):
            done.append((run, with_outputs(steps, outcome)))
            # The first run suffices, and left-padded runs are judged by their results.
            if not run.left and run.use not in {trouble.use for trouble in troubles}:
                for found in findings(program, done[-1][1]):
                    for use in USES if run.equal else (run.use,):
                        troubles[_wrong(use, found)] = None
        elif isinstance(outcome, Rejected | Crashed):
            # A runtime may load the model again for the lengths of each call.
            first = isinstance(outcome, Rejected) and not (number or outcome.step)
            if first and getattr(outcome, "stage", "") == "load":
                return ModelRun(load=short(outcome.message))
            trouble = _failed(run.use, run.calls, outcome, program.groups)
            # The same with other numbers is the same cause.
            same = causes.setdefault(re.sub(r"\d+", "", trouble.message), trouble)
            troubles[replace(same, use=run.use)] = None
        elif not number:
            return ModelRun(unseen=_why(outcome))
    differing, compared = disagreements(program, done)
    told = {trouble.use for trouble in troubles}
    for run, found in differing:
        if run.use not in told:
            troubles.setdefault(_wrong(run.use, found))
    unseen = "" if troubles or compared else program.skeleton.unseen
    return ModelRun(troubles=tuple(troubles), unseen=unseen)


def _load_refusal(session: Session, model: bytes) -> str:
    """The message with which a target refuses to load a model, "" if it loads it.

    The call has no inputs, so a target that loads the model rejects the call.
    """
    nothing = ComputedCall(ProgramCall("no call", 0, (0,)), {}, {})
    outcome = session.run(job_of(model, [nothing], "the model without its weights"))
    if isinstance(outcome, Rejected) and outcome.stage == "load":
        return short(outcome.message)
    return ""


def _wrong(use: Use, found: GraphDefect) -> ModelTrouble:
    names = frozenset(node.name for node in found.nodes)
    return ModelTrouble(use, "wrong", found.sentence, names, by_result=found.by_result)


def _failed(
    use: Use, calls: Sequence[ProgramCall], outcome: Rejected | Crashed, groups: Sequence[Group]
) -> ModelTrouble:
    at = getattr(outcome, "step", 0)
    call = calls[at if at < len(calls) else 0]
    names = [node.name for group in groups for node in group.nodes]
    named = frozenset(name for name in names if f"'{name}'" in outcome.message)
    kind: AnswerKind = "refused" if isinstance(outcome, Rejected) else "crash"
    return ModelTrouble(use, kind, IN_MODEL, named, short(outcome.message), call.words)


def _why(outcome: Outcome) -> str:
    said = getattr(outcome, "reason", "") or getattr(outcome, "message", "")
    return said.rstrip(".") or "it gave no answer in time"


def with_model_run(
    answers: Sequence[ModelAnswer],
    seen: ModelRun,
    pinned: Callable[[Group, Use, AnswerKind], bool] = lambda group, use, kind: False,
) -> list[ModelAnswer]:
    """The answers together with what a target did with the model itself.

    ``pinned`` says whether a defect is known to the user. A defect that a group's cases show
    already is not repeated.
    """
    made = []
    wrong = {
        part.use for one in answers for part in one.parts if part.kind in ("wrong", "software")
    }
    for one in answers:
        parts = [*one.parts]
        names = {node.name for node in one.group.nodes}
        for trouble in seen.troubles if one.group.graph is None else ():
            concerned = not trouble.nodes or bool(trouble.nodes & names)
            known = trouble.by_result and not wrong.isdisjoint({trouble.use, USES[0]})
            if concerned and not known and not _already_reported(one, trouble):
                parts.append(_part(one.group, trouble, pinned))
        # Where all calls are refused, the cases say why, and the user may know it.
        if seen.load and any(part.kind != "refused" for part in one.parts):
            parts = [
                _part(one.group, ModelTrouble(use, "refused", LOADING, message=seen.load), pinned)
                for use in one.uses
            ]
        made.append(replace(one, parts=tuple(parts), unseen="" if seen.load else seen.unseen))
    return made


def _part(
    group: Group, trouble: ModelTrouble, pinned: Callable[[Group, Use, AnswerKind], bool]
) -> AnswerPart:
    known = pinned(group, trouble.use, trouble.kind)
    nodes = tuple(node for node in group.nodes if node.name in trouble.nodes)
    # A runtime names the first node that it refuses.
    some = trouble.kind == "wrong" and 0 < len(nodes) < len(group.nodes)
    only = replace(group, nodes=nodes) if some else None
    return AnswerPart(
        trouble.use,
        trouble.kind,
        trouble.where,
        (),
        known,
        trouble.message,
        trouble.call,
        only,
    )


def _already_reported(one: ModelAnswer, trouble: ModelTrouble) -> bool:
    kinds = {part.kind for part in one.of(trouble.use).bad}
    return trouble.kind in kinds and trouble.kind != "wrong"
