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

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from conformance.case.case import Case, EffectName
from conformance.oracle import Attention, OracleError, Reference, reference
from conformance.oracle.call import Attributes, Inputs, OracleCall, read_call
from conformance.oracle.numbers import Float
from conformance.oracle.tolerance import CONSTANTS, shares

#: The effect, in error budgets, that a feature must have unless its perturbation says otherwise.
THRESHOLD: Final = 20.0
#: The threshold for a window that is one token longer or shorter, and for mixed-up channels. One
#: key among hundreds contributes no more to the output, and a correct kernel's error cannot reach
#: two budgets.
EDGE_THRESHOLD: Final = 2.0
#: The threshold for doubled quantisation scales. A doubled key scale only sharpens the softmax, and
#: bfloat16 can barely resolve the difference.
SCALE_THRESHOLD: Final = 5.0
#: A case is insensitive to a feature if the effect is below this: one error budget.
NO_EFFECT: Final = 1.0
#: Effects are capped here: a larger one carries no more information, and JSON has no infinity.
_LARGEST_EFFECT: Final = 1e9

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

    def with_inputs(self, **inputs: np.ndarray) -> Perturbed:
        """The call with these inputs replaced."""
        return {**self.inputs, **inputs}, self.attributes

    def without(self, *names: str) -> Iterator[Perturbed]:
        """The call without these inputs; yields nothing if it has none of them."""
        if any(name in self.inputs for name in names):
            kept = {name: array for name, array in self.inputs.items() if name not in names}
            yield kept, self.attributes


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


def _positions(original: Original) -> Iterator[Perturbed]:
    """The implied positions."""
    if original.call.cos is not None:
        yield from original.without("position_ids")


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


def _ragged(original: Original) -> Iterator[Perturbed]:
    """Every sequence as long as the longest one.

    In a causal first prompt the padding comes after every token that is compared, so the lengths
    change no defined element there.
    """
    call = original.call
    if np.any(call.lengths < call.total) and not (call.first_prompt and call.causal):
        yield original.with_inputs(
            seqlens_k=np.full_like(original.inputs["seqlens_k"], call.total - 1)
        )


def _doubled(original: Original, names: Collection[str]) -> Iterator[Perturbed]:
    """One call for each of these scales, with that scale doubled."""
    for name in names:
        if name in original.inputs:
            yield original.with_inputs(**{name: 2 * original.inputs[name]})


def _mixed_up(original: Original, names: Collection[str]) -> Iterator[Perturbed]:
    """One call for each of these per-channel scales, with the scales shifted by one channel."""
    for name in names:
        if name in original.inputs and np.ptp(original.inputs[name]) > 0:
            yield original.with_inputs(**{name: np.roll(original.inputs[name], 1, axis=-1)})


def _quantisation(original: Original) -> Iterator[Perturbed]:
    """Changed scales for new tokens, seen in the presents; zeros are zeros at any scale."""
    for scale, present, new in (
        ("k_scale", "present_key", original.call.key),
        ("v_scale", "present_value", original.call.value),
    ):
        if present in original.outputs and new.any():
            yield from _doubled(original, [scale])
            yield from _mixed_up(original, [scale])


def _dequantisation(original: Original) -> Iterator[Perturbed]:
    """Changed scales for the past, seen in the output."""
    if original.call.past_lengths.any():
        yield from _doubled(original, ["k_scale", "v_scale"])


def _channels(original: Original) -> Iterator[Perturbed]:
    if original.call.past_lengths.any():
        yield from _mixed_up(original, ["k_scale", "v_scale"])


def _sliding(original: Original) -> Iterator[Perturbed]:
    """A cache of all tokens, if the window cache has to evict any."""
    call = original.call
    if call.window_cache and call.lengths.max() > call.past_sequence_length:
        yield original.with_attributes(sliding_window_cache=0)


_ALL: Final = ("output", "present_key", "present_value")

#: How each feature is changed. The past is handled separately (:func:`_past_effects`).
PERTURBATIONS: Final[Mapping[EffectName, Perturbation]] = {
    "rotary": Perturbation(_rotary),
    "rotary_interleaved": Perturbation(_layout),
    # In a first prompt all positions move together, which only the rotated keys show.
    "position_ids": Perturbation(_positions, outputs=("output", "present_key")),
    "window": Perturbation(_window),
    "window_edge": Perturbation(_window_edge, EDGE_THRESHOLD),
    "softcap": Perturbation(_softcap),
    "attention_bias": Perturbation(lambda original: original.without("attention_bias")),
    "head_sink": Perturbation(lambda original: original.without("head_sink")),
    "smooth_softmax": Perturbation(_smooth_softmax),
    "causal": Perturbation(_causal),
    "scale": Perturbation(_scale),
    "ragged": Perturbation(_ragged),
    "qk_norm": Perturbation(lambda original: original.without("q_norm_weight", "k_norm_weight")),
    "quantisation": Perturbation(_quantisation, outputs=("present_key", "present_value")),
    "dequantisation": Perturbation(_dequantisation, SCALE_THRESHOLD),
    "channels": Perturbation(_channels, EDGE_THRESHOLD),
    "sliding_window_cache": Perturbation(_sliding, outputs=_ALL),
}

#: The effect that a case must show for each of its active features.
THRESHOLDS: Final[Mapping[str, float]] = {
    **{str(name): perturbation.threshold for name, perturbation in PERTURBATIONS.items()},
    "past": THRESHOLD,
}


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
    found: dict[str, float] = {}
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
    target_class = max(CONSTANTS, key=lambda one: CONSTANTS[one])
    most = 0.0
    for name in outputs:
        right, wrong = references[name], found[name]
        if right.value.shape != wrong.value.shape:
            return None
        unit = np.where(right.computed & wrong.computed, units[name], np.nan)
        each = shares(wrong.value, right.value, unit, target_class)
        most = max(most, float(each.max(initial=0.0)))
    return most


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
    """Why the case cannot detect a fault, or names a feature in ``insensitive_to`` wrongly.

    None if it is sensitive enough. ``found`` are the effects of its call. A case that must be
    rejected has no values to compare and is always accepted; one that may either compute or be
    rejected is treated like any other.
    """
    if case.contract.demands == "rejects":
        return None
    wrong = []
    for name, threshold in THRESHOLDS.items():
        effect = found.get(name)
        if effect is None:
            continue
        if name in case.insensitive_to and effect >= NO_EFFECT:
            wrong.append(
                f"insensitive_to lists {name}, but changing it moves the result by {effect:g} error"
                f" budgets: remove {name} from insensitive_to."
            )
        elif name not in case.insensitive_to and effect < threshold:
            declare = f", or write insensitive_to: [{name}] if it must not change the result"
            wrong.append(
                f"The case cannot show a fault in {name}: changing it moves the result by only"
                f" {effect:g} error budgets, and {threshold:g} are required. Choose values that"
                f" make it larger{declare if effect < NO_EFFECT else ''}."
            )
    return " ".join(wrong) or None
