"""Names the cause of a wrong result: an operator that computes wrong, or a value that is wrong.

The model runs once more, up to the wrong call, and returns what its attention nodes get and give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from conformance.base.array_types import Array
from conformance.base.words import listed
from conformance.graph.nodes import ATTENTION, AttentionNode, constants_of
from conformance.graph.walks import nodes_in
from conformance.harness.session import Session
from conformance.model.calls.groups import Group
from conformance.model.calls.program import DecoderProgram
from conformance.model.calls.sequences import CallSequence, ProgramCall
from conformance.model.calls.skeleton import SEEN, observed
from conformance.model.run.model_calls import Stopped, run_sequence
from conformance.oracle.errors import OracleError
from conformance.oracle.reference import Reference, reference
from conformance.oracle.tolerance import CONSTANTS, budgets

#: A bias of at most this hides a key: the weakest bias with which graphs hide keys.
_HIDDEN: Final = -1e4
#: More times the budget of a correct kernel than kernels of any target need.
_BUDGETS: Final = 4.0

#: Whose fault a wrong result is; "": not known.
FaultOwner = Literal["graph", "target", ""]


@dataclass(frozen=True)
class ResultCause:
    """Why results are wrong: whose ``fault`` it is, the nodes, and a sentence, if it is known."""

    fault: FaultOwner
    sentence: str = ""
    nodes: tuple[AttentionNode, ...] = ()


@dataclass(frozen=True)
class _Seen:
    """What a node gets and gives in a call, by the operator's names."""

    call: ProgramCall
    values: Mapping[str, Array]


def cause_of(
    session: Session, program: DecoderProgram, run: CallSequence, number: int, scale: float
) -> ResultCause:
    """The cause of the wrong results of the call with this number, on the target of ``session``.

    ``scale`` is the tolerance of the target's arithmetic.
    """
    nodes = [(group, node) for group in program.groups for node in group.nodes]
    nodes.sort(key=lambda each: each[1].layer)
    names = {
        each[name]
        for _, node in nodes
        for each in (node.inputs, node.outputs)
        for name in SEEN
        if name in each
    }
    until = replace(run, calls=run.calls[: number + 1])
    model = observed(program.skeleton, names)
    results = run_sequence(session, program, until, model.SerializeToString())
    if isinstance(results, Stopped):
        return ResultCause("")
    constants = dict(constants_of(program.skeleton.model.graph, names))
    given = program.arrays(until)
    states = program.interface.states
    values = []
    for at, got in enumerate(results):
        past = {
            name: program.carried(run, run.calls[at], name, results[at - 1][present])
            for name, present in states.items()
            if at and present in results[at - 1]
        }
        values.append({**constants, **past, **given[at], **got})
    # The other operators are not looked at here.
    whole = not any(node.op_type in ATTENTION for node in nodes_in(program.skeleton.model.graph))
    seen: dict[str, list[_Seen]] = {}
    for _, node in nodes:
        both = {**node.inputs, **node.outputs}
        seen[node.name] = [
            _Seen(call, {name: known[value] for name, value in both.items() if value in known})
            for call, known in zip(until.calls, values, strict=True)
        ]
        for each in seen[node.name]:
            agrees = _agrees(node, each.values, scale)
            whole = whole and agrees is not None
            if agrees is False:
                return ResultCause("target", "", (node,))
    found: dict[str, list[AttentionNode]] = {}
    for group, node in nodes:
        for sentence in (
            *_of_eviction(group, seen[node.name]),
            *_of_lengths(program, group, node, seen[node.name]),
            *_of_caches(program, node, seen[node.name]),
            *_of_scales(seen[node.name]),
            *_of_tables(seen[node.name]),
        ):
            found.setdefault(sentence, []).append(node)
    later = [node for group, node in nodes if group.form.fields.get("causal") == 0]
    if later and program.cached:
        found = {"causal is 0, so that the tokens of a prompt attend to later ones": later}
    sentence, those = next(iter(found.items()), ("", []))
    # Of a cache in a graph's own codes the operator has no part.
    return ResultCause("graph" if whole or sentence else "", sentence, tuple(those))


def _agrees(node: AttentionNode, values: Mapping[str, Array], scale: float) -> bool | None:
    """Whether a node gave what the oracle computes of what it got; None if that is not known."""
    inputs = {name: values[name] for name in node.inputs if name in values}
    if inputs.keys() != node.inputs.keys() or "output" not in values:
        return None
    outputs = [name for name in node.outputs if name in values]
    try:
        wanted = reference(inputs, node.attributes, outputs)
        return all(_is_right(wanted, name, values[name], scale) for name in outputs)
    except (OracleError, ValueError, KeyError, IndexError, TypeError):
        return None


def _is_right(wanted: Mapping[str, Reference], name: str, got: Array, scale: float) -> bool:
    """Whether a node's output has no element that is further off than kernels may be."""
    one = wanted[name]
    if one.value.shape != got.shape:
        return False
    if name != "output" and one.dtype.kind in "iu":
        return True  # codes may be rounded either way
    with np.errstate(invalid="ignore"):
        error = np.abs(got.astype(np.float64) - one.value)
    limit = scale * np.abs(one.value).max(initial=0.0)
    if not (~(error <= limit) & one.defined).any():
        return True  # without the budgets, which take longer than the values
    units = budgets(wanted)[name]
    limit = limit + _BUDGETS * max(CONSTANTS.values()) * units
    return not bool((~(error <= limit) & one.defined & ~np.isnan(units)).any())


def _of_eviction(group: Group, calls: Sequence[_Seen]) -> Iterator[str]:
    """Whether tokens were taken back in a cache that no longer has the rows before them."""
    back = next((seen for seen in calls if seen.call.kept is not None), None)
    if back is None or "past_key" not in back.values or group.form.borrows:
        return
    rows, kept = back.values["past_key"].shape[-2], back.call.kept or 0
    if group.form.window and (group.form.cache == "window" or rows < kept):
        yield "the cache keeps the tokens of the window only, and has lost those before it"


def _of_lengths(
    program: DecoderProgram, group: Group, node: AttentionNode, calls: Sequence[_Seen]
) -> Iterator[str]:
    """The last call's lengths, positions or mask, if they are wrong, or those of one before."""
    if program.appends:
        return
    for seen in reversed(calls):
        for sentence in _of_call(group, node, seen.values, seen.call):
            yield sentence
            return


def _of_call(
    group: Group, node: AttentionNode, seen: Mapping[str, Array], call: ProgramCall
) -> Iterator[str]:
    """The errors in one call.

    A graph may leave tokens before the window out of the past.
    """
    form, totals, cut = group.form, call.lengths, 0
    rows = seen["past_key"].shape[2] if "past_key" in seen and not form.borrows else call.past
    if form.cache == "growing" and form.window and rows >= form.window - 1:
        cut = max(call.past - rows, 0)
    if cut and form.fields.get("rotary") and "position_ids" not in node.inputs:
        yield (
            f"its past has {rows} rows after {call.past} tokens, and the node counts positions from"
            " the first row"
        )
    totals, total = totals - cut, call.total - cut
    whole = call.columns.all()
    biased = "attention_bias" in node.inputs
    if biased and not whole:
        totals = np.full_like(totals, total)  # the bias hides padding
    lengths = np.resize(seen.get("seqlens_k", totals - 1).astype(np.int64).ravel(), totals.shape)
    for got, wanted in zip(lengths, totals - 1, strict=True):
        if got != wanted:
            is_count = np.array_equal(lengths, totals)
            count = ": it is a count, and must be the index of the last token" if is_count else ""
            yield f"seqlens_k is {got}, not {wanted}{count}"
    given = int(seen.get("total_sequence_length", np.array(total)).max(initial=0))
    if given != total and not (form.cache == "static" and given > total) and not form.chunks:
        yield f"total_sequence_length is {given}, not {total}"
    if _left_of(call.columns[:, call.past :]) and not biased:
        yield "the node takes the first columns of a row as its tokens, and padding is before them"
    elif biased and _left_of(call.columns) and form.fields.get("rotary"):
        yield "the node rotates by rows, and padding before the tokens shifts them"
    positions = seen.get("position_ids", np.zeros(0))
    if form.fields.get("rotary") and positions.ndim == 2 and positions.shape[1] == call.new:
        for row, wanted, padding in zip(positions, call.places, call.padding, strict=False):
            wrong = np.flatnonzero((row != wanted) & ~padding)
            if wrong.size:
                at = wrong[0]
                yield f"position_ids is {int(row[at])} for token {at}, not {wanted[at]}"
    bias = seen.get("attention_bias", np.zeros(0))
    if bias.ndim == 4 and bias.shape[-2] == call.new and bias.shape[-1] >= call.total:
        for row, columns in enumerate(call.columns):
            hidden = bias[min(row, len(bias) - 1), :, :, : call.total].max(0) <= _HIDDEN
            own = hidden[np.arange(call.new), call.past + np.arange(call.new)]
            if own[columns[call.past :]].any():
                yield "attention_bias hides a token from itself"
            elif (~hidden[:, ~columns]).any():
                yield "attention_bias does not hide padding"


def _left_of(columns: Array) -> bool:
    """Whether padding stands before tokens."""
    return bool((~columns[:, :-1] & columns[:, 1:]).any())


def _of_tables(calls: Sequence[_Seen]) -> Iterator[str]:
    """Whether the calls have different rotary tables."""
    tables = [seen.values["cos_cache"] for seen in calls if "cos_cache" in seen.values]
    if any(not np.array_equal(a[: len(b)], b[: len(a)]) for a, b in pairwise(tables)):
        yield (
            "cos_cache has other rows in each call; the operator takes the row of each position"
            " itself, so it must begin with position 0"
        )


def _of_scales(calls: Sequence[_Seen]) -> Iterator[str]:
    for name, key, limit in (("k_scale", "key", 127), ("v_scale", "value", 127)):
        scales = [seen.values[name].astype(float) for seen in calls if name in seen.values]
        if any(not (np.isfinite(each).all() and (each != 0).all()) for each in scales):
            yield f"{name} has scales of 0, so what is read from the cache is 0"
        elif any(not np.array_equal(one, two) for one, two in pairwise(scales)):
            yield (
                f"{name} is computed anew in each call, and does not fit the tokens that are in the"
                " cache"
            )
        elif scales and key in calls[0].values:
            most = float(scales[0].max()) * limit
            there = float(np.abs(calls[0].values[key].astype(float)).max(initial=0))
            if there > 1.5 * most:
                told = f"scales of about {scales[0].mean():.2g} hold no more than {most:.2g}"
                yield f"{name}: {told}, and {key} has {there:.2g}"


def _of_caches(
    program: DecoderProgram, node: AttentionNode, calls: Sequence[_Seen]
) -> Iterator[str]:
    """The first call in which a node's past is not its present of the call before."""
    borrowed = node.source is not None
    for before, after in pairwise(calls):
        if after.call.kept is not None or after.call.order is not None or borrowed:
            continue
        for part in ("key", "value"):
            gave, gets = before.values.get(f"present_{part}"), after.values.get(f"past_{part}")
            if gave is None or gets is None or gave.ndim != 4 or gets.ndim != 4:
                continue
            gave = gave[:, :, -gets.shape[2] :] if gets.shape[2] < gave.shape[2] else gave
            same = gave.shape == gets.shape and np.allclose(
                gave.astype(float), gets.astype(float), atol=0.1 * np.abs(gave).max(initial=1e-3)
            )
            if not same:
                yield f"past_{part} is not what present_{part} was in the call before"
                return
    ends = [node.origins.get(f"past_{part}", ("",))[0] for part in ("key", "value")]
    if ends == ["present_value", "present_key"]:
        yield "past_key is a present_value, and past_value a present_key"
    elif len(owners := {of for _, of in node.origins.values()}) > 1:
        yield f"past_key and past_value are of {listed(sorted(owners))}"
