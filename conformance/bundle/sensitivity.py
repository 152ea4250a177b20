"""Whether a case can detect a fault: how far the output moves when one part of the call changes.

A case about a softcap detects nothing if the call without it has the same result within the
tolerance: a runtime that ignores it would pass. The same holds for an input that is what a kernel
would use in its place. Therefore each attribute is changed and each input replaced, one at a time,
and the oracle computes that call too. The *effect* is the largest change of any output element, in
multiples of that element's error budget. :data:`REPLACEMENTS` lists the changes. If the changed
call has no meaning, there is no effect value.

Only :func:`insensitive` knows about cases; everything else works on tensors and attributes.
``python -m conformance.maintain.sensitivity`` lists the effects of cases.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from conformance.base.signature import INPUT_NAMES
from conformance.bundle.replacements import (
    REPLACEMENTS,
    THRESHOLD,
    Changes,
    Given,
    Replacement,
    equals,
    last_heads,
    last_part,
    settings,
    side_by_side,
    turns,
)
from conformance.case.case import Case
from conformance.oracle import Attention, OracleError, Reference
from conformance.oracle.call import Attributes, Inputs, OracleCall, read_call
from conformance.oracle.numbers import Bool, Float
from conformance.oracle.reference import attended, outputs_of, rotated
from conformance.oracle.rotary import Rotated
from conformance.oracle.tolerance import CONSTANTS, TargetClass, shares

#: A case is insensitive to a feature if the effect is below this: one error budget.
NO_EFFECT: Final = 1.0
#: Effects are capped here: a larger one carries no more information, and JSON has no infinity.
_LARGEST_EFFECT: Final = 1e9
#: The target class with the largest error budgets, in which effects are measured.
_WIDEST: Final[TargetClass] = max(CONSTANTS, key=lambda one: CONSTANTS[one])

#: What is replaced, by the names of the effects.
REPLACED: Final[Mapping[str, Replacement]] = {one.key: one for one in REPLACEMENTS}

#: The effects that a case must show: the threshold of each, by its name.
THRESHOLDS: Final[Mapping[str, float]] = {
    **{name: one.threshold for name, one in REPLACED.items() if one.part},
    "past": THRESHOLD,
}


def part_of(name: str) -> str:
    """The part of a call, as in ``insensitive_to``, that an effect of this name concerns."""
    replaced = REPLACED.get(name)
    return name if replaced is None or replaced.part is None else replaced.part


def effects(
    inputs: Inputs,
    attributes: Attributes,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    skipped: Collection[str] = (),
    *,
    every: bool = False,
) -> dict[str, float]:
    """The required effect of each active feature of one call, except for the ``skipped`` ones.

    ``every``: those as well that only count as coverage, which take four times as long.

    Two effects concern the past: ``past``, how far the output moves without all past tokens, and
    ``past_token``, how far it moves without the one past token that contributes least. The latter
    is informational: one token of a thousand may contribute less than one error budget. It is not
    measured for long calls, where that would take most of the time. Nothing is measured of a call
    whose attention does not fit into memory (:attr:`Computation.is_large`).

    Args:
        inputs: the connected inputs, as given to the oracle.
        attributes: the attributes that are set.
        references: the oracle's reference for each connected output.
        units: the unit budgets of those outputs.
        skipped: features that another call of the same loop already shows well enough.
        every: measure all effects, not only those in :data:`THRESHOLDS`.
    """
    output = references.get("output")
    if output is None or not output.computed.any():
        return {}
    if output.work is None or output.work.is_large:
        return {}
    call = read_call(inputs, attributes, list(references))
    # The documentation leaves open whether the first prompt of a quantised cache attends to exact
    # or quantised keys, so its budget is wide and its output shows little. Compare the present too.
    quantised = any(f"{side}_scale" in inputs for side in "kv")
    stored = ("present_key",) if quantised and call.prompts.any() else ()
    given = Given(call, inputs, references)
    wanted = [one for one in REPLACEMENTS if (one.part or every) and one.key not in skipped]
    found = _replaced_effects(given, references, units, stored, wanted)
    if "past" not in skipped:
        found |= _past_effects(call, output, units["output"], every)
    return {name: min(float(f"{effect:.3g}"), _LARGEST_EFFECT) for name, effect in found.items()}


#: A replacement, the fields of the call that it changes, and the outputs that are compared.
_Pending = tuple[Replacement, Changes, Sequence[str]]
#: The same with the changed call and its rotated queries and new keys.
_Made = tuple[_Pending, OracleCall, tuple[Rotated, Rotated]]
#: An output: its values, which of them are computed, and their unit budgets.
_Right = tuple[Float, Bool, Float]

#: The effect of each past token is measured for calls with so many tokens times output elements.
_TOKEN_ELEMENTS: Final = 1 << 26
#: Scores that are computed at a time.
_SCORES: Final = 1 << 16


def _replaced_effects(
    given: Given,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    stored: Sequence[str],
    wanted: Sequence[Replacement],
) -> dict[str, float]:
    """The effect of each replacement that is ``wanted``; ``stored`` is compared in addition.

    For speed the effect is first measured on two query heads of the last key/value head of the last
    sequence. It is at most the effect on the whole call, which is measured only if it is too small.
    """
    call, found = given.call, dict[str, float]()
    pending: list[_Pending] = []
    for one in wanted:
        compared = [name for name in dict.fromkeys((*one.outputs, *stored)) if name in references]
        changes = one.changes(given) if compared else None
        if changes is None:
            continue
        if not equals(call, changes):
            pending.append((one, changes, compared))
        elif one.part:
            found[one.key] = 0.0
    right = {
        name: (references[name].value, references[name].computed, units[name])
        for name in {name for _, _, compared in pending for name in compared}
    }
    heads = last_heads(call)
    if (call.batch_size, call.num_heads) != (1, heads):
        width = heads * call.head_size
        of_part = {}
        for name, (value, computed, unit) in right.items():
            at = np.s_[-1:, :, -width:] if name == "output" else np.s_[-1:, -1:]
            of_part[name] = value[at], computed[at], unit[at]
        restrict = last_part(call)
        part = replace(call, **restrict(vars(call)))
        restricted = [(one, restrict(changes), compared) for one, changes, compared in pending]
        for (one, _, _), effect in _measured(part, of_part, restricted):
            if effect >= one.enough:
                found[one.key] = effect
        pending = [each for each in pending if each[0].key not in found]
    found |= {one.key: effect for (one, _, _), effect in _measured(call, right, pending)}
    return {name: found[name] for name in REPLACED if name in found}


def _measured(
    call: OracleCall, right: Mapping[str, _Right], pending: Sequence[_Pending]
) -> Iterator[tuple[_Pending, float]]:
    """The effects on a call; nothing for a changed call that has no meaning.

    Changed calls that differ in tensors only are computed side by side, as one batch.
    """
    if not pending:
        return
    usual = rotated(call)
    groups: dict[object, list[_Made]] = {}
    for each in pending:
        changed = replace(call, **each[1])
        alike = (*each[2], *settings(changed))
        with suppress(OracleError):
            turned = rotated(changed) if turns(each[1]) else usual
            groups.setdefault(alike, []).append((each, changed, turned))
    scores = call.batch_size * call.num_heads * call.sequence_length * call.total
    at_once = max(1, _SCORES // max(1, scores))
    for made in groups.values():
        for start in range(0, len(made), at_once):
            some = made[start : start + at_once]
            try:
                yield from _side_by_side(some, right)
            except OracleError:
                for one in some:
                    with suppress(OracleError):
                        yield from _side_by_side([one], right)


def _side_by_side(
    made: Sequence[_Made],
    right: Mapping[str, _Right],
) -> Iterator[tuple[_Pending, float]]:
    """The effects of changed calls with their rotated queries and keys. Raises OracleError."""
    work = attended(*side_by_side([call for _, call, _ in made], [turned for _, _, turned in made]))
    names = {name for (_, _, compared), _, _ in made for name in compared}
    found = outputs_of(work, names)
    if any(found[name].value.shape[1:] != right[name][0].shape[1:] for name in names):
        return
    effects = {name: _distances(found[name], len(made), right[name]) for name in names}
    for index, (each, _, _) in enumerate(made):
        yield each, max(float(effects[name][index]) for name in each[2])


def _distances(reference: Reference, calls: int, right: _Right) -> Float:
    """How far one output of each of ``calls``, of which a reference has all sequences, is off."""
    value, computed, units = right
    wrong = reference.value.reshape(calls, *value.shape)
    unit = np.where(computed & reference.computed.reshape(wrong.shape), units, np.nan)
    off: Float = shares(wrong, value, unit, _WIDEST).reshape(calls, -1).max(axis=1, initial=0.0)
    return off


def _past_effects(
    call: OracleCall, output: Reference, unit: Float, every: bool
) -> dict[str, float]:
    """How far the output moves without all past tokens, and without any single one of them.

    The latter only if ``every`` effect is wanted.

    Keys of total weight p contribute s = sum p v to an output o; without them the output is
    (o - s) / (1 - p), and 0 if they are all that it attends to. An effect is the largest over
    elements, and then the smallest over sequences and over tokens that are attended to.
    """
    a = output.attention
    if a is None:
        return {}
    budget = max(CONSTANTS.values()) * np.where(output.computed, unit, np.inf)
    batch_size, kv_num_heads, group, queries, size = a.output.shape
    budget = budget.reshape(batch_size, queries, kv_num_heads, group, size)
    budget = budget.transpose(0, 2, 3, 1, 4)
    whole, token = np.inf, np.inf
    for b, length in enumerate(call.past_lengths):
        rows = np.flatnonzero(np.isfinite(a.logits[b, ..., :length]).any(axis=(0, 1, 2)))
        if not rows.size or not np.isfinite(budget[b]).any():
            continue
        p = a.probabilities[b][..., rows]
        part = p @ a.value[b][:, None, rows]
        without = _without(a.output[b], part, p.sum(axis=-1, keepdims=True))
        whole = min(whole, float((np.abs(without - a.output[b]) / budget[b]).max()))
        if every and rows.size * budget[b].size <= _TOKEN_ELEMENTS:
            token = min(token, float(_each_token(a, b, rows, budget[b]).min()))
    found = {"past": whole, "past_token": token}
    return {name: effect for name, effect in found.items() if not np.isinf(effect)}


def _without(output: Float, part: Float, weight: Float) -> Float:
    """The output without keys of this contribution and weight; 0 if there are no others."""
    rest = 1.0 - weight
    some = rest > 1e-12
    without: Float = np.where(some, (output - part) / np.where(some, rest, 1.0), 0.0)
    return without


def _each_token(a: Attention, b: int, rows: np.ndarray, budget: Float) -> Float:
    """How far the outputs of sequence ``b`` move without each one of the past ``rows``."""
    most = np.zeros(rows.size)
    block = max(1, 2**18 // a.output[b].size)
    for start in range(0, rows.size, block):
        taken = slice(start, start + block)
        p = a.probabilities[b][..., rows[taken], None]
        output = a.output[b][..., None, :]
        part = p * a.value[b][:, None, None, rows[taken]]
        moved = np.abs(_without(output, part, p) - output) / budget[..., None, :]
        most[taken] = moved.max(axis=(0, 1, 2, 4))
    return most


def sufficient(found: Mapping[str, float]) -> set[str]:
    """The effects that are large enough; later steps of a loop can skip them."""
    return {name for name, effect in found.items() if effect >= enough(name)}


def enough(name: str) -> float:
    """The effect, in error budgets, from which on a case shows what ``name`` says; or infinity."""
    return REPLACED[name].enough if name in REPLACED else THRESHOLDS.get(name, np.inf)


def combined(calls: Collection[Mapping[str, float]]) -> dict[str, float]:
    """The effects of a loop: the largest over its calls, because one call can show a fault."""
    found: dict[str, float] = {}
    for each in calls:
        for name, effect in each.items():
            found[name] = max(effect, found.get(name, 0.0))
    return found


def insensitive(case: Case, found: Mapping[str, float]) -> str | None:
    """Why the case cannot detect a fault, or names a part in ``insensitive_to`` wrongly.

    None if it is sensitive enough. ``found`` are the effects of its call. A case that must be
    rejected has no values to compare and is always accepted; one that may either compute or be
    rejected is treated like any other.
    """
    if case.contract.demands == "rejects":
        return None
    return " ".join(shortfalls(found, case.insensitive_to)) or None


def lines(found: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What to tell of effects, as (label, line): the required ones, and which replacements fail."""
    told = {name: effect for name, effect in found.items() if name not in REPLACED}
    told |= {name: effect for name, effect in found.items() if name in THRESHOLDS}
    if told:
        yield "effects", f"in error budgets: {_listed(told)}"
    if unseen := {name: found[name] for name in found.keys() - told.keys() - sufficient(found)}:
        yield "not seen", _listed(dict(sorted(unseen.items())))


def _listed(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {effect:g}" for name, effect in found.items())


def shortfalls(found: Mapping[str, float], insensitive_to: Collection[str]) -> Iterator[str]:
    """A sentence for each of the effects ``found`` that is too small, and each wrong declaration.

    A part in ``insensitive_to`` is declared wrongly if all its effects are at least one budget.
    """
    required = {name: found[name] for name in THRESHOLDS if name in found}
    for part in insensitive_to:
        least = min((e for name, e in required.items() if part_of(name) == part), default=0.0)
        if least >= NO_EFFECT:
            yield (
                f"insensitive_to lists {part}, but changing it moves the result by {least:g} error"
                f" budgets: remove {part} from insensitive_to."
            )
    for name, effect in required.items():
        part, threshold = part_of(name), THRESHOLDS[name]
        if part in insensitive_to or effect >= threshold:
            continue
        change = f"{part}: changing it"
        replaced = REPLACED.get(name)
        if replaced is not None and replaced.of in INPUT_NAMES:
            change = f"{replaced.of}: replacing it by {replaced.words}"
        declare = f", or write insensitive_to: [{part}] if it must not change the result"
        yield (
            f"The case cannot show a fault in {change} moves the result by only {effect:g} error"
            f" budgets, and {threshold:g} are required. Choose values that make it"
            f" larger{declare if effect < NO_EFFECT else ''}."
        )
