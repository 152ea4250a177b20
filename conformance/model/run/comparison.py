"""Compares the results of a program's calls with those of dense prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.sequences import CallSequence, ProgramCall, TokenHistory
from conformance.model.run.dense_prompts import DensePrompts

#: Why a call is not compared whose tables are those of longer prompts than the calls before had.
BY_LENGTH: Final = "its results depend on the number of all tokens, as with tables for long prompts"
_NO_ROWS: Final = "no output has a row for each token"
_OF_PAIRS: Final = "its scores have columns of padding"
#: The largest error of a right result, as a share of the largest result.
_TOLERANCE: Final[Mapping[str, float]] = {"float32": 3e-4, "float16": 3e-3, "bfloat16": 2.4e-2}
#: That of a model whose products quantise their inputs.
_QUANTISED: Final = 1e-2
#: That of a model whose caches are codes, of which a few are outliers beyond their range.
_OF_CODES: Final = 2.5e-2


@dataclass(frozen=True)
class Difference:
    """A call whose results are not those of a dense prompt.

    ``number`` is its place among the calls, ``error`` the largest error of ``output``, whose
    largest element is ``largest``.
    """

    number: int
    call: ProgramCall
    output: str
    error: float
    largest: float


@dataclass(frozen=True)
class Compared:
    """What a comparison of calls gave: the first difference, if there is one.

    ``calls`` is the number of calls that could be compared, and ``why`` says why others could not.
    """

    calls: int
    difference: Difference | None = None
    why: str = ""


def compared(
    program: DecoderProgram,
    run: CallSequence,
    results: Sequence[Mapping[str, Array]],
    prompts: DensePrompts,
) -> Compared:
    """Compare the ``results`` of each call of a sequence. Raises :class:`NotComputed`."""
    if program.skeleton.mixes:
        return Compared(0, why="an operator quantises its input by all tokens of the call")
    number, why = 0, ""
    for at, (call, got) in enumerate(zip(run.calls, results, strict=False)):
        if len(run.calls) > 1 and not run.buffers and _adds_more(program, call, got):
            return Compared(number, why="a call adds more rows to the cache than it has tokens")
        found = [*_of_call(program, run, at, got, prompts)]
        wrong = [each for each in found if isinstance(each, Difference)]
        if wrong:
            return Compared(number, max(wrong, key=lambda each: each.error / each.largest))
        number += any(each is None for each in found)
        why = next((each for each in found if isinstance(each, str)), why)
    if number < len(run.calls) and not why:
        why = _NO_ROWS
    return Compared(number, why=why)


def _adds_more(program: DecoderProgram, call: ProgramCall, got: Mapping[str, Array]) -> bool:
    """Whether a growing cache has more rows after a call than the program gave tokens."""
    for past, present in program.interface.states.items():
        known = program.skeleton.inputs.get(past)
        if known is None or not isinstance(known.dim(-2), str) or not program.grows(past):
            continue
        cache = got.get(present)
        if cache is not None and cache.ndim > 3 and cache.shape[-2] > call.total:
            return True
    return False


def _of_call(
    program: DecoderProgram,
    run: CallSequence,
    number: int,
    got: Mapping[str, Array],
    prompts: DensePrompts,
) -> Iterator[Difference | str | None]:
    """For each comparable output and sequence: a difference, why it is none, or None if right."""
    call, longest = run.calls[number], run.longest
    for row, history in enumerate(call.histories):
        real = ~call.padding[row]
        for name in program.results & got.keys():
            array, whole = got[name], prompts.of(longest[history]).get(name)
            if whole is None or array.dtype.kind not in "fV":
                continue
            layout = _layout(whole.shape, len(longest[history]))
            rows = layout and _of_tokens(array, layout, call.batch, call.new)
            if layout and rows is not None:
                values, places = rows[row][real].astype(np.float64), call.places[row][real]
                if len(places):
                    of = name, layout, values, places
                    yield _judged(program, run, number, *of, history, prompts)
                continue
            first = not call.past and call.batch == 1 and call.columns.all()
            last = None if first else _last(call, row, array)
            if not first and last is None:
                continue
            prompts.prepare(_every(run))
            own = prompts.of(history)[name]
            values = array if last is None else last
            if own.size == values.size:
                limit = _limit(program, name, prompts.of(longest[history]))
                limit += prompts.rounding(history, name)
                values = values.astype(np.float64)
                yield _difference(number, call, name, values, own.reshape(values.shape), limit)


#: The axis of tokens in an output, and that of sequences; None: tokens of all are in one axis.
_Layout = tuple[int, int | None]


def _layout(shape: Sequence[int], tokens: int) -> _Layout | None:
    """The layout of an output by its shape in a prompt of so many tokens; None without tokens."""
    found = [axis for axis, size in enumerate(shape) if size == tokens]
    if not found:
        return None
    at = 1 if 1 in found and shape[0] == 1 else found[0]
    return at, next((axis for axis, size in enumerate(shape) if size == 1 and axis != at), None)


def _of_tokens(array: Array, layout: _Layout, batch: int, new: int) -> Array | None:
    """An output as [batch, new, …], None if it has not so many tokens."""
    at, of_batch = layout
    if max(at, of_batch or 0) >= array.ndim:
        return None
    if of_batch is None:
        if array.shape[at] != batch * new:
            return None
        moved = np.moveaxis(array, at, 0)
        return moved.reshape(batch, new, *moved.shape[1:])
    if array.shape[at] != new or array.shape[of_batch] != batch:
        return None
    return np.moveaxis(array, (of_batch, at), (0, 1))


def _in_prompt(array: Array, layout: _Layout, history: TokenHistory) -> Array:
    """An output of a dense prompt as [tokens, …]."""
    rows = _of_tokens(array, layout, 1, len(history))
    assert rows is not None
    found: Array = rows[0]
    return found


def _last(call: ProgramCall, row: int, array: Array) -> Array | None:
    """The result of one sequence for the last token; None for other values, and for padding."""
    if array.ndim < 2 or array.shape[0] != call.batch or call.padding[row, -1]:
        return None
    found: Array = array[row]
    return found if array.ndim == 2 or array.shape[1] == 1 else None


def _judged(
    program: DecoderProgram,
    run: CallSequence,
    number: int,
    name: str,
    layout: _Layout,
    values: Array,
    places: Array,
    history: TokenHistory,
    prompts: DensePrompts,
) -> Difference | str | None:
    """Compare the results of some tokens with those of the longest prompt that continues them.

    Where a graph's results depend on how many tokens follow, as with tables that change with the
    length, they are compared with the prompt that ends with the call.
    """
    call, longest = run.calls[number], run.longest[history]
    whole = prompts.of(longest)
    of_pairs = values.shape[1:] != _in_prompt(whole[name], layout, longest).shape[1:]
    if of_pairs and (values.shape[-1] != call.total or not call.columns.all()):
        return _OF_PAIRS

    def found(of: TokenHistory) -> Difference | None:
        limit = _limit(program, name, whole) + prompts.rounding(of, name)
        want = _as_wide(_in_prompt(prompts.of(of)[name], layout, of)[places], values)
        return _difference(number, call, name, values, want, limit)

    wrong = found(longest)
    if wrong is None:
        return None
    before = [h for c in run.calls[:number] for h in c.histories if history[: len(h)] == h]
    before = [*before[:1], *before[-1:]]
    first = history[:1]  # it attends to itself alone, by whichever tables
    prompts.prepare([history, *before, first])
    if program.cached and not _agree(program, name, layout, first, longest, prompts):
        return wrong
    if not all(_agree(program, name, layout, each, history, prompts) for each in before):
        return found(history) and BY_LENGTH  # the cache has rows of other tables
    if longest != history and not _agree(program, name, layout, history, longest, prompts):
        return found(history)
    return wrong


def _as_wide(rows: Array, others: Array) -> Array:
    """Rows without the scores of later keys, if others have less of them."""
    return rows[..., : others.shape[-1]] if others.ndim > 1 else rows


def _every(run: CallSequence) -> Iterator[TokenHistory]:
    """The prompts that end with a call."""
    return (history for call in run.calls for history in call.histories)


def _agree(
    program: DecoderProgram,
    name: str,
    layout: _Layout,
    short: TokenHistory,
    long: TokenHistory,
    prompts: DensePrompts,
) -> bool:
    """Whether two dense prompts give the tokens of the shorter one the same results."""
    one = _in_prompt(prompts.of(short)[name], layout, short)
    two = _as_wide(_in_prompt(prompts.of(long)[name], layout, long)[: len(short)], one)
    limit = _limit(program, name, prompts.of(long))
    return bool(np.nanmax(np.abs(one - two), initial=0) <= limit)


def _limit(program: DecoderProgram, name: str, whole: Mapping[str, Array]) -> float:
    """The largest error of a right element of an output."""
    finite = np.abs(whole[name][np.isfinite(whole[name])])
    return tolerance_of(program) * float(finite.max(initial=0)) + 1e-6


def tolerance_of(program: DecoderProgram) -> float:
    """The largest error of a right result, as a share of the largest result of its output.

    It follows from the types that the model computes in.
    """
    return max(
        *(_TOLERANCE[dtype] for dtype in ("float32", *program.halves)),
        _QUANTISED if program.quantises else 0.0,
        _OF_CODES if program.has_codes else 0.0,
    )


def _difference(
    number: int,
    call: ProgramCall,
    name: str,
    got: Array,
    wanted: Array,
    limit: float,
) -> Difference | None:
    """The difference of two arrays; None if no element exceeds its limit, or all are infinite."""
    want = np.asarray(wanted, np.float64)
    known = np.isfinite(want)
    with np.errstate(invalid="ignore"):
        error = np.where(known, np.abs(got - want), 0.0)
    error[np.isnan(error)] = np.inf
    if not (error > limit).any():
        return None
    largest = float(np.abs(want[known]).max(initial=0)) or 1.0
    return Difference(number, call, name, float(error.max()), largest)
