"""Where a model's graph, in the calls of a run, deviates from the operator's semantics.

Lengths, positions, masks, tables and caches are compared with their meaning in the operator, and
the results of a prompt in one call with the results of the same tokens in several calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.base.words import listed
from conformance.graph.nodes import AttentionNode
from conformance.model.calls.decoder_program import CallSequence, ComputedCall, DecoderProgram
from conformance.model.calls.feeds import ProgramCall
from conformance.model.calls.groups import Group

_TABLES: Final = ("cos_cache", "sin_cache")
#: A bias of at most this hides a key: the weakest bias with which graphs hide keys.
_HIDDEN: Final = -1e4
#: A column of sines with a larger one is of no frequency that rounding makes equal to the next.
_FAST: Final = 0.5
#: The largest difference of two cosines of the same angle.
_EVEN: Final = 0.02
#: The largest difference of results for the same token, as a share of the largest result.
_SAME: Final = 0.05


@dataclass(frozen=True)
class GraphDefect:
    """An error of the model's graph, and the nodes that it concerns.

    ``by_result``: the error shows in the results of the nodes, so that it may be the runtime's
    fault.
    """

    sentence: str
    nodes: tuple[AttentionNode, ...]
    by_result: bool = False


def findings(program: DecoderProgram, steps: Sequence[ComputedCall]) -> Iterator[GraphDefect]:
    """Where the graph deviates from the operator's semantics in the calls of a run."""
    found: dict[str, list[AttentionNode]] = {}
    tables: dict[tuple[str, ...], list[str]] = {}  # layers share them
    for group in program.groups:
        for node in group.nodes:
            values = [_values(program, node, step) for step in steps]
            own = tuple(node.inputs.get(name, "") for name in _TABLES)
            keeps = program.carries_all(group, node) and not group.form.borrows
            rotates = bool(group.form.fields.get("rotary"))
            if rotates and own not in tables:
                tables[own] = [*_of_tables(values)]
            for sentence in (
                *_of_lengths(program, group, steps, values),
                *(_of_caches(node, steps, group.form.window) if keeps else ()),
                *(tables[own] if rotates else ()),
                *_of_scales(values),
                *_of_borrowing(node, group),
                *_of_rotation(program, group, node, steps[0], values[0]),
            ):
                found.setdefault(sentence, []).append(node)
    for sentence, nodes in found.items():
        yield GraphDefect(sentence, tuple(nodes))


def disagreements(
    program: DecoderProgram, runs: Sequence[tuple[CallSequence, Sequence[ComputedCall]]]
) -> tuple[list[tuple[CallSequence, GraphDefect]], bool]:
    """The runs whose results differ from the longest prompt, which has the same tokens.

    A run is listed if attention gives a token another result in one of its calls. The second value
    says whether all nodes could be compared on a past.
    """
    from_start = [each for each in runs if not each[0].equal and each[0].calls[0].past == 0]
    if not from_start or program.skeleton.mixes:
        return [], False
    reference = max((steps[0] for _, steps in from_start), key=lambda step: step.call.new)
    nodes = [(group, node) for group in program.groups for node in group.nodes]
    agree = {
        (node.name, step): _agrees(program, group, node, step, reference)
        for group, node in nodes
        for _, steps in from_start
        for step in steps
    }
    found = []
    for run, steps in from_start:
        first: dict[str, list[AttentionNode]] = {}
        for _, node in nodes:
            wrong = next((step for step in steps if agree[node.name, step] is False), None)
            if wrong is not None:
                first.setdefault(wrong.call.words, []).append(node)
        for words, those in first.items():
            same = f"the same tokens in {reference.call.words}"
            sentence = f"its results for {words} are not those for {same}"
            found.append((run, GraphDefect(sentence, tuple(those), by_result=True)))
    compared = {name for (name, step), each in agree.items() if step.call.past and each is not None}
    return found, compared == {node.name for _, node in nodes}


def _agrees(
    program: DecoderProgram,
    group: Group,
    node: AttentionNode,
    step: ComputedCall,
    reference: ComputedCall,
) -> bool | None:
    """Whether the tokens of a call have the same results as in ``reference``, except for rounding.

    The results compared are those of the node, or, if they cannot be seen, those of the model. None
    if it cannot be decided.
    """
    fields = group.form.fields
    quantised = {fields.get("k_quant_type"), fields.get("v_quant_type")} - {None, "NONE"}
    causal = group.form.cache != "none" and fields.get("causal") != 0
    if quantised or not causal or not program.carries_all(group, node):
        return None
    own, same = node.outputs["output"], None
    others = program.interface.outputs.keys() - program.interface.states.values()
    for name in [own] if own in step.got else others & step.got.keys() & reference.got.keys():
        got, wanted = step.got[name].astype(float), reference.got[name][0].astype(float)
        if got.shape[:2] != step.call.positions.shape or len(wanted) != reference.call.new:
            continue
        for row, at, padding in zip(got, step.call.positions, step.call.padding, strict=True):
            tokens = at[~padding]
            if tokens.max(initial=0) < len(wanted):
                atol = _SAME * np.nanmax(np.abs(wanted[tokens]), initial=0)
                same = _alike(row[~padding], wanted[tokens], atol) and same is not False
    return same


def _of_rotation(
    program: DecoderProgram,
    group: Group,
    node: AttentionNode,
    step: ComputedCall,
    seen: Mapping[str, Array],
) -> Iterator[str]:
    """Whether queries and keys are rotated twice, never, or at wrong positions.

    It shows in how those of equal tokens differ: a rotation keeps the length of a vector, and the
    angle to the next one.
    """
    rotated: dict[str, bool] = {}
    for name in ("key", "query") if step.call.equal and step.call.new > 1 else ():
        rows = seen.get(name, np.zeros(0))[:1].astype(float)
        if node.inputs.get(name) not in step.got or rows.shape[:2] != (1, step.call.new):
            continue
        heads = rows.reshape(step.call.new, -1, int(group.form.fields["head_size"]))
        lengths = np.linalg.norm(heads, axis=-1)
        cosines = (heads[1:] * heads[:-1]).sum(-1) / np.maximum(np.square(lengths[1:]), 1e-9)
        alike = np.allclose(lengths, lengths[:1], rtol=1e-2)
        still = _alike(rows, rows[:, :1], _SAME * np.abs(rows).max())
        rotated[name] = alike and not still
        uneven = np.flatnonzero(~np.isclose(cosines, cosines[:1], atol=_EVEN).all(-1))
        if rotated[name] and group.form.fields.get("rotary"):
            yield f"{name} is rotated before the node, which rotates it again (do_rotary 1)"
            return
        if rotated[name] and uneven.size:
            yield (
                f"{name} is rotated before the node, and from token {uneven[0]} to the next by"
                " another angle than from the first to the second"
            )
            return
        if not alike:  # something else depends on the position, too
            return
    if len({*rotated.values()}) > 1:
        turned, other = sorted(rotated, key=lambda name: not rotated[name])
        yield f"{turned} is rotated before the node, and {other} is not"
    by_nodes = any(each.form.fields.get("rotary") for each in program.groups)
    never = rotated and not any(rotated.values()) and not by_nodes
    if never and program.interface.configuration.rotates:
        yield "config.json has a rotary base, and neither the node nor the graph rotates"


def _of_lengths(
    program: DecoderProgram,
    group: Group,
    steps: Sequence[ComputedCall],
    values: Sequence[Mapping[str, Array]],
) -> Iterator[str]:
    """The first call whose lengths, positions or mask are wrong.

    An encoder beside a decoder has frames, whose number differs from that of the program's tokens.
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


def _of_caches(
    node: AttentionNode, steps: Sequence[ComputedCall], window: int | None
) -> Iterator[str]:
    """The first call in which a node's past is not its present of the call before.

    Only tokens that its window reaches are compared.
    """
    for before, after in pairwise(steps):
        for part in ("key", "value"):
            past = node.inputs.get(f"past_{part}", "")
            gave = before.got.get(node.outputs.get(f"present_{part}", ""))
            gets = before.got.get(after.carried.get(past, ""), after.got.get(past))
            if gave is None or gets is None:
                continue
            if window and gets.ndim == gave.ndim == 4 and gets.shape[2] >= window - 1:
                gave = gave[:, :, -gets.shape[2] :]
            if gave.shape != gets.shape or not _alike(gave, gets):
                yield (
                    f"past_{part} is not what present_{part} was in the call before,"
                    f" for {after.call.words}"
                )
                return


def _alike(one: Array, two: Array | float, atol: float = 1e-2) -> bool:
    other = np.asarray(two).astype(float)
    return bool(np.allclose(one.astype(float), other, atol=atol, equal_nan=True))


def _of_borrowing(node: AttentionNode, group: Group) -> Iterator[str]:
    """Whether a node takes keys as keys and values as values, and both from one node."""
    wrong = [
        f"{past} is {present} of {of}"
        for past, (present, of) in node.origins.items()
        if present.removeprefix("present") != past.removeprefix("past")
    ]
    if wrong:
        yield listed(wrong)
    owners = {of for _, of in node.origins.values()}
    if len(owners) > 1:
        yield f"past_key and past_value are of {listed(sorted(owners))}"
    ends = [re.split(r"\W|_", node.inputs.get(f"past_{part}", ""))[-1] for part in ("key", "value")]
    if group.form.borrows and ends == ["value", "key"]:
        yield f"past_key is {node.inputs['past_key']}, and past_value {node.inputs['past_value']}"


def _of_tables(values: Sequence[Mapping[str, Array]]) -> Iterator[str]:
    """Whether the rotary tables have a frequency in each column, and begin with position 0.

    They must do so in every call.
    """
    tables = [
        [seen[name] for seen in values if name in seen and seen[name].ndim == 2 and seen[name].size]
        for name in _TABLES
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
            steps = cosines[1:] * cosines[:-1] + sines[1:] * sines[:-1]
            uneven = np.flatnonzero(~np.isclose(steps, steps[:1], atol=_EVEN).all(-1))
            if uneven.size and not broken.size:
                at = uneven[0]
                yield f"rows {at} and {at + 1} of the rotary tables are not one position apart"
            double = (cosines[:, 1:] == cosines[:, :-1]) & (sines[:, 1:] == sines[:, :-1])
            same = np.flatnonzero(double.all(0) & (np.abs(sines[:, 1:]).max(0) > _FAST))
            if same.size:
                yield f"columns {same[0]} and {same[0] + 1} of the rotary tables are the same"
            if broken.size:
                yield f"row {broken[0]} of the rotary tables has no cosines with their sines"
    pairs = [pair for of in tables for pair in pairwise(of)]
    if any(not np.array_equal(one[: len(two)], two[: len(one)]) for one, two in pairs):
        yield (
            "the rotary tables have other rows in each call; the operator takes the row of each"
            " position itself, so they must begin with position 0"
        )


def _of_call(group: Group, seen: Mapping[str, Array], call: ProgramCall) -> Iterator[str]:
    """The errors in one call.

    A graph may leave tokens before the window out of the past.
    """
    rows = seen["past_key"].shape[2] if "past_key" in seen and not group.form.borrows else call.past
    cut = call.past - rows if group.form.cache == "growing" else 0
    if cut > 0 and group.form.window and rows >= group.form.window - 1:
        call = replace(call, totals=tuple(total - cut for total in call.totals))
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


def _values(program: DecoderProgram, node: AttentionNode, step: ComputedCall) -> dict[str, Array]:
    """The inputs of a node in a call, by the operator's names, as far as they are known."""
    known = {**program.skeleton.constants, **step.given, **step.got}
    return {parameter: known[name] for parameter, name in node.inputs.items() if name in known}
