"""A call in memory: its files for a runner, and the expected outputs for the judge.

A runner reads files in the layout of the ONNX backend tests::

    model.onnx
    test_data_set_K/input_N.pb     inputs of call K of a loop (0 alone for a single call)
    test_data_set_K/output_N.pb    the oracle's values in the output's dtype; 0 where undefined
    case.json                      the call's fields

Most of the time goes into the oracle, and a call that a runtime rejects does not need it. So the
expected outputs are computed only when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from conformance.base.array_types import NUMPY, Array
from conformance.base.interrupts import undisturbed
from conformance.bundle.expected import Expected
from conformance.bundle.model import tensor_of, with_shapes
from conformance.bundle.script import Script, script_of
from conformance.bundle.variants import variant_script
from conformance.case.relations import RelationName
from conformance.case.steps import steps_of
from conformance.harness.protocol import StepFiles
from conformance.operator.call import Call, GraphCall
from conformance.operator.readings import ReadingName
from conformance.operator.tensors import Step
from conformance.oracle import OracleError, Reference
from conformance.oracle.tolerance import STORED_SCORES, PastErrors, TargetClass, past_errors

#: The expectation for each output, for each step.
ExpectedSteps = tuple[dict[str, Expected], ...]

_NUMBER: Final = re.compile(r"\d+")


class NoStaticShapesError(ValueError):
    """A model cannot get static shapes; the message is a clause that says why."""


def digest_of(call: Call, relation: RelationName | None = None) -> str:
    """A name of ``call``, or of its variant by ``relation``, that is the same on every machine."""
    text = "\n".join(filter(None, (_json_of(call), relation)))
    return hashlib.sha256(text.encode()).hexdigest()


def prepare(
    call: Call,
    relation: RelationName | None = None,
    readings: Sequence[ReadingName] = (),
    steps: tuple[Step, ...] = (),
) -> Prepared:
    """The model and inputs of ``call``, or of its variant by ``relation``.

    ``readings`` are other readings for which expected values are computed, too; a variant has none.
    ``steps`` are those of the call, if they are known. Raises
    :class:`conformance.case.given.GivenError` if a file with the values cannot be read.
    """
    steps = steps or steps_of(call)
    script = script_of(call, steps=steps) if relation is None else variant_script(call, relation)
    return Prepared(call, steps, relation, tuple(readings), script)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The model and inputs of a call, or of its variant, and the expected outputs.

    ``reading`` is the reading of the documentation that the outputs follow; None: the usual one.
    ``stored_scores``: the budgets are those of a kernel that computes scores in the storage type.
    """

    call: Call
    call_steps: tuple[Step, ...]
    relation: RelationName | None
    wanted_readings: tuple[ReadingName, ...]
    script: Script
    reading: ReadingName | None = None
    stored_scores: bool = False

    # What a runner gets

    @cached_property
    def inputs(self) -> dict[str, bytes]:
        """The content of the model and of each input that is not carried, by file name."""
        model = self.script.model.SerializeToString(deterministic=True)
        drawn = [{**step.inputs, **step.buffers} for step in self.script.steps]
        return {"model.onnx": model, **dict(_input_files(self.script, drawn))}

    @cached_property
    def steps(self) -> tuple[StepFiles, ...]:
        """The files of each step, for a runner."""
        return tuple(
            StepFiles(
                files={
                    name: _input_file(index, position)
                    for position, name in enumerate(step.connected)
                    if name not in step.carry
                },
                carry=dict(step.carry),
                keep=step.keep,
                share=dict(step.aliases),
                may_be_rejected=step.refused,
            )
            for index, step in enumerate(self.script.steps)
        )

    @cached_property
    def files(self) -> dict[str, bytes]:
        """All files, with the fields of the call, the carried inputs and the expected outputs."""
        outputs = {
            output_file(index, position): tensor_file(step[name].rounded, name)
            for index, step in enumerate(self.expected)
            for position, name in enumerate(self.script.outputs)
            if step
        }
        carried = [
            {name: arrays[name] for name in step.carry if name in arrays}
            for step, arrays in zip(self.script.steps, self._computed.inputs, strict=False)
        ]
        return {
            "case.json": json.dumps(json.loads(_json_of(self.call)), indent=1).encode(),
            **self.inputs,
            **dict(_input_files(self.script, carried)),
            **outputs,
        }

    def static_model(self) -> bytes:
        """The model with the shapes of its calls.

        Raises :class:`NoStaticShapesError` if they differ, or are not defined.
        """
        if self.unjudged is not None:
            raise NoStaticShapesError("the shapes of its outputs are not defined")
        computed = self._computed
        first, *others = (
            {name: array.shape for name, array in {**step.buffers, **inputs}.items()}
            | {name: expected.shape for name, expected in outputs.items()}
            for step, inputs, outputs in zip(
                self.script.steps, computed.inputs, computed.steps, strict=True
            )
        )
        if any(shapes != first for shapes in others):
            raise NoStaticShapesError("the shapes of its calls differ")
        return with_shapes(self.script.model, first).SerializeToString(deterministic=True)

    @cached_property
    def most_tensor_bytes(self) -> int:
        """An upper bound of the size of all inputs and expected outputs.

        Apart from output_qk, the outputs of a step of a single node have at most the size of all
        inputs up to this step: output has at most that of query, and the presents that of the past
        and of the new tokens, except that with query_seqlens they may have a row for each token of
        total_sequence_length.
        """
        inputs = sum(len(content) for name, content in self.inputs.items() if name.endswith(".pb"))
        if isinstance(self.call, GraphCall) or self.relation is not None:
            return inputs + sum(
                want.value.size * NUMPY[want.dtype].itemsize
                for step in self.expected
                for want in step.values()
            )
        call, steps = self.call, self.call_steps
        scores = sum(
            step.sequence_length * step.total_sequence_length
            for step in steps
            if "output_qk" in step.connected_outputs
        )
        rows = sum(step.total_sequence_length for step in steps) if call.query_seqlens else 0
        numbers = scores * call.num_heads + 2 * rows * call.kv_num_heads * call.head_size
        batch_size = max(each.batch_size for each in call.calls)
        return inputs * (1 + len(steps)) + numbers * batch_size * NUMPY[call.dtype].itemsize

    # What is expected

    @cached_property
    def _computed(self) -> ComputedSteps:
        return computed_steps(self.script, self.stored_scores)

    @cached_property
    def _others(self) -> dict[ReadingName, Prepared]:
        """The same call by each other reading that gives it a meaning."""
        found = {
            name: replace(self, script=script_of(self.call, name, self.call_steps), reading=name)
            for name in self.wanted_readings
        }
        return {name: other for name, other in found.items() if other.unjudged is None}

    @property
    def unjudged(self) -> str | None:
        """Why the call has no defined meaning; None if it has one."""
        return self._computed.unjudged

    def is_unjudged_like(self, other: Prepared) -> bool:
        """Whether both have a meaning, or neither, for the same reason in other numbers."""
        mine, theirs = (_NUMBER.sub("N", each.unjudged or "") for each in (self, other))
        return mine == theirs

    @property
    def expected(self) -> ExpectedSteps:
        """The expectation for each output of each step; empty if the call has no meaning."""
        if self.unjudged is not None:
            return tuple({} for _ in self.script.steps)
        return tuple(self._computed.steps)

    @property
    def readings(self) -> tuple[ReadingName, ...]:
        """The other readings that give the call a meaning."""
        return tuple(self._others)

    def judged_as(self, target_class: TargetClass) -> Prepared:
        """The same call with the budgets of this class of targets."""
        stored = target_class in STORED_SCORES
        return self if stored == self.stored_scores else replace(self, stored_scores=stored)

    def by(self, reading: ReadingName) -> Prepared:
        """The same call by one of its ``readings``."""
        return self._others[reading]


class ComputedSteps(NamedTuple):
    """The steps of a script by one reading: their inputs, with the past, and the expected outputs.

    A refused step has an answer without outputs. Any other step without a meaning is the last one:
    ``unjudged`` gives the reason, and the step has no answer.
    """

    inputs: list[dict[str, Array]]
    steps: list[dict[str, Expected]]
    unjudged: str | None


def computed_steps(script: Script, stored_scores: bool = False) -> ComputedSteps:
    """The oracle's answers to the steps of a script."""
    answers = ComputedSteps([], [], None)
    references: Mapping[str, Reference] = {}
    past_error: PastErrors | None = None
    for step in script.steps:
        carried = step.carry if answers.steps else {}
        made = {past: answers.steps[-1][present].rounded for past, present in carried.items()}
        past = {name: present[:, :, : step.keep] for name, present in made.items()}
        past_error = past_errors(references, past_error) if carried else None
        answers.inputs.append({**step.inputs, **past})
        if step.refused:
            answers.steps.append({})
            continue
        try:
            references = script.compute(answers.inputs[-1])
        except OracleError as error:
            return answers._replace(unjudged=str(error).removesuffix("."))
        answers.steps.append(
            {
                name: Expected(name, reference, past_error, stored_scores)
                for name, reference in references.items()
            }
        )
    return answers


def _input_files(
    script: Script, arrays: Sequence[Mapping[str, Array]]
) -> Iterator[tuple[str, bytes]]:
    """The files of those inputs that each step has in ``arrays``."""
    for index, (step, inputs) in enumerate(zip(script.steps, arrays, strict=False)):
        for position, name in enumerate(step.connected):
            if name in inputs:
                yield _input_file(index, position), tensor_file(inputs[name], name)


def _input_file(step: int, position: int) -> str:
    return f"test_data_set_{step}/input_{position}.pb"


def output_file(step: int, position: int) -> str:
    """The name of the file with an output's values."""
    return f"test_data_set_{step}/output_{position}.pb"


def tensor_file(values: Array, name: str) -> bytes:
    """An array as the content of a TensorProto file."""
    return bytes(tensor_of(values, name).SerializeToString(deterministic=True))


def _json_of(call: Call) -> str:
    with undisturbed():  # pydantic's serializers take an interrupt for a value that does not fit
        return call.json()
