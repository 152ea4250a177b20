"""Runs the calls of a program on a runner, and reads what they return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import numpy_helper

from conformance.base.array_types import Array
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome, Ran
from conformance.harness.protocol import StepFiles
from conformance.harness.session import Session
from conformance.model.calls.feeds import tensor_file
from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.sequences import CallSequence

#: Seconds for all calls of a job together.
SECONDS: Final = 60.0
_MOST_BYTES: Final = 1 << 30
_READABLE: Final = frozenset([1, 2, 3, 6, 7, 9, 10, 11, 16])

NamedArrays = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Stopped:
    """Calls that did not all run: the index of the first that did not, and what happened."""

    call: int
    outcome: Outcome


def run_calls(
    session: Session,
    model: bytes,
    calls: Sequence[NamedArrays],
    carried: Mapping[str, str] | None = None,
    share: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> list[NamedArrays] | Stopped:
    """The outputs of consecutive ``calls`` with these inputs.

    From the second call on, ``carried`` maps inputs to the outputs of the call before. ``share``
    maps outputs to the inputs whose memory they use.
    """
    content: dict[str, bytes] = {"model.onnx": model}
    plans = []
    for number, given in enumerate(calls):
        names = {}
        for index, (name, array) in enumerate(given.items()):
            names[name] = f"test_data_set_{number}/input_{index}.pb"
            content[names[name]] = tensor_file(array, name)
        carry = dict(carried or {}) if number else {}
        plans.append(StepFiles(files=names, carry=carry, share=dict(share or {})))
    job = Job("the model itself", content, tuple(plans), 1, seconds, _MOST_BYTES)
    outcome = session.run(job)
    if not isinstance(outcome, Ran):
        return Stopped(getattr(outcome, "step", 0), outcome)
    return [_Outputs(files) for files in outcome.runs[0]]


class _Outputs(Mapping[str, Array]):
    """The outputs of a call, each of which is read from its file's content when it is needed."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        self._arrays: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name in self._files:
            tensor = onnx.TensorProto.FromString(self._files.pop(name))
            if tensor.data_type in _READABLE:
                self._arrays[name] = numpy_helper.to_array(tensor)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in [*self._files, *self._arrays] if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def run_sequence(
    session: Session, program: DecoderProgram, run: CallSequence, model: bytes | None = None
) -> list[NamedArrays] | Stopped:
    """The outputs of the calls of a sequence; ``model`` replaces the program's.

    The runner hands the caches on, except where the program changes them between two calls. Raises
    :class:`CannotFeed`.
    """
    given, states = program.arrays(run), program.interface.states
    states = {past: present for past, present in states.items() if past in program.skeleton.inputs}
    share = {states[past]: past for past in run.buffers if run.share and past in states}
    # The caches of all calls of one run come back, and there is a limit to what may.
    size = sum(array.nbytes for name, array in given[0].items() if name in states)
    most = max(1, _MOST_BYTES // 2 // max(size, 1))
    done: list[NamedArrays] = []
    while len(done) < len(run.calls):
        start = len(done)
        changes = (n for n in range(start + 1, len(run.calls)) if _is_changed(program, run, n))
        end = min(start + most, next(changes, len(run.calls)))
        inputs = given[start:end]
        if start:
            before, call = done[-1], run.calls[start]
            caches = {
                past: program.carried(run, call, past, before[present])
                for past, present in states.items()
                if present in before
            }
            inputs = [{**inputs[0], **caches}, *inputs[1:]]
        found = run_calls(
            session,
            model or program.skeleton.content,
            inputs,
            states,
            share,
        )
        if isinstance(found, Stopped):
            return Stopped(start + found.call, found.outcome)
        done += found
    return done


def _is_changed(program: DecoderProgram, run: CallSequence, number: int) -> bool:
    """Whether the program changes the caches before a call."""
    call = run.calls[number]
    return call.kept is not None or (call.order is not None and "order" not in program.kinds)
