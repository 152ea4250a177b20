"""A model in several files, which hand values and caches on, as ``genai_config.json`` says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import onnx

from conformance.base.array_types import Array
from conformance.graph.parts import CannotCut
from conformance.graph.reading import ReadModel
from conformance.harness.session import Session
from conformance.model.calls.feeds import Feeder, Interface, interface_of
from conformance.model.calls.groups import Group
from conformance.model.calls.program import ROWS, DecoderProgram
from conformance.model.calls.sequences import CallSequence, TokenHistory
from conformance.model.calls.skeleton import Skeleton, whole
from conformance.model.config.configuration import Configuration
from conformance.model.run.dense_prompts import DensePrompts, NotComputed, dense_feeders
from conformance.model.run.model_calls import Stopped, run_calls
from conformance.rewriting.dense import dense_model


@dataclass(frozen=True, eq=False)
class PipelineFile:
    """A file of a pipeline, with the calls in which it runs."""

    skeleton: Skeleton
    interface: Interface
    on_prompt: bool
    on_tokens: bool

    @cached_property
    def dense(self) -> onnx.ModelProto:
        """The file with dense attention."""
        return dense_model(self.skeleton.model)


@dataclass(frozen=True)
class PipelineProgram(DecoderProgram):
    """A pipeline as a program calls it; the fields are those of the file that takes prompts."""

    files: tuple[PipelineFile, ...] = ()

    @property
    def in_files(self) -> bool:
        return True

    def run(self, session: Session, run: CallSequence) -> list[dict[str, Array]] | Stopped:
        """The values that the files hand on and return in each call."""
        caches: dict[str, Array] = {}
        done: list[dict[str, Array]] = []
        rows = max(ROWS, *(call.total for call in run.calls))
        for number, call in enumerate(run.calls):
            values: dict[str, Array] = {}
            for file in self.files:
                if file.on_prompt if call.new > 1 else file.on_tokens:
                    feeder = Feeder(file.interface, file.skeleton.inputs, rows, call)
                    known = {**caches, **values}
                    given = {
                        name: known[name] if name in known else feeder.array(name)
                        for name in file.skeleton.inputs
                    }
                    got = run_calls(session, file.skeleton.content, [given])
                    if isinstance(got, Stopped):
                        return Stopped(number, got.outcome)
                    values |= got[0]
                    states = file.interface.states.items()
                    caches |= {past: got[0][present] for past, present in states}
            done.append(values)
        return done


class PipelinePrompts(DensePrompts):
    """The results of prompts in a pipeline: its files with dense attention, one after another."""

    def __init__(self, program: PipelineProgram, session: Session) -> None:
        super().__init__(program, session)
        self._files = [file for file in program.files if file.on_prompt]

    def prepare(self, histories: Iterable[TokenHistory]) -> None:
        for history in histories:
            if history not in self._plain:
                self._plain[history] = self._of_files(history)

    def rounding(self, history: TokenHistory, name: str) -> float:
        return 0.0

    def _of_files(self, history: TokenHistory) -> Mapping[str, Array]:
        values: dict[str, Array] = {}
        for file in self._files:
            (feeder,) = dense_feeders(file.interface, file.skeleton, file.dense, [history])
            arrays = {n: values[n] if n in values else feeder.array(n) for n in feeder.inputs}
            got = run_calls(self._session, file.dense.SerializeToString(), [arrays])
            if isinstance(got, Stopped):
                said = getattr(got.outcome, "message", "")
                raise NotComputed(f"dense attention in its place cannot be run: {said}")
            values |= got[0]
        return values


def pipeline_program(
    models: Sequence[ReadModel], groups: Sequence[Group], configuration: Configuration
) -> PipelineProgram:
    """The pipeline of these files, in the order of the configuration's stages."""
    files = []
    for model, stage in zip(models, configuration.pipeline, strict=True):
        own = [group for group in groups if group.file == stage.file]
        skeleton = whole(model, [node for group in own for node in group.nodes])
        if skeleton.only_loads:
            raise CannotCut(f"{stage.file} has too many weights to be run without them")
        interface = interface_of(model, skeleton, own, configuration)
        files.append(PipelineFile(skeleton, interface, stage.on_prompt, stage.on_tokens))
    taking = next(f for f in files if f.on_prompt and f.interface.takers)
    last = next(file for file in reversed(files) if file.on_prompt)
    results = last.interface.outputs.keys() - last.interface.states.values()
    skeleton = replace(taking.skeleton, results=tuple(sorted(results)))
    return PipelineProgram(skeleton, taking.interface, groups, files=tuple(files))
