"""What a program does with a model: its calls, and what its graph computes for attention in them.

The model runs without its weights (:mod:`conformance.model.skeleton`). Lengths, positions, masks
and tables are held against what the operator means by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.base.words import listed
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.protocol import StepFiles
from conformance.model.feeds import Feeder, Interface, ProgramCall, tensor_file
from conformance.model.groups import Group
from conformance.model.nodes import AttentionNode
from conformance.model.skeleton import MOST_TOKENS, Skeleton
from conformance.model.stages import Use

Array = np.ndarray

#: Rows of a cache in a buffer where the graph leaves their number open.
_ROWS: Final = 32
#: Tokens of a long prompt.
_LONG: Final = 130
#: Elements of the keys that all caches together have in the longest call.
_CACHE_ELEMENTS: Final = 1 << 23
#: A bias of at most this hides a key: the least of those that graphs hide keys with.
_HIDDEN: Final = -1e4
#: Seconds for all calls of a program together.
SECONDS: Final = 60.0


@dataclass(frozen=True)
class Run:
    """Calls that follow each other, the cache of each being what the one before gave."""

    use: Use
    calls: tuple[ProgramCall, ...]


@dataclass(frozen=True)
class Finding:
    """Something that the model's graph gets wrong, and the nodes that it concerns."""

    sentence: str
    nodes: tuple[AttentionNode, ...]


@dataclass(frozen=True)
class Step:
    """A call with the arrays that it is given, and the outputs that it gave where it ran."""

    call: ProgramCall
    given: Mapping[str, Array]
    carried: Mapping[str, str]
    got: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """A model with what it takes."""

    skeleton: Skeleton
    interface: Interface
    groups: Sequence[Group]

    def runs(self) -> Iterator[Run]:
        """One chat, a prompt in parts and a batch, as far as the graph's fixed sizes allow them."""
        form = self.groups[0].form
        new, batch = form.sequence_length, form.batch_size or 1
        if self.appends:
            yield _run("one chat", [new or 6], batch)
            return
        cached = any(group.form.cache != "none" for group in self.groups)
        fixed = self._fixed_length()
        new = new or fixed
        after = [1, 1] if new in (None, 1) and cached else []
        first = new or 6
        if new == 1:
            after = [1, 1]
        if new is not None and new > 1 and cached and self._capacity(2 * new):
            after = [new]
        yield _run("one chat", [first, *after], batch)
        if new is None and cached:
            yield _run("chunked prompts", [5, 3, 1], batch)
        # A loop whose lengths cannot be seen may generate more tokens than the call has.
        most = 0 if self.skeleton.unseen else self._most_tokens()
        if cached and new is None and most > _ROWS:
            yield _run("one chat", [min(most - 1, _LONG), 1], batch)
        if cached and new in (None, 1) and most > _ROWS:
            words = f"one token on a past of {most - 1}"
            yield Run("one chat", (ProgramCall(words, 1, (most,) * batch),))
        if form.batch_size is None and new is None and not any(g.form.chunks for g in self.groups):
            calls = [ProgramCall("6 tokens, for sequences of 4 and 6 tokens", 6, (4, 6))]
            if cached:
                words = "one token each, for sequences of then 5 and 7 tokens"
                calls.append(ProgramCall(words, 1, (5, 7)))
            yield Run("batches", tuple(calls))

    @property
    def appends(self) -> bool:
        """Whether a node appends to the cache of another one, so that lengths differ by node."""
        return any(
            node.source is not None and not group.form.borrows
            for group in self.groups
            for node in group.nodes
        )

    def carries_all(self, group: Group) -> bool:
        """Whether each call gets the caches of the call before, as far as the group reads them."""
        lost = (n for n in self.interface.inputs if self.interface.is_cache(n))
        paired = all(name in self.interface.states for name in lost)
        return paired and not (group.form.borrows or self.appends)

    def _capacity(self, tokens: int) -> bool:
        sizes = [group.form.capacity for group in self.groups if group.form.cache == "static"]
        return all(size is None or size >= tokens for size in sizes)

    def _most_tokens(self) -> int:
        """As many tokens as the graph and the configuration allow, and as caches of a moderate size
        have."""
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

    def steps(self, run: Run) -> list[Step]:
        """The calls of a run with their arrays. Raises :class:`CannotFeed`."""
        longest = max(call.total for call in run.calls)
        feeder = Feeder(self.interface, self.skeleton.inputs, max(_ROWS, longest))
        states = {n: o for n, o in self.interface.states.items() if n in feeder.inputs}
        return [
            Step(call, feeder.arrays(call, number), states if number else {})
            for number, call in enumerate(run.calls)
        ]


def _run(use: Use, lengths: Sequence[int], batch: int) -> Run:
    calls, before = [], 0
    for new in lengths:
        on = f" on a past of {before}" if before else ""
        words = f"a prompt of {_tokens(new)}" if not before else f"{_tokens(new)}{on}"
        before += new
        calls.append(ProgramCall(words, new, (before,) * batch))
    return Run(use, tuple(calls))


def _tokens(number: int) -> str:
    return "one token" if number == 1 else f"{number} tokens"


def job_of(folder: Path, model: bytes, steps: Sequence[Step], key: str) -> Job:
    """The bundle of a run in a new ``folder``, for any runner."""
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model)
    plans = []
    for number, step in enumerate(steps):
        files = {}
        (folder / f"test_data_set_{number}").mkdir()
        for index, (name, array) in enumerate(step.given.items()):
            files[name] = f"test_data_set_{number}/input_{index}.pb"
            (folder / files[name]).write_bytes(tensor_file(array, name))
        plans.append(StepFiles(files=files, carry=dict(step.carried)))
    return Job(key, folder, tuple(plans), 1, SECONDS, 1 << 28)


def findings(program: Program, steps: Sequence[Step]) -> Iterator[Finding]:
    """What the graph computed otherwise than the operator means it, in the calls of a run."""
    found: dict[str, list[AttentionNode]] = {}
    for group in program.groups:
        for node in group.nodes:
            values = [_values(program, node, step) for step in steps]
            for sentence in (
                *_of_lengths(program, group, steps, values),
                *(_of_caches(node, steps) if program.carries_all(group) else ()),
                *(_of_tables(values) if group.form.fields.get("rotary") else ()),
                *_of_scales(values),
            ):
                found.setdefault(sentence, []).append(node)
    for sentence, nodes in found.items():
        yield Finding(sentence, tuple(nodes))


def _of_lengths(
    program: Program, group: Group, steps: Sequence[Step], values: Sequence[Mapping[str, Array]]
) -> Iterator[str]:
    """The first call whose lengths, positions or mask are wrong.

    An encoder beside a decoder has frames, whose number is not that of the program's tokens.
    """
    cached = any(each.form.cache != "none" for each in program.groups)
    if cached and group.form.cache == "none" and group.form.fields.get("causal") == 0:
        return
    for step, seen in zip(steps, values, strict=True):
        wrong = None if program.appends else next(_of_call(group, seen, step.call), None)
        if wrong is not None:
            yield f"{wrong}, for {step.call.words}"
            return


def _of_scales(values: Sequence[Mapping[str, Array]]) -> Iterator[str]:
    names = ("k_scale", "v_scale")
    scales = {name: [seen[name].astype(float) for seen in values if name in seen] for name in names}
    zero = [name for name, of in scales.items() if any(not _is_scale(each) for each in of)]
    anew = [
        name
        for name, of in scales.items()
        if any(not np.array_equal(one, two) for one, two in pairwise(of))
    ]
    if zero:
        has = "have" if zero[1:] else "has"
        yield f"{listed(zero)} {has} scales of 0, so what is read from the cache is 0"
    elif anew:
        is_, does = ("are", "do") if anew[1:] else ("is", "does")
        yield (
            f"{listed(anew)} {is_} computed anew in each call, and {does} not fit the tokens that"
            " are in the cache"
        )


def _is_scale(scale: Array) -> bool:
    return bool(np.isfinite(scale).all() and (scale != 0).all())


def _of_caches(node: AttentionNode, steps: Sequence[Step]) -> Iterator[str]:
    """The first call in which a node does not get what it gave in the call before."""
    for before, after in pairwise(steps):
        for part in ("key", "value"):
            past = node.inputs.get(f"past_{part}", "")
            gave = before.got.get(node.outputs.get(f"present_{part}", ""))
            gets = before.got.get(after.carried.get(past, ""), after.got.get(past))
            if gave is None or gets is None:
                continue
            if gave.shape != gets.shape or not _alike(gave, gets):
                yield (
                    f"past_{part} is not what present_{part} was in the call before,"
                    f" for {after.call.words}"
                )
                return


def _alike(one: Array, two: Array | float, atol: float = 1e-2) -> bool:
    other = np.asarray(two).astype(float)
    return bool(np.allclose(one.astype(float), other, atol=atol, equal_nan=True))


def _of_tables(values: Sequence[Mapping[str, Array]]) -> Iterator[str]:
    """Whether the rotary tables begin with position 0 in every call."""
    tables = [
        [seen[name] for seen in values if name in seen and seen[name].ndim == 2 and seen[name].size]
        for name in ("cos_cache", "sin_cache")
    ]
    if all(tables):
        cos, sin = (of[0][0] for of in tables)
        if _alike(cos, 0.0, 1e-3) and _alike(sin, 1.0, 1e-3):
            yield "cos_cache has sines, and sin_cache cosines"
        elif _alike(cos, 0.0, 1e-3):
            yield "cos_cache begins with 0, which is the sine of position 0"
        elif not _alike(sin, 0.0, 1e-3):
            yield "sin_cache does not begin with 0, the sine of position 0"
        cosines, sines = (of[0].astype(float) for of in tables)
        if cosines.shape == sines.shape:
            squares = cosines**2 + sines**2
            broken = np.flatnonzero(~np.isclose(squares, squares[0], rtol=1e-2).all(-1))
            if broken.size:
                yield f"row {broken[0]} of the rotary tables has no cosines with their sines"
    pairs = [pair for of in tables for pair in pairwise(of)]
    if any(not np.array_equal(one[: len(two)], two[: len(one)]) for one, two in pairs):
        yield (
            "the rotary tables have other rows in each call; the operator takes the row of each"
            " position itself, so they must begin with position 0"
        )


def _of_call(group: Group, seen: Mapping[str, Array], call: ProgramCall) -> Iterator[str]:
    """What is wrong in one call."""
    totals, last = np.asarray(call.totals), np.asarray(call.totals) - 1
    lengths = np.resize(seen.get("seqlens_k", last).astype(np.int64).ravel(), totals.shape)
    for got, wanted in zip(lengths, last, strict=True):
        if got != wanted:
            count = ": it is a count, and must be the index of the last token"
            is_count = np.array_equal(lengths, totals)
            yield f"seqlens_k is {got}, not {wanted}{count if is_count else ''}"
    total = int(seen.get("total_sequence_length", totals.max()).max(initial=0))
    buffer = group.form.cache == "static" and total > call.total
    if total != call.total and not buffer and not group.form.chunks:
        yield f"total_sequence_length is {total}, not {call.total}"
    positions = seen.get("position_ids", np.zeros(0))
    if group.form.fields.get("rotary") and positions.ndim == 2 and positions.shape[1] == call.new:
        for row, start, length in zip(positions, call.starts, totals, strict=False):
            for at, got in enumerate(row[: length - start]):
                if got != start + at:
                    yield f"position_ids is {int(got)} for token {at}, not {start + at}"
    bias = seen.get("attention_bias", np.zeros(0))
    for number, (start, length) in enumerate(zip(call.starts, totals, strict=True)):
        if bias.ndim != 4 or bias.shape[-2] < length - start or bias.shape[-1] < length:
            break
        row = bias[min(number, len(bias) - 1)].astype(float)[:, : length - start, :length]
        if (row.max(-1) <= _HIDDEN).any():
            yield "attention_bias hides all keys from a token"
        elif any((row[:, s, start + s] <= _HIDDEN).any() for s in range(length - start)):
            yield "attention_bias hides a token from itself"


def _values(program: Program, node: AttentionNode, step: Step) -> dict[str, Array]:
    """What a node got in a call, by the operator's names, as far as it is known."""
    known = {**program.skeleton.constants, **step.given, **step.got}
    return {parameter: known[name] for parameter, name in node.inputs.items() if name in known}


def with_outputs(steps: Sequence[Step], ran: Ran) -> list[Step]:
    """The steps with what they gave."""
    done = []
    for step, files in zip(steps, ran.runs[0], strict=True):
        got = {}
        for name, content in files.items():
            tensor = onnx.TensorProto.FromString(content)
            if tensor.data_type in _READABLE:
                got[name] = numpy_helper.to_array(tensor)
        done.append(Step(step.call, step.given, step.carried, got))
    return done


_READABLE: Final = frozenset([1, 2, 3, 6, 7, 10, 16])
