"""What a program's results must be: those of one prompt, computed with dense attention.

The graph is rewritten (:mod:`conformance.rewriting`) and runs on ONNX Runtime's CPU provider,
in float32. It shares no attention kernel with the targets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np
import onnx

from conformance.base.array_types import Array
from conformance.graph.shapes import ValueType, types_of
from conformance.harness.session import Session
from conformance.model.calls.feeds import Feeder, Interface
from conformance.model.calls.program import ROWS, DecoderProgram
from conformance.model.calls.sequences import TokenHistory, prompt_of
from conformance.model.calls.skeleton import Skeleton, part_for
from conformance.model.run.model_calls import SECONDS, Stopped, run_calls
from conformance.model.run.short_messages import short
from conformance.operator.signature import OP_TYPE
from conformance.rewriting.dense import CannotRewrite, dense_model

_Results = dict[TokenHistory, Mapping[str, Array]]


class NotComputed(ValueError):
    """The results cannot be computed; the message says why."""


class DensePrompts:
    """The results of prompts by history, each computed once on ``session``."""

    def __init__(self, program: DecoderProgram, session: Session) -> None:
        self._program, self._session = program, session
        self._plain: _Results = {}
        self._rounded: _Results = {}

    def prepare(self, histories: Iterable[TokenHistory]) -> None:
        """Compute the results of several prompts in one run. Raises :class:`NotComputed`."""
        wanted = dict.fromkeys(histories)
        known = {False: self._plain, True: self._rounded}
        for rounded, model in self._models.items():
            if missing := [each for each in wanted if each not in known[rounded]]:
                results = self._run(model, missing)
                known[rounded].update(zip(missing, results, strict=True))

    def of(self, history: TokenHistory) -> Mapping[str, Array]:
        """The outputs of one prompt. Raises :class:`NotComputed`."""
        if history not in self._plain:
            self.prepare([history])
        return self._plain[history]

    def rounding(self, history: TokenHistory, name: str) -> float:
        """How far rounding in the model may move an element of an output.

        It is four times the most that rounding without a limit moves one: another kernel may round
        at other places.
        """
        if not self._is_rounded:
            return 0.0
        self.prepare([history])
        moved = np.abs(self._plain[history][name] - self._rounded[history][name])
        return 4 * float(np.nanmax(moved, initial=0.0))

    def values(self, history: TokenHistory, names: Iterable[str]) -> Mapping[str, Array]:
        """Values inside of the graph in one prompt. Raises :class:`NotComputed`."""
        model = part_for(self._program.skeleton.model, {*names})
        kept = [each.name for each in model.graph.output]
        return self._run(dense_model(model, keep=kept), [history])[0] if kept else {}

    def close(self) -> None:
        """End the session, forget the results, and give freed memory back to the system."""
        self._session.close()
        self._plain, self._rounded = {}, {}
        vars(self).pop("_models", None)
        with suppress(OSError, AttributeError):  # of the C library of Linux
            ctypes.CDLL(None).malloc_trim(0)

    @cached_property
    def _is_rounded(self) -> bool:
        """Whether the model computes or stores anything in less than 32 bits."""
        program = self._program
        return program.has_codes or program.quantises or bool(program.halves)

    @cached_property
    def _models(self) -> Mapping[bool, onnx.ModelProto]:
        skeleton = self._program.skeleton
        model = _paired(skeleton.model)
        try:
            return {
                rounded: dense_model(model, rounded=rounded, keep=skeleton.results)
                for rounded in (False, True)[: 1 + self._is_rounded]
            }
        except CannotRewrite as error:
            raise NotComputed(str(error).rstrip(".")) from None

    def _run(
        self, model: onnx.ModelProto, histories: Iterable[TokenHistory]
    ) -> list[Mapping[str, Array]]:
        program = self._program
        feeders = dense_feeders(program.interface, program.skeleton, model, histories)
        calls = [feeder.arrays() for feeder in feeders]
        seconds = SECONDS * len(calls)
        done = run_calls(self._session, model.SerializeToString(), calls, seconds=seconds)
        if isinstance(done, Stopped):
            said = getattr(done.outcome, "message", "") or getattr(done.outcome, "reason", "")
            raise NotComputed(f"dense attention in its place cannot be run: {short(said)}")
        return list(done)


def dense_feeders(
    interface: Interface,
    skeleton: Skeleton,
    model: onnx.ModelProto,
    histories: Iterable[TokenHistory],
) -> list[Feeder]:
    """What gives a ``model`` with dense attention, made of the ``skeleton``, each of its prompts.

    A cache of the model itself is empty, and one that only other models fill is full.
    """
    graph = model.graph
    fixed, types = {each.name for each in graph.initializer}, types_of(graph)
    inputs = {
        each.name: _unpadded(interface, skeleton, each.name, types[each.name])
        for each in graph.input
        if each.name not in fixed
    }
    caches = {
        name
        for name, own in inputs.items()
        if interface.is_taken_as_past(name)
        or (interface.is_past(name) and not isinstance(own.dim(-2), int))
    }
    dense = replace(
        interface,
        inputs=inputs,
        types={each.name: each.type.tensor_type.elem_type for each in graph.input},
    )
    feeders = []
    for history in histories:
        rows = {name: 0 if interface.is_past(name) else len(history) for name in caches}
        call = prompt_of(history)
        feeders.append(Feeder(dense, inputs, max(ROWS, len(history)), call, rows))
    return feeders


def _unpadded(interface: Interface, skeleton: Skeleton, name: str, known: ValueType) -> ValueType:
    """The type of an input for a prompt of any length, with the fixed sizes of states."""
    own = skeleton.inputs.get(name, known)
    if name not in interface.states or len(own.dims or ()) != len(known.dims or ()):
        return known
    dims = zip(own.dims or (), known.dims or (), strict=True)
    return ValueType(known.dtype, tuple(o if isinstance(o, int) else k for o, k in dims))


def _paired(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in which a node that borrows gets keys as keys, and the values of the same node."""
    presents = {
        name: node.output
        for node in model.graph.node
        if node.op_type == OP_TYPE
        for name in node.output[1:3]
        if name
    }
    wrong = {
        at: presents[node.input[3]][1:3]
        for at, node in enumerate(model.graph.node)
        if node.op_type == OP_TYPE and {*node.input[3:5]} <= presents.keys()
        if node.input[3:5] and node.input[3:5] != presents[node.input[3]][1:3]
    }
    if not wrong:
        return model
    paired = onnx.ModelProto()
    paired.CopyFrom(model)
    for at, names in wrong.items():
        paired.graph.node[at].input[3:5] = names
    return paired
