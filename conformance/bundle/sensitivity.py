"""Whether a case can detect a fault: how far the output moves when one part of the call changes.

A case about a feature detects nothing if the call without the feature has the same result within
the tolerance: a runtime that ignores the feature would pass. Therefore each active feature of a
call is turned off, one at a time, and the oracle computes that call too. The feature's *effect* is
the largest change of any output element, in multiples of that element's error budget.
:data:`PERTURBATIONS` lists the changes. If the changed call has no meaning, the feature has no
effect value.

Only :func:`insensitive` knows about cases; everything else works on tensors and attributes.
``python -m conformance.maintain.sensitivity`` lists the effects of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from conformance.bundle.replacements import (
    EDGE_THRESHOLD,
    REPLACEMENTS,
    THRESHOLD,
    Changes,
    Given,
    Replacement,
    equals,
    last_head,
    side_by_side,
    turns,
)
from conformance.case.case import Case, EffectName
from conformance.oracle import Attention, OracleError, Reference, reference
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

#: Inputs and attributes of a call with one feature changed.
Perturbed = tuple[Inputs, Attributes]


@dataclass(frozen=True)
class Original:
    """The call before any change: inputs, attributes, the oracle's reading, connected outputs."""

    inputs: Inputs
    attributes: Attributes
    call: OracleCall
    outputs: Collection[str]

    def with_attributes(self, **attributes: float) -> Perturbed:
        """The call with these attributes changed."""
        return self.inputs, {**self.attributes, **attributes}


@dataclass(frozen=True)
class Perturbation:
    """How one feature is changed, and how large the effect must be.

    ``calls`` yields the calls without the feature or with another setting of it, and nothing if the
    feature is not active. The effect is the smallest of theirs and must reach ``threshold``.
    ``outputs`` names the outputs compared: a present can show a wrong key that hardly changes
    ``output``.
    """

    calls: Callable[[Original], Iterator[Perturbed]]
    threshold: float = THRESHOLD
    outputs: tuple[str, ...] = ("output",)


def _rotary(original: Original) -> Iterator[Perturbed]:
    if original.call.cos is not None:
        yield original.with_attributes(do_rotary=0)


def _layout(original: Original) -> Iterator[Perturbed]:
    if original.call.cos is not None:
        yield original.with_attributes(rotary_interleaved=int(not original.call.interleaved))


def _window(original: Original) -> Iterator[Perturbed]:
    if original.call.window is not None:
        yield original.with_attributes(local_window_size=-1)


def _window_edge(original: Original) -> Iterator[Perturbed]:
    """A window one token longer and one token shorter, if the window hides anything at all."""
    window = original.call.window
    if window is not None and window < original.call.lengths.max():
        yield original.with_attributes(local_window_size=window + 1)
        if window > 1:
            yield original.with_attributes(local_window_size=window - 1)


def _softcap(original: Original) -> Iterator[Perturbed]:
    if original.call.softcap:
        yield original.with_attributes(softcap=0.0)


def _smooth_softmax(original: Original) -> Iterator[Perturbed]:
    if original.call.sink is not None and "head_sink" not in original.inputs:
        yield original.with_attributes(smooth_softmax=0)


def _causal(original: Original) -> Iterator[Perturbed]:
    """The opposite setting; not with a local window, which requires causal attention."""
    if original.call.sequence_length > 1 and original.call.window is None:
        yield original.with_attributes(causal=int(not original.call.causal))


def _scale(original: Original) -> Iterator[Perturbed]:
    if np.float32(original.call.scale) != np.float32(original.call.head_size**-0.5):
        yield original.with_attributes(scale=0.0)


def _sliding(original: Original) -> Iterator[Perturbed]:
    """A cache of all tokens, if the window cache has to evict any."""
    call = original.call
    if call.window_cache and call.lengths.max() > call.past_sequence_length:
        yield original.with_attributes(sliding_window_cache=0)


_ALL: Final = ("output", "present_key", "present_value")

#: How each feature is changed that is an attribute. :data:`REPLACEMENTS` are the changes of inputs;
#: the past is handled separately (:func:`_past_effects`).
PERTURBATIONS: Final[Mapping[EffectName, Perturbation]] = {
    "rotary": Perturbation(_rotary),
    "rotary_interleaved": Perturbation(_layout),
    "window": Perturbation(_window),
    "window_edge": Perturbation(_window_edge, EDGE_THRESHOLD),
    "softcap": Perturbation(_softcap),
    "smooth_softmax": Perturbation(_smooth_softmax),
    "causal": Perturbation(_causal),
    "scale": Perturbation(_scale),
    "sliding_window_cache": Perturbation(_sliding, outputs=_ALL),
}

#: The effects that a case must show: the threshold of each, by its name.
THRESHOLDS: Final[Mapping[str, float]] = {
    **{str(name): perturbation.threshold for name, perturbation in PERTURBATIONS.items()},
    "past": THRESHOLD,
    **{one.key: one.threshold for one in REPLACEMENTS if one.part},
}

#: The replacements, by the names of their effects.
REPLACED: Final[Mapping[str, Replacement]] = {one.key: one for one in REPLACEMENTS}


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
) -> dict[str, float]:
    """The effect of each active feature of one call, except for the ``skipped`` ones.

    Two effects concern the past: ``past``, how far the output moves without all past tokens, and
    ``past_token``, how far it moves without the one past token that contributes least. The latter
    is informational: one token of a thousand may contribute less than one error budget.

    Args:
        inputs: the connected inputs, as given to the oracle.
        attributes: the attributes that are set.
        references: the oracle's reference for each connected output.
        units: the unit budgets of those outputs.
        skipped: features that another call of the same loop already shows well enough.
    """
    if "output" not in references or not references["output"].computed.any():
        return {}
    call = read_call(inputs, attributes, list(references))
    original = Original(inputs, attributes, call, list(references))
    # The documentation leaves open whether the first prompt of a quantised cache attends to exact
    # or quantised keys, so its budget is wide and its output shows little. Compare the present too.
    quantised = any(f"{side}_scale" in inputs for side in "kv")
    stored = ("present_key",) if quantised and call.first_prompt else ()
    found: dict[str, float] = _replaced_effects(
        Given(call, inputs, references), references, units, stored, skipped
    )
    for name, perturbation in PERTURBATIONS.items():
        if name in skipped:
            continue
        compared = [out for out in (*perturbation.outputs, *stored) if out in references]
        if not compared:
            continue
        changes = [
            _effect(perturbed, references, units, compared)
            for perturbed in perturbation.calls(original)
        ]
        least = min((effect for effect in changes if effect is not None), default=None)
        if least is not None:
            found[name] = least
    if "past" not in skipped:
        found |= _past_effects(call, references["output"], units["output"])
    return {name: min(float(f"{effect:.3g}"), _LARGEST_EFFECT) for name, effect in found.items()}


def _effect(
    perturbed: Perturbed,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    outputs: Collection[str],
) -> float | None:
    """The largest distance of a perturbed call's ``outputs`` from ``references``.

    In error budgets of the target class with the largest ones. None if the perturbed call has no
    meaning or its outputs have other shapes.
    """
    try:
        found = reference(*perturbed, outputs)
    except OracleError:
        return None
    most = 0.0
    for name in outputs:
        right, wrong = references[name], found[name]
        if right.value.shape != wrong.value.shape:
            return None
        unit = np.where(right.computed & wrong.computed, units[name], np.nan)
        each = shares(wrong.value, right.value, unit, _WIDEST)
        most = max(most, float(each.max(initial=0.0)))
    return most


#: A replacement, the fields of the call that it changes, and the outputs that are compared.
_Pending = tuple[Replacement, Changes, Sequence[str]]
#: An output: its values, which of them are computed, and their unit budgets.
_Right = tuple[Float, Bool, Float]

#: Scores that are computed at a time; a call with more is first looked at in its last head alone.
_SCORES: Final = 1 << 16


def _replaced_effects(
    given: Given,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    stored: Sequence[str],
    skipped: Collection[str],
) -> dict[str, float]:
    """The effect of each replacement of an input; ``stored`` is compared in addition.

    In a large call, the effect on the last key/value head is used if it is large enough: the effect
    on all heads is at least that.
    """
    call, found = given.call, dict[str, float]()
    pending: list[_Pending] = []
    for one in REPLACEMENTS:
        compared = [name for name in {*one.outputs, *stored} if name in references]
        changes = one.changes(given) if compared and one.key not in skipped else None
        if changes is None:
            continue
        if not equals(call, changes):
            pending.append((one, changes, compared))
        elif one.part:
            found[one.key] = 0.0
    names = {name for _, _, compared in pending for name in compared}
    right = {
        name: (references[name].value, references[name].computed, units[name]) for name in names
    }
    if _scores(call) > _SCORES and call.past_key.shape[1] > 1:
        width = call.num_heads // call.past_key.shape[1] * call.head_size
        of_head = {}
        for name, (value, computed, unit) in right.items():
            at = np.s_[..., -width:] if name == "output" else np.s_[:, -1:]
            of_head[name] = value[at], computed[at], unit[at]
        for (one, _, _), effect in _measured(call, of_head, pending, last_head):
            if effect >= one.threshold:
                found[one.key] = effect
        pending = [each for each in pending if each[0].key not in found]
    found |= {each[0].key: effect for each, effect in _measured(call, right, pending)}
    return found


def _scores(call: OracleCall) -> int:
    return call.batch_size * call.num_heads * call.sequence_length * call.total


def _measured(
    call: OracleCall,
    right: Mapping[str, _Right],
    pending: Sequence[_Pending],
    part: Callable[[OracleCall], OracleCall] = lambda call: call,
) -> Iterator[tuple[_Pending, float]]:
    """The effects on a ``part`` of the call; nothing for a changed call that has no meaning.

    The changed calls are computed side by side, as one batch.
    """
    if not pending:
        return
    original = part(call)
    usual = rotated(original)
    made = []
    for each in pending:
        changed = part(replace(call, **each[1]))
        with suppress(OracleError):
            made.append((each, changed, rotated(changed) if turns(each[1]) else usual))
    at_once = max(1, _SCORES // max(1, _scores(original)))
    for start in range(0, len(made), at_once):
        some = made[start : start + at_once]
        try:
            yield from _side_by_side(some, right)
        except OracleError:
            for one in some:
                with suppress(OracleError):
                    yield from _side_by_side([one], right)


def _side_by_side(
    made: Sequence[tuple[_Pending, OracleCall, tuple[Rotated, Rotated]]],
    right: Mapping[str, _Right],
) -> Iterator[tuple[_Pending, float]]:
    """The effects of changed calls with their rotated queries and keys. Raises OracleError."""
    work = attended(*side_by_side([call for _, call, _ in made], [turned for _, _, turned in made]))
    names = {name for (_, _, compared), _, _ in made for name in compared}
    effects = {
        name: _distances(reference, len(made), right[name])
        for name, reference in outputs_of(work, names).items()
    }
    for index, (each, _, _) in enumerate(made):
        yield each, max(float(effects[name][index]) for name in each[2])


def _distances(reference: Reference, calls: int, right: _Right) -> Float:
    """How far one output of each of ``calls``, of which a reference has all sequences, is off."""
    value, computed, units = right
    wrong = reference.value.reshape(calls, *value.shape)
    unit = np.where(computed & reference.computed.reshape(wrong.shape), units, np.nan)
    off: Float = shares(wrong, value, unit, _WIDEST).reshape(calls, -1).max(axis=1, initial=0.0)
    return off


def _past_effects(call: OracleCall, output: Reference, unit: Float) -> dict[str, float]:
    """How far the output moves without all past tokens, and without any single one of them.

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
        token = min(token, float(_each_token(a, b, rows, budget[b]).min()))
    return {} if np.isinf(whole) else {"past": whole, "past_token": token}


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
    """The features whose effects reach their thresholds; later steps of a loop can skip them."""
    return {name for name, effect in found.items() if effect >= THRESHOLDS.get(name, np.inf)}


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
        change = f"{name}: changing it"
        if name in REPLACED:
            replaced = REPLACED[name]
            change = f"{replaced.input}: replacing it by {replaced.words}"
        declare = f", or write insensitive_to: [{part}] if it must not change the result"
        yield (
            f"The case cannot show a fault in {change} moves the result by only {effect:g} error"
            f" budgets, and {threshold:g} are required. Choose values that make it"
            f" larger{declare if effect < NO_EFFECT else ''}."
        )
