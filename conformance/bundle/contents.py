"""What is in the files of a bundle: the inputs of a runner, and what the oracle expects."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from conformance.base.array_types import NUMPY, ONNX_OF_NUMPY, WORD_OF_ONNX
from conformance.base.readings import ReadingName
from conformance.bundle.expected import Expected
from conformance.bundle.float_arrays import Packed, Packer, Unpacker
from conformance.bundle.model import tensor_of
from conformance.bundle.script import Script, ScriptStep, script_of
from conformance.bundle.variants import variant_script
from conformance.case.call import Call
from conformance.case.tensors import Step
from conformance.case.variants import RelationName
from conformance.oracle import OracleError, Reference
from conformance.oracle.tolerance import PastErrors, arithmetic_budget, budgets, past_errors

Array = np.ndarray

#: The oracle's arrays, and which elements of them there are.
ORACLE: Final = "oracle.f64"
WHERE: Final = "oracle.where.z"


class Wanted(NamedTuple):
    """The call that a bundle is of, or its variant, and the readings that it has, too.

    ``steps`` are those of the call, where they are known.
    """

    call: Call
    relation: RelationName | None = None
    readings: tuple[ReadingName, ...] = ()
    steps: tuple[Step, ...] = ()

    def script(self) -> Script:
        """The script by the usual reading."""
        if self.relation is not None:
            return variant_script(self.call, self.relation)
        return script_of(self.call, steps=self.steps)


@dataclass(frozen=True, eq=False)
class Answer:
    """The oracle's answer to one step; ``past_error`` are the errors of its past in a loop."""

    references: dict[str, Reference]
    units: dict[str, Array]
    past_error: PastErrors | None

    @cached_property
    def rounded(self) -> dict[str, Array]:
        """The values of each output in its dtype."""
        return {name: _rounded(value) for name, value in self.references.items()}


class Answers(NamedTuple):
    """The steps of a script by one reading: their inputs, with the past, and the answers.

    A step without a meaning is the last: ``unjudged`` says why, and it has no answer.
    """

    inputs: list[dict[str, Array]]
    steps: list[Answer]
    unjudged: str | None


def answers_to(script: Script) -> Answers:
    """The oracle's answers to the steps of a script."""
    inputs: list[dict[str, Array]] = []
    steps: list[Answer] = []
    for step in script.steps:
        past: dict[str, Array] = {}
        past_error: PastErrors | None = None
        if step.carry and steps:
            last = steps[-1]
            past = {past: last.rounded[present] for past, present in step.carry.items()}
            past_error = past_errors(last.references, last.past_error)
        inputs.append({**step.inputs, **past})
        try:
            references = script.compute(inputs[-1])
        except OracleError as error:
            return Answers(inputs, steps, str(error).removesuffix("."))
        steps.append(Answer(references, budgets(references, past_error), past_error))
    return Answers(inputs, steps, None)


def input_files(script: Script, answers: Answers | None = None) -> Iterator[tuple[str, bytes]]:
    """The model, and the inputs of each step; with ``answers`` those that are carried, too."""
    yield "model.onnx", script.model.SerializeToString(deterministic=True)
    for index, step in enumerate(script.steps):
        inputs = step.inputs
        if answers is not None and index < len(answers.inputs):
            inputs = answers.inputs[index]
        for position, name in enumerate(step.connected):
            if name in inputs:
                yield _input_file(index, position), tensor_file(inputs[name], name)


def plan(script: Script) -> list[dict[str, Any]]:
    """What a runner is told of each step, as in :class:`conformance.harness.protocol.StepFiles`."""
    return [_plan(index, step) for index, step in enumerate(script.steps)]


def _plan(index: int, step: ScriptStep) -> dict[str, Any]:
    return {
        "files": {
            name: _input_file(index, position)
            for position, name in enumerate(step.connected)
            if name not in step.carry
        },
        "carry": dict(step.carry),
        "share": dict(step.aliases),
    }


def _input_file(step: int, position: int) -> str:
    return f"test_data_set_{step}/input_{position}.pb"


def output_file(step: int, position: int) -> str:
    """The name of the file with an output's values."""
    return f"test_data_set_{step}/output_{position}.pb"


class ExpectedFiles(NamedTuple):
    """What the oracle expects, and what the manifest says of it: which array is what, and why there
    are none."""

    files: dict[str, bytes]
    told: dict[str, Any]


def expected_files(wanted: Wanted, script: Script, usual: Answers) -> ExpectedFiles:
    """What is expected by the ``usual`` reading, and by the others that are wanted."""
    files: dict[str, bytes] = {}
    oracle = Packer()
    layout: list[dict[str, Any]] = []
    if usual.unjudged is None:
        for index, answer in enumerate(usual.steps):
            for position, name in enumerate(script.outputs):
                files[output_file(index, position)] = tensor_file(answer.rounded[name], name)
        _add(usual.steps, None, wanted.relation is not None, layout, oracle)
    for reading in wanted.readings:
        other = answers_to(script_of(wanted.call, reading))
        if other.unjudged is None:
            _add(other.steps, reading, False, layout, oracle)
    files[ORACLE], files[WHERE] = oracle.packed()
    return ExpectedFiles(files, {"oracle": layout, "unjudged": usual.unjudged})


def _add(
    answers: Sequence[Answer],
    reading: ReadingName | None,
    arithmetic: bool,
    layout: list[dict[str, Any]],
    oracle: Packer,
) -> None:
    """Adds the arrays of ``answers`` to ``oracle``, and what they are to ``layout``."""
    for index, answer in enumerate(answers):
        for name, expected in answer.references.items():
            unit = answer.units[name]
            arrays = [np.where(expected.defined, unit, np.nan)]
            if arithmetic:
                arrays.append(arithmetic_budget(name, expected, answer.past_error))
            arrays += [np.where(there, unit, np.nan) for there in expected.watched.values()]
            layout.append(
                {
                    "reading": reading,
                    "step": index,
                    "output": name,
                    "shape": list(expected.value.shape),
                    "dtype": WORD_OF_ONNX[ONNX_OF_NUMPY[expected.dtype]],
                    "arithmetic": arithmetic,
                    "watched": list(expected.watched),
                }
            )
            oracle.add(expected.value, None if reading else answer.rounded[name])
            for array in arrays:
                oracle.add(array)


#: What is expected of each output, for each step.
Steps = tuple[dict[str, Expected], ...]


def expected_of(
    layout: Any, steps: int, files: Mapping[str, bytes]
) -> tuple[Steps, dict[ReadingName, Steps]]:
    """What `expected_files` wrote, by the usual reading and by others.

    Raises ValueError and others if the files are not what the layout says.
    """
    oracle = Unpacker(Packed(files[ORACLE], files[WHERE]))
    by: dict[ReadingName | None, Steps] = {}
    for entry in layout:
        shape, reading = tuple(entry["shape"]), entry["reading"]
        expected = by.setdefault(reading, tuple({} for _ in range(steps)))
        outputs = expected[entry["step"]]
        near = None
        if reading is None:
            file = files[output_file(entry["step"], len(outputs))]
            near = _values_of(file, shape, NUMPY[entry["dtype"]])
        outputs[entry["output"]] = Expected(
            oracle.take(shape, near),
            oracle.take(shape),
            entry["dtype"],
            oracle.take(shape) if entry["arithmetic"] else None,
            {why: oracle.take(shape) for why in entry["watched"]},
        )
    if not oracle.is_empty:
        raise ValueError("there are more numbers than the layout says")
    usual = by.pop(None, tuple({} for _ in range(steps)))
    return usual, {reading: found for reading, found in by.items() if reading is not None}


def _rounded(expected: Reference) -> Array:
    """The oracle's values in the output's dtype, with zeros in place of undefined elements."""
    values = expected.value  # which has 0 where it is undefined, unless it is watched
    if expected.watched:
        values = np.where(expected.defined, values, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(expected.dtype)


def tensor_file(values: Array, name: str) -> bytes:
    return bytes(tensor_of(values, name).SerializeToString(deterministic=True))


def _values_of(file: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The values in a tensor file of :func:`tensor_file`; its last field are their bytes."""
    count = math.prod(shape)
    return np.frombuffer(file, dtype, count, len(file) - count * dtype.itemsize).reshape(shape)
