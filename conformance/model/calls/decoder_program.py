"""The calls that a program makes of a model, and the inputs of attention that its graph computes.

The model runs without its weights (:mod:`conformance.model.run.skeleton`). Lengths, positions,
masks and tables are compared with their meaning in the operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import onnx
from onnx import numpy_helper

from conformance.base.array_types import Array
from conformance.graph.nodes import AttentionNode
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.protocol import StepFiles
from conformance.model.calls.feeds import Feeder, Interface, ProgramCall, tensor_file
from conformance.model.calls.groups import Group
from conformance.model.run.skeleton import MOST_TOKENS, Skeleton
from conformance.report.model_table import Use

#: Rows of a cache in a buffer if the graph leaves their number open.
_ROWS: Final = 32
#: Tokens of a long prompt.
_LONG: Final = 130
#: Elements of the keys that all caches together have in the longest call.
_CACHE_ELEMENTS: Final = 1 << 23
#: Seconds for all calls of a program together.
SECONDS: Final = 60.0


@dataclass(frozen=True)
class CallSequence:
    """Consecutive calls: the cache of each call is the one that the call before returned."""

    use: Use
    calls: tuple[ProgramCall, ...]

    @property
    def equal(self) -> bool:
        """Whether all tokens are equal, so that the run concerns every use."""
        return self.calls[0].equal

    @property
    def left(self) -> bool:
        """Whether sequences are padded at the left."""
        return self.calls[0].left


@dataclass(frozen=True, eq=False)
class ComputedCall:
    """A call with its arrays, and its outputs if it ran."""

    call: ProgramCall
    given: Mapping[str, Array]
    carried: Mapping[str, str]
    got: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class DecoderProgram:
    """A model with its interface."""

    skeleton: Skeleton
    interface: Interface
    groups: Sequence[Group]

    def runs(self) -> Iterator[CallSequence]:
        """One chat, a prompt in parts and a batch, as far as the graph's fixed sizes allow them."""
        form = self.groups[0].form
        new, batch = form.sequence_length, form.batch_size or 1
        if self.appends:
            yield _run("one chat", [new or 6], batch)
            return
        cached = any(group.form.cache != "none" for group in self.groups) and not self._empty_past
        new = new or self._fixed_length()
        after = [1, 1] if new in (None, 1) and cached else []
        if new is not None and new > 1 and cached and self._capacity(2 * new):
            after = [new]
        yield _run("one chat", [new or 6, *after], batch)
        # A loop whose lengths cannot be seen may generate more tokens than the call has.
        most = self._most_tokens() - (_ROWS if self.skeleton.unseen else 0)
        long = max(min(most - 1, _LONG), 9)
        alike = new or (long if cached else 6)
        words = f"a prompt of {alike} equal tokens"
        yield CallSequence("one chat", (ProgramCall(words, alike, (alike,) * batch, equal=True),))
        if cached and new is None:
            yield _run("chunked prompts", [5, 3, 1], batch)
            yield _run("one chat", [long, 1], batch)
        if cached and new in (None, 1) and most > _ROWS:
            words = f"one token on a past of {most - 1}"
            yield CallSequence("one chat", (ProgramCall(words, 1, (most,) * batch),))
        if form.batch_size is None and new is None and not any(g.form.chunks for g in self.groups):
            yield _batch(cached)
            if self.interface.configuration.padding_side == "left" and self._masked:
                yield _batch(cached, " padded at the left (tokenizer_config.json)")

    @property
    def _masked(self) -> bool:
        return any(self.interface.kind(name) == "mask" for name in self.interface.inputs)

    @property
    def _empty_past(self) -> bool:
        """Whether the graph fixes the past to 0 rows."""
        return any(
            known.dim(2) == 0
            for name, known in self.interface.inputs.items()
            if self.interface.is_past(name)
        )

    @cached_property
    def appends(self) -> bool:
        """Whether a node appends to the cache of another one, so that lengths differ by node."""
        return any(
            node.source is not None and not group.form.borrows
            for group in self.groups
            for node in group.nodes
        )

    def carries_all(self, group: Group, node: AttentionNode) -> bool:
        """Whether each call gets the caches of the call before that nodes of the group read."""
        borrows_outside = group.form.borrows and node.source is None
        return not (self.interface.loses_caches or borrows_outside or self.appends)

    def _capacity(self, tokens: int) -> bool:
        sizes = [group.form.capacity for group in self.groups if group.form.cache == "static"]
        return all(size is None or size >= tokens for size in sizes)

    def _most_tokens(self) -> int:
        """The most tokens that the graph, the configuration and caches of moderate size allow."""
        row = sum(
            int(group.form.fields["kv_num_heads"]) * int(group.form.fields["head_size"])
            for group in self.groups
            for node in group.nodes
            if not group.form.borrows or "past_key" in node.given
        )
        rows = self.skeleton.table_rows
        sizes = [
            MOST_TOKENS,
            rows,
            self.interface.configuration.context,
            _CACHE_ELEMENTS // max(row, 1),
        ]
        for form in (group.form for group in self.groups):
            sizes += [form.table_rows, form.capacity if form.cache == "static" else None]
        return min(filter(None, sizes))

    def _fixed_length(self) -> int | None:
        """The number of new tokens that an input of the graph fixes."""
        for name, declared in self.skeleton.inputs.items():
            if self.interface.kind(name) == "ids" and isinstance(declared.dim(-1), int):
                return declared.size(-1)
        return None

    def steps(self, run: CallSequence) -> list[ComputedCall]:
        """The calls of a run with their arrays. Raises :class:`CannotFeed`."""
        rows = max(_ROWS, *(call.total for call in run.calls))
        inputs = self.skeleton.inputs
        states = {n: o for n, o in self.interface.states.items() if n in inputs}
        return [
            ComputedCall(
                call,
                Feeder(self.interface, inputs, rows, call).arrays(number),
                states if number else {},
            )
            for number, call in enumerate(run.calls)
        ]


def _run(use: Use, lengths: Sequence[int], batch: int) -> CallSequence:
    calls, before = [], 0
    for new in lengths:
        on = f" on a past of {before}" if before else ""
        words = f"a prompt of {_tokens(new)}" if not before else f"{_tokens(new)}{on}"
        before += new
        calls.append(ProgramCall(words, new, (before,) * batch))
    return CallSequence(use, tuple(calls))


def _batch(cached: bool, padded: str = "") -> CallSequence:
    """Prompts of two lengths and one more token of each, padded at the right.

    They are padded at the left if ``padded`` says so.
    """
    prompts, left = f"prompts of 4 and 6 tokens{padded}", bool(padded)
    calls = [ProgramCall(prompts, 6, (4, 6), left=left)]
    if cached:
        calls.append(ProgramCall(f"one token each after {prompts}", 1, (5, 7), left=left))
    return CallSequence("batches", tuple(calls))


def _tokens(number: int) -> str:
    return "one token" if number == 1 else f"{number} tokens"


def job_of(model: bytes, steps: Sequence[ComputedCall], key: str) -> Job:
    """The calls of a run as a job for any runner."""
    files = {"model.onnx": model}
    plans = []
    for number, step in enumerate(steps):
        names = {}
        for index, (name, array) in enumerate(step.given.items()):
            names[name] = f"test_data_set_{number}/input_{index}.pb"
            files[names[name]] = tensor_file(array, name)
        plans.append(StepFiles(files=names, carry=dict(step.carried)))
    return Job(key, files, tuple(plans), 1, SECONDS, 1 << 28)


def with_outputs(steps: Sequence[ComputedCall], ran: Ran) -> list[ComputedCall]:
    """The steps with their outputs."""
    done = []
    for step, files in zip(steps, ran.runs[0], strict=True):
        got = {}
        for name, content in files.items():
            tensor = onnx.TensorProto.FromString(content)
            if tensor.data_type in _READABLE:
                got[name] = numpy_helper.to_array(tensor)
        done.append(ComputedCall(step.call, step.given, step.carried, got))
    return done


_READABLE: Final = frozenset([1, 2, 3, 6, 7, 10, 16])
