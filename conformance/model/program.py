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

from conformance.base.array_types import NUMPY
from conformance.bundle.contents import tensor_file
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Ran
from conformance.harness.protocol import StepFiles
from conformance.model.feeds import Interface, fill_of, states_of, word_of
from conformance.model.forms import Form
from conformance.model.groups import Group
from conformance.model.nodes import AttentionNode
from conformance.model.shapes import ValueType
from conformance.model.skeleton import Skeleton, rotary_table
from conformance.model.stages import Use

Array = np.ndarray

#: Rows of a cache in a buffer where the graph leaves their number open.
_ROWS: Final = 32
#: Seconds for all calls of a program together.
SECONDS: Final = 60.0


@dataclass(frozen=True)
class ProgramCall:
    """One call: ``new`` tokens for each sequence, after which sequence b has ``totals[b]`` tokens.

    The shorter sequences of a prompt are padded at the right.
    """

    words: str
    new: int
    totals: tuple[int, ...]

    @property
    def total(self) -> int:
        """Tokens of the longest sequence after the call."""
        return max(self.totals)

    @property
    def past(self) -> int:
        """Rows of a growing past: the tokens before the call."""
        return self.total - self.new


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


class CannotFeed(ValueError):
    """Nothing tells what an input is; the message names it."""


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
        if form.batch_size is None and new is None and not any(g.form.chunks for g in self.groups):
            words = "6 tokens, for sequences of 6 and 4 tokens"
            yield Run("batches", (ProgramCall(words, 6, (6, 4)),))

    @property
    def appends(self) -> bool:
        """Whether a node appends to the cache of another one, so that lengths differ by node."""
        return any(
            node.source is not None and not group.form.borrows
            for group in self.groups
            for node in group.nodes
        )

    def _capacity(self, tokens: int) -> bool:
        sizes = [group.form.capacity for group in self.groups if group.form.cache == "static"]
        return all(size is None or size >= tokens for size in sizes)

    def _fixed_length(self) -> int | None:
        """The number of new tokens that an input of the graph fixes."""
        for name, declared in self.skeleton.inputs.items():
            if fill_of(self.interface, name) == "ids" and isinstance(declared.dim(-1), int):
                return declared.size(-1)
        return None

    def steps(self, run: Run) -> list[Step]:
        """The calls of a run with their arrays. Raises :class:`CannotFeed`."""
        states = {n: o for n, o in states_of(self.interface).items() if n in self.skeleton.inputs}
        steps = []
        for number, call in enumerate(run.calls):
            symbols = dict(self._symbols(call))
            given = {
                name: self._array(name, declared, call, symbols, number)
                for name, declared in self.skeleton.inputs.items()
                if not (number and name in states)
            }
            steps.append(Step(call, given, states if number else {}))
        return steps

    def _symbols(self, call: ProgramCall) -> Iterator[tuple[str, int]]:
        """What the names of dims stand for in a call, by the inputs whose meaning is known."""
        for name, declared in self.skeleton.inputs.items():
            shape = self._known_shape(name, declared, call)
            for dim, size in zip(declared.dims or (), shape or (), strict=False):
                if isinstance(dim, str):
                    yield dim, size

    def _known_shape(
        self, name: str, declared: ValueType, call: ProgramCall
    ) -> tuple[int, ...] | None:
        batch, fill = len(call.totals), fill_of(self.interface, name)
        rank = len(declared.dims) if declared.dims is not None else None
        if name in self.interface.takers:
            parameter, node, form = self.interface.takers[name]
            kv, size = form.fields["kv_num_heads"], form.fields["head_size"]
            rows = call.new if node.type("key").dim(1) != 0 else 0
            cached = self._rows(form, call)
            known = {
                "query": (batch, call.new, -1),
                "key": (batch, rows, -1),
                "value": (batch, rows, -1),
                "past_key": (batch, kv, cached, node.type("past_key").size(3) or size),
                "past_value": (batch, kv, cached, node.type("past_value").size(3) or size),
                "seqlens_k": (batch,),
                "query_seqlens": (batch,),
                "position_ids": (batch, call.new),
                "attention_bias": (batch, form.fields["num_heads"], call.new, call.total),
            }.get(parameter)
            if known is not None and rank in (None, len(known)):
                return known
        if rank != 2:
            return None
        widths = {"ids": call.new, "positions": call.new, "mask": call.total}
        return (batch, widths[fill]) if fill in widths else None

    def _rows(self, form: Form, call: ProgramCall) -> int:
        if form.cache == "window":
            return form.capacity or (form.window or _ROWS) + form.slack
        if form.cache == "static":
            return form.capacity or _ROWS
        return call.total if form.borrows else call.past

    def _array(
        self,
        name: str,
        declared: ValueType,
        call: ProgramCall,
        symbols: Mapping[str, int],
        number: int,
    ) -> Array:
        """What a call gives to an input."""
        if declared.dtype is None:
            kind = word_of(self.interface.types.get(name, 0))
            raise CannotFeed(f"its input {name} is {kind}, which no runner can pass on")
        shape = self._shape(name, declared, call, symbols)
        dtype, fill = NUMPY[declared.dtype], fill_of(self.interface, name)
        array = np.zeros(shape, dtype)
        batch = len(call.totals)
        if fill == "ids":
            array[...] = np.arange(array.size).reshape(shape) % 7 + 1
        elif fill == "mask":
            self._mask(array, call)
        elif fill == "positions":
            places = np.arange(call.past, call.past + call.new)
            array[...] = places if shape and shape[-1] == call.new else call.past
        elif fill == "last":
            per_sequence = np.asarray(call.totals, dtype) - 1
            array[...] = per_sequence.reshape(shape) if array.size == batch else call.total - 1
        elif fill in ("P", "T", "S", "one"):
            array[...] = {"P": call.past, "T": call.total, "S": call.new, "one": 1}[fill]
        elif fill is None and name not in self._pasts():
            self._draw(name, array, number)
        return array

    def _pasts(self) -> set[str]:
        takers = self.interface.takers.items()
        named = {name for name, (what, *_) in takers if what in ("past_key", "past_value")}
        borrowed = {n for n in named if self.interface.takers[n][2].borrows}
        return (named - borrowed) | states_of(self.interface).keys()

    def _mask(self, array: Array, call: ProgramCall) -> None:
        array[..., : call.total] = 1
        for row, total in enumerate(call.totals[: len(array) if array.ndim > 1 else 0]):
            array[row, ..., total : call.total] = 0

    def _draw(self, name: str, array: Array, number: int) -> None:
        parameter = self._taken_as(name)
        draws = np.random.default_rng([number, *name.encode()])
        if array.dtype.kind in "iub" and parameter not in ("past_key", "past_value"):
            raise CannotFeed(f"nothing tells what its input {name} is")
        if parameter in ("cos_cache", "sin_cache"):
            array[...] = rotary_table(array.shape[0], array.shape[1], parameter)
        elif parameter in ("k_scale", "v_scale"):
            array[...] = 0.01
        elif array.dtype.kind not in "iub":
            array[...] = draws.uniform(-1, 1, array.shape).astype(array.dtype)

    def _shape(
        self, name: str, declared: ValueType, call: ProgramCall, symbols: Mapping[str, int]
    ) -> tuple[int, ...]:
        if declared.dims is None:
            raise CannotFeed(f"the rank of its input {name} is not declared")
        known = self._known_shape(name, declared, call)
        plain = (len(call.totals), call.new)
        named = (("past", call.past), ("total", call.total), ("batch", plain[0]))
        shape = []
        for axis, dim in enumerate(declared.dims):
            size = known[axis] if known is not None else -1
            if isinstance(dim, int):
                size = dim
            elif size < 0 and isinstance(dim, str) and dim in symbols and symbols[dim] >= 0:
                size = symbols[dim]
            elif size < 0 and self._taken_as(name) in ("cos_cache", "sin_cache") and axis == 0:
                size = max(_ROWS, call.total)
            elif size < 0:
                size = self._unnamed(name, axis, len(declared.dims), plain)
                words = str(dim).lower()
                size = next((n for word, n in named if word in words), size)
                if size < 0:
                    raise CannotFeed(f"the size of its input {name} cannot be told")
            shape.append(size)
        return tuple(shape)

    def _taken_as(self, name: str) -> str:
        return self.interface.takers[name][0] if name in self.interface.takers else ""

    def _unnamed(self, name: str, axis: int, rank: int, plain: tuple[int, int]) -> int:
        """The size of a dim that nothing names: batch and new tokens come first."""
        if name in self.interface.takers:
            _, node, form = self.interface.takers[name]
            size, heads = form.fields["head_size"], form.fields["num_heads"]
            kv = form.fields["kv_num_heads"]
            if axis == rank - 1 and self._taken_as(name) == "query":
                return int(size * (heads if "key" in node.inputs else heads + 2 * kv))
            if axis == rank - 1 and self._taken_as(name) in ("key", "value"):
                return int(size * kv)
        if axis < min(2, rank - 1):
            return plain[axis]
        return plain[0] if axis == 0 else -1


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
            for sentence in _of_node(program, group, node, steps):
                found.setdefault(sentence, []).append(node)
    for sentence, nodes in found.items():
        yield Finding(sentence, tuple(nodes))


def _of_node(
    program: Program, group: Group, node: AttentionNode, steps: Sequence[Step]
) -> Iterator[str]:
    values = [_values(program, node, step) for step in steps]
    for step, seen in zip(steps, values, strict=True):
        wrong = None if program.appends else next(_of_call(group, seen, step.call), None)
        if wrong is not None:
            yield f"{wrong}, for {step.call.words}"
            break
    if not group.form.borrows and not program.appends:
        yield from _of_caches(node, steps)
    if group.form.fields.get("rotary"):
        yield from _of_tables(values)
    for parameter in ("k_scale", "v_scale"):
        scales = [seen[parameter] for seen in values if parameter in seen]
        if any(
            (scale == 0).any() or not np.isfinite(scale.astype(float)).all() for scale in scales
        ):
            yield f"{parameter} has scales of 0, so what is read from the cache is 0"
        elif any(not np.array_equal(one, two) for one, two in pairwise(scales)):
            yield (
                f"{parameter} is computed anew in each call, and does not fit the tokens that are"
                " in the cache"
            )


def _of_caches(node: AttentionNode, steps: Sequence[Step]) -> Iterator[str]:
    """Whether a node gets in each call what it gave in the call before."""
    for before, after in pairwise(steps):
        for part in ("key", "value"):
            past = node.inputs.get(f"past_{part}", "")
            gave = before.got.get(node.outputs.get(f"present_{part}", ""))
            gets = before.got.get(after.carried.get(past, ""), after.got.get(past))
            if gave is None or gets is None:
                continue
            alike = gave.shape == gets.shape and np.allclose(
                gave.astype(float), gets.astype(float), atol=1e-2, equal_nan=True
            )
            if not alike:
                yield (
                    f"past_{part} is not what present_{part} was in the call before,"
                    f" for {after.call.words}"
                )


def _of_tables(values: Sequence[Mapping[str, Array]]) -> Iterator[str]:
    """Whether the rotary tables begin with position 0 in every call."""
    names = ("cos_cache", "sin_cache")
    first = [values[0][name] for name in names if name in values[0]]
    if len(first) == 2 and _begins_with(first[0], 0.0) and _begins_with(first[1], 1.0):
        yield "cos_cache has sines, and sin_cache cosines"
    for name in names:
        tables = [seen[name] for seen in values if name in seen]
        for one, two in pairwise(tables):
            rows = min(len(one), len(two))
            if one.ndim == two.ndim == 2 and not np.array_equal(one[:rows], two[:rows]):
                yield (
                    "the rotary tables have other rows in each call; the operator takes the row of"
                    " each position itself, so they must begin with position 0"
                )
                return


def _begins_with(table: Array, value: float) -> bool:
    first = table[0].astype(float) if table.ndim == 2 and len(table) else np.zeros(0)
    return bool(first.size and np.allclose(first, value, atol=1e-3))


def _of_call(group: Group, seen: Mapping[str, Array], call: ProgramCall) -> Iterator[str]:
    """What is wrong in one call."""
    totals = np.asarray(call.totals)
    lengths = seen.get("seqlens_k")
    if lengths is not None and not np.array_equal(_spread(lengths, totals), totals - 1):
        got = _spread(lengths, totals)
        at = int(np.flatnonzero(got != totals - 1)[0])
        count = ": it is a count, and must be the index of the last token"
        yield (
            f"seqlens_k is {got[at]}, not {totals[at] - 1}"
            f"{count if np.array_equal(got, totals) else ''}"
        )
    total = seen.get("total_sequence_length")
    if total is not None and total.size == 1:
        value = int(total.ravel()[0])
        buffer = group.form.cache == "static" and value > call.total
        if value != call.total and not buffer and not group.form.chunks:
            yield f"total_sequence_length is {value}, not {call.total}"
    positions = seen.get("position_ids")
    if positions is not None and group.form.fields.get("rotary") and positions.ndim == 2:
        expected = np.arange(call.past, call.total)
        for row, length in zip(positions, totals, strict=False):
            valid = max(length - call.past, 0)
            got = row[:valid]
            if len(row) == call.new and not np.array_equal(got, expected[:valid]):
                at = int(np.flatnonzero(got != expected[:valid])[0])
                yield f"position_ids is {int(got[at])} for token {at}, not {int(expected[at])}"
                break
    bias = seen.get("attention_bias")
    if bias is not None and bias.ndim == 4 and len({*call.totals}) == 1:
        reach = bias.astype(float)[..., : call.new, : call.total]
        if reach.size and (reach.max(-1) < -1e4).any():
            yield "attention_bias hides all keys from a token"
        elif reach.size and bias.shape[-1] >= call.total:
            own = np.stack([reach[..., s, call.past + s] for s in range(reach.shape[-2])])
            if (own < -1e4).any():
                yield "attention_bias hides a token from itself"


def _spread(lengths: Array, totals: Array) -> Array:
    flat = lengths.astype(np.int64).ravel()
    return flat if flat.size == totals.size else np.resize(flat, totals.shape)


def _values(program: Program, node: AttentionNode, step: Step) -> dict[str, Array]:
    """What a node got in a call, by the operator's names, as far as it is known."""
    found = {}
    for parameter, name in node.inputs.items():
        for values in (step.got, step.given, program.skeleton.constants):
            if name in values:
                found[parameter] = values[name]
                break
    return found


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
