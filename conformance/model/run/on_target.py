"""Whether a target loads the model, and runs it right in each way of calling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from conformance.base.array_types import Array
from conformance.base.explain import reason_of
from conformance.case.relations import CANNOT_SHARE
from conformance.graph.reading import ReadModel
from conformance.harness.outcomes import Crashed, Rejected, TimedOut
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.model.calls.feeds import CannotFeed, interface_of
from conformance.model.calls.groups import Group
from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.sequences import CallSequence, Conversation, TokenHistory
from conformance.model.calls.skeleton import part, whole, with_weights
from conformance.model.calls.ways import WAYS, Way, lacks
from conformance.model.config.configuration import Configuration
from conformance.model.run.blame import ResultCause, cause_of
from conformance.model.run.comparison import BY_LENGTH, compared, tolerance_of
from conformance.model.run.dense_prompts import DensePrompts, NotComputed
from conformance.model.run.in_standard import (
    content_in_standard_operators,
    program_in_standard_operators,
)
from conformance.model.run.model_calls import NamedArrays, Stopped, run_calls, run_sequence
from conformance.model.run.pipeline import PipelineProgram, PipelinePrompts, pipeline_program
from conformance.model.run.short_messages import short
from conformance.report.model_table import AnswerKind
from conformance.rewriting.dense import CannotRewrite
from conformance.run.target import DescribedTarget

#: ONNX Runtime takes weights as inputs; others want constants.
_TAKES_WEIGHTS: Final = ("onnxruntime", "onnxruntime-node", "onnxruntime-web")


_UNKNOWN: Final = ResultCause("")


@dataclass(frozen=True)
class WayResult:
    """What a target does in one way of calling.

    ``where`` is the call, or the reason why it was not tried; ``told`` the size of the error, and
    ``message`` the runtime's. ``tokens`` is the number of tokens of the longest call. ``loads``:
    the model was loaded; a runtime may load it anew for the lengths of each call.
    """

    way: Way
    kind: AnswerKind
    where: str = ""
    told: str = ""
    message: str = ""
    cause: ResultCause = _UNKNOWN
    tokens: int = 0
    loads: bool = True


@dataclass(frozen=True)
class ModelRun:
    """What a target did with the model itself.

    ``load`` is the message with which the target refused to load it, or with ``of_part`` its part
    without products with weights. ``unseen`` is the reason why it was not run, "" if it was.
    """

    load: str = ""
    of_part: bool = False
    unseen: str = ""
    ways: tuple[WayResult, ...] = ()


@dataclass(frozen=True)
class ModelProgram:
    """A model as a program runs it. ``why`` is the reason why there is none, "" if there is one.

    ``only_load`` is the model as it is written, if another model is run: one without its many
    weights, which are inputs there, or one whose activations have fixed scales.
    """

    program: DecoderProgram | None
    configuration: Configuration
    ways: Sequence[Way] = ()
    only_load: bytes | None = None
    why: str = ""


def program_of(
    model: ReadModel,
    groups: Sequence[Group],
    configuration: Configuration,
    ways: Sequence[Way] = (),
    meanings: Mapping[str, str | Array] | None = None,
    prompt: tuple[int, ...] = (),
    *,
    weights: bool = False,
    files: Sequence[ReadModel] = (),
) -> ModelProgram:
    """The model of ``groups``, to be called on targets in these ``ways``.

    With ``weights`` it has its own ones. ``files`` are those of a pipeline. If no runnable part can
    be cut out of the model, its nodes are only called alone, and ``why`` gives the reason.
    """
    nodes = [node for group in groups for node in group.nodes]
    ways = ways or [*WAYS.values()]
    try:
        if files:
            return ModelProgram(pipeline_program(files, groups, configuration), configuration, ways)
        skeleton = with_weights(model, nodes) if weights else whole(model, nodes)
        only_load = (skeleton.content if skeleton.only_loads else skeleton.as_written) or None
        skeleton = part(model, nodes) if skeleton.only_loads else skeleton
        interface = interface_of(model, skeleton, groups, configuration, meanings)
        program = DecoderProgram(skeleton, interface, groups, prompt)
        return ModelProgram(program, configuration, ways, only_load)
    except Exception as error:
        return ModelProgram(None, configuration, (), _content(model), why=reason_of(error))


def prompts_of(program: DecoderProgram, session: Session) -> DensePrompts:
    """The results that the program must have; ``session`` is one of ONNX Runtime's CPU provider."""
    if isinstance(program, PipelineProgram):
        return PipelinePrompts(program, session)
    return DensePrompts(program, session)


def refusal_of(model: ReadModel, ready: DescribedTarget) -> str:
    """The message with which a target refuses to load the model, "" if it loads it."""
    return run_model(ModelProgram(None, Configuration(), (), _content(model)), ready, None).load


def _content(model: ReadModel) -> bytes | None:
    """A model that is known to be faulty, to be loaded; None if its fault prevents that."""
    with suppress(Exception):
        return whole(model, ()).content
    return None


def in_standard_operators(model: ModelProgram) -> ModelProgram:
    """The model in standard operators. Raises :class:`CannotRewrite`."""
    program = model.program and program_in_standard_operators(model.program)
    only_load = model.only_load and content_in_standard_operators(model.only_load)
    ways = [
        replace(way, lacks=lambda _: CANNOT_SHARE) if way.name == "shared" else way
        for way in model.ways
    ]
    return replace(model, program=program, only_load=only_load, ways=ways)


def run_model(
    model: ModelProgram, ready: DescribedTarget, prompts: DensePrompts | None
) -> ModelRun:
    """Load the model on the target, and call it in each way; in standard operators if it gets
    those."""
    described = ready.reported or ready.described
    if described is None:
        return ModelRun(unseen="the target is not available")
    if ready.target.in_standard_operators:
        try:
            model = in_standard_operators(model)
        except CannotRewrite as error:
            return ModelRun(unseen=str(error))
    with Session(ready.target.command, described=described) as session:
        try:
            return _seen(model, described.runtime, session, prompts)
        except (RunnerFailed, OSError) as error:
            return ModelRun(unseen=f"its runner failed: {error}")
        except Exception as error:
            return ModelRun(unseen=reason_of(error))


def _seen(
    model: ModelProgram, runtime: str, session: Session, prompts: DensePrompts | None
) -> ModelRun:
    if model.only_load is not None and runtime in _TAKES_WEIGHTS:
        refusal = _load_refusal(session, model.only_load)
        if refusal:
            return ModelRun(load=refusal)
    program = model.program
    if program is None:
        return ModelRun(unseen=model.why)
    if prompts is None:
        return ModelRun(unseen="there is nothing to compare its results with")
    with suppress(CannotFeed, NotComputed):  # the way in which it is so raises it again
        tried = (way for way in model.ways if not lacks(way, program))
        runs = (run for way in tried for run in way.sequences(program))
        prompts.prepare(history for run in runs for history in _needed(run))
    found: list[WayResult] = []
    for way in model.ways:
        try:
            one = _tried(way, program, session, prompts)
        except CannotFeed as error:
            refusal = _load_refusal(session, program.skeleton.content)
            return ModelRun(load=refusal, unseen=str(error))
        except NotComputed as error:
            return ModelRun(unseen=str(error))
        found.append(one)
        if len(found) == 1 and one.kind not in ("right", "wrong", "untried"):
            # A program whose chat fails is not called in other ways.
            steps = _single_tokens(program, session, prompts) if way.name == "chat" else ""
            found[0] = replace(one, where=one.where + steps, loads=one.loads or bool(steps))
            if not found[0].loads:
                return ModelRun(load=one.message, of_part=bool(program.skeleton.results))
            if not steps:
                break
    return ModelRun(ways=tuple(found))


#: The most tokens of a prompt that costs little.
_SHORT: Final = 16
#: The reason why a way was not tried, if its results cannot be compared.
NOT_COMPARED: Final = "not compared"


def _needed(run: CallSequence) -> Iterator[TokenHistory]:
    """The prompts that the results of a sequence are surely compared with.

    If the first call is wrong, its own prompt is needed, too; it costs little if it is short.
    """
    yield from run.longest.values()
    if run.calls[0].new <= _SHORT:
        yield from run.calls[0].histories


def _tried(way: Way, program: DecoderProgram, session: Session, prompts: DensePrompts) -> WayResult:
    """What the target of ``session`` does in one way."""
    if why := lacks(way, program):
        return WayResult(way, "untried", why)
    runs = [*way.sequences(program)]
    try:
        prompts.prepare(history for run in runs for history in run.longest.values())
    except NotComputed:
        stopped = _run(session, program, runs[0])
        if isinstance(stopped, Stopped) and isinstance(stopped.outcome, Rejected):
            return _stopped(way, runs[0], stopped, first=not stopped.call)
        raise
    why, tokens = "", 0
    for at, run in enumerate(runs):
        results = _run(session, program, run)
        if isinstance(results, Stopped):
            return _stopped(way, run, results, first=not at and not results.call)
        found = compared(program, run, results, prompts)
        why = why if why not in ("", BY_LENGTH) else found.why or why
        if (wrong := found.difference) is not None:
            scale = tolerance_of(program)
            cause = _UNKNOWN
            if not isinstance(program, PipelineProgram):
                cause = cause_of(session, program, run, wrong.number, scale)
            told = f"the largest error is {wrong.error:.2g} of {wrong.largest:.2g}"
            return WayResult(way, "wrong", f"for {wrong.call.words}", told, cause=cause)
        tokens = max(tokens, *(call.total for call in run.calls))
    if why not in ("", BY_LENGTH):
        return WayResult(way, "untried", f"{NOT_COMPARED}: {why}")
    told = f"later calls {NOT_COMPARED}: {why}" if why else ""
    return WayResult(way, "right", told, tokens=tokens)


def _run(
    session: Session, program: DecoderProgram, run: CallSequence
) -> Sequence[NamedArrays] | Stopped:
    if isinstance(program, PipelineProgram):
        return program.run(session, run)
    return run_sequence(session, program, run)


def _single_tokens(program: DecoderProgram, session: Session, prompts: DensePrompts) -> str:
    """Half a sentence if the target runs single tokens right, although it refuses prompts."""
    if not program.cached or program.new is not None:
        return ""
    conversation = Conversation(program.source, program.batch or 1)
    for _ in range(6):
        conversation.call(*[1] * (program.batch or 1))
    run = conversation.done()
    results = run_sequence(session, program, run)
    if isinstance(results, Stopped) or compared(program, run, results, prompts).difference:
        return ""
    return "; single tokens are right"


def _stopped(way: Way, run: CallSequence, stopped: Stopped, first: bool) -> WayResult:
    """The result of calls that did not all run."""
    outcome, call = stopped.outcome, run.calls[min(stopped.call, len(run.calls) - 1)]
    message = short(getattr(outcome, "message", ""))
    where = f"for {call.words}"
    match outcome:
        case Rejected():
            loads = not (first and outcome.stage == "load")
            return WayResult(way, "refused", where, message=message, loads=loads)
        case Crashed():
            return WayResult(way, "crash", where, message=message)
        case TimedOut():
            return WayResult(way, "timeout", where)
    said = getattr(outcome, "reason", "") or getattr(outcome, "message", "")
    return WayResult(way, "untried", said.rstrip(".") or "it gave no answer")


def _load_refusal(session: Session, model: bytes) -> str:
    """The message with which a target refuses to load a model, "" if it loads it.

    The call has no inputs, so a target that loads the model rejects the call.
    """
    done = run_calls(session, model, [{}])
    if isinstance(done, Stopped) and isinstance(done.outcome, Rejected):
        return short(done.outcome.message) if done.outcome.stage == "load" else ""
    return ""
