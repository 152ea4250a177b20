"""Whether a case's numbers can show a fault: what each of its features changes, in error budgets.

A case about a feature is worth nothing where the call without the feature has the same result
within the tolerance: a runtime that ignores the feature passes. So each active feature of a call is
turned off in turn, the oracle computes that call as well, and the feature's *figure* is the
farthest that an element of the output moves, as a multiple of its budget. :data:`PERTURBATIONS`
is the table of them; where the call with the feature off has no meaning, there is no figure.

Only :func:`insensitive` knows cases; all else is on the level of tensors and attributes.
``python -m conformance.maintain.sensitivity`` lists the effects of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from conformance.case.case import Case, EffectName
from conformance.oracle import Attention, OracleError, Reference, reference
from conformance.oracle.call import Attributes, Call, Inputs, read_call
from conformance.oracle.numbers import Float
from conformance.oracle.tolerance import CONSTANTS, shares

#: A feature matters if without it some element of the output moves by so many budgets.
MATTERS: Final = 20.0
#: A window that is one token longer or shorter must be told apart too; one key of hundreds has no
#: larger part in the output, and two budgets are beyond what a right kernel can add to.
EDGE: Final = 2.0
#: Doubled key scales sharpen the softmax and no more, and bfloat16 has little left to say of that.
SCALES: Final = 5.0
#: A feature is indifferent if without it every element moves by less than so many budgets.
INDIFFERENT: Final = 1.0
#: Above this a figure says nothing more, and JSON has no infinity.
_MOST: Final = 1e9

#: Inputs and attributes of a call that differs in one feature.
Other = tuple[Inputs, Attributes]


@dataclass(frozen=True)
class Given:
    """A call as it stands: inputs, attributes, what the oracle reads in them, connected outputs."""

    inputs: Inputs
    attributes: Attributes
    call: Call
    outputs: Collection[str]

    def having(self, **attributes: float) -> Other:
        """The call with other attributes."""
        return self.inputs, {**self.attributes, **attributes}

    def replacing(self, **inputs: np.ndarray) -> Other:
        """The call with other numbers in some inputs."""
        return {**self.inputs, **inputs}, self.attributes

    def without(self, *names: str) -> Iterator[Other]:
        """The call without these inputs; nothing if it has none of them."""
        if any(name in self.inputs for name in names):
            kept = {name: array for name, array in self.inputs.items() if name not in names}
            yield kept, self.attributes


@dataclass(frozen=True)
class Perturbation:
    """One line of the table.

    ``others`` gives the calls that lack the feature or have another setting of it, none where it is
    not active; the figure is the least of theirs. It must be ``bar`` or more. ``seen_in`` names the
    outputs that are looked at: a present shows a wrong key however little the output minds it.
    """

    others: Callable[[Given], Iterator[Other]]
    bar: float = MATTERS
    seen_in: tuple[str, ...] = ("output",)


def _rotary(given: Given) -> Iterator[Other]:
    if given.call.cos is not None:
        yield given.having(do_rotary=0)


def _layout(given: Given) -> Iterator[Other]:
    if given.call.cos is not None:
        yield given.having(rotary_interleaved=int(not given.call.interleaved))


def _positions(given: Given) -> Iterator[Other]:
    """The positions moved by one, by moving the rows of the tables that they mean."""
    if given.call.cos is not None and given.call.position_ids is not None:
        tables = ("cos_cache", "sin_cache")
        yield given.replacing(**{name: np.roll(given.inputs[name], -1, axis=0) for name in tables})


def _window(given: Given) -> Iterator[Other]:
    if given.call.window is not None:
        yield given.having(local_window_size=-1)


def _window_edge(given: Given) -> Iterator[Other]:
    """A window that is one longer, and one shorter, where it hides anything at all."""
    window = given.call.window
    if window is not None and window < given.call.lengths.max():
        yield given.having(local_window_size=window + 1)
        if window > 1:
            yield given.having(local_window_size=window - 1)


def _softcap(given: Given) -> Iterator[Other]:
    if given.call.softcap:
        yield given.having(softcap=0.0)


def _smooth_softmax(given: Given) -> Iterator[Other]:
    if given.call.sink is not None and "head_sink" not in given.inputs:
        yield given.having(smooth_softmax=0)


def _causal(given: Given) -> Iterator[Other]:
    """The other direction, except beside a window, which cannot do without causal."""
    if given.call.sequence_length > 1 and given.call.window is None:
        yield given.having(causal=int(not given.call.causal))


def _scale(given: Given) -> Iterator[Other]:
    if np.float32(given.call.scale) != np.float32(given.call.head_size**-0.5):
        yield given.having(scale=0.0)


def _ragged(given: Given) -> Iterator[Other]:
    """Every sequence as long as the longest.

    The padding of a causal first prompt comes after everything that is looked at, so there the
    lengths change nothing that is defined.
    """
    call = given.call
    if np.any(call.lengths < call.total) and not (call.first_prompt and call.causal):
        yield given.replacing(seqlens_k=np.full_like(given.inputs["seqlens_k"], call.total - 1))


def _doubled(given: Given, names: Collection[str]) -> Iterator[Other]:
    """The call with each of these scales doubled."""
    for name in names:
        if name in given.inputs:
            yield given.replacing(**{name: 2 * given.inputs[name]})


def _mixed_up(given: Given, names: Collection[str]) -> Iterator[Other]:
    """The call with the scales of channels dealt to their neighbours."""
    for name in names:
        if name in given.inputs and np.ptp(given.inputs[name]) > 0:
            yield given.replacing(**{name: np.roll(given.inputs[name], 1, axis=-1)})


def _quantisation(given: Given) -> Iterator[Other]:
    """What is stored of new tokens; zeros are zeros by any scale."""
    for scale, present, new in (
        ("k_scale", "present_key", given.call.key),
        ("v_scale", "present_value", given.call.value),
    ):
        if present in given.outputs and new.any():
            yield from _doubled(given, [scale])
            yield from _mixed_up(given, [scale])


def _dequantisation(given: Given) -> Iterator[Other]:
    """What is read of the past."""
    if given.call.past_lengths.any():
        yield from _doubled(given, ["k_scale", "v_scale"])


def _channels(given: Given) -> Iterator[Other]:
    if given.call.past_lengths.any():
        yield from _mixed_up(given, ["k_scale", "v_scale"])


def _sliding(given: Given) -> Iterator[Other]:
    """A cache of everything, where the window cache has anything to evict."""
    call = given.call
    if call.window_cache and call.lengths.max() > call.past_sequence_length:
        yield given.having(sliding_window_cache=0)


_ALL: Final = ("output", "present_key", "present_value")

#: Every feature that can be set otherwise; the past stands apart (:func:`_past`).
PERTURBATIONS: Final[Mapping[EffectName, Perturbation]] = {
    "rotary": Perturbation(_rotary),
    "rotary_interleaved": Perturbation(_layout),
    # On a first prompt all positions move together, which only the turned keys show.
    "position_ids": Perturbation(_positions, seen_in=("output", "present_key")),
    "window": Perturbation(_window),
    "window_edge": Perturbation(_window_edge, EDGE),
    "softcap": Perturbation(_softcap),
    "attention_bias": Perturbation(lambda given: given.without("attention_bias")),
    "head_sink": Perturbation(lambda given: given.without("head_sink")),
    "smooth_softmax": Perturbation(_smooth_softmax),
    "causal": Perturbation(_causal),
    "scale": Perturbation(_scale),
    "ragged": Perturbation(_ragged),
    "qk_norm": Perturbation(lambda given: given.without("q_norm_weight", "k_norm_weight")),
    "quantisation": Perturbation(_quantisation, seen_in=("present_key", "present_value")),
    "dequantisation": Perturbation(_dequantisation, SCALES),
    "channels": Perturbation(_channels, EDGE),
    "sliding_window_cache": Perturbation(_sliding, seen_in=_ALL),
}

#: The effects that are looked at, and what each must reach.
THRESHOLDS: Final[Mapping[str, float]] = {
    **{str(name): feature.bar for name, feature in PERTURBATIONS.items()},
    "past": MATTERS,
}


def effects(
    inputs: Inputs,
    attributes: Attributes,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    shown: Collection[str] = (),
) -> dict[str, float]:
    """The figure of each feature that is active in one call, but for those already ``shown``.

    Beside the features there are ``past``, how far the output moves without the past, and
    ``past_token``, how far it moves without that one past token that counts least. The latter is
    for information: one of a thousand tokens may be worth less than a budget.

    Args:
        inputs: the connected inputs, as the oracle had them.
        attributes: the attributes that are set.
        references: what the oracle said of the connected outputs.
        units: the unit budgets of those outputs.
        shown: features that need no figure, since another call of the loop has a good one.
    """
    if "output" not in references or not references["output"].defined.any():
        return {}
    call = read_call(inputs, attributes, list(references))
    given = Given(inputs, attributes, call, list(references))
    # What the first prompt of a quantised cache attends to is open: its output tells little.
    quantised = any(f"{side}_scale" in inputs for side in "kv")
    stored = ("present_key",) if quantised and call.first_prompt else ()
    found: dict[str, float] = {}
    for name, feature in PERTURBATIONS.items():
        if name in shown:
            continue
        seen = [output for output in (*feature.seen_in, *stored) if output in references]
        if not seen:
            continue
        moved = [_moved(other, references, units, seen) for other in feature.others(given)]
        least = min((figure for figure in moved if figure is not None), default=None)
        if least is not None:
            found[name] = least
    if "past" not in shown:
        found |= _past(call, references["output"], units["output"])
    return {name: min(float(f"{figure:.3g}"), _MOST) for name, figure in found.items()}


def _moved(
    other: Other,
    references: Mapping[str, Reference],
    units: Mapping[str, Float],
    seen: Collection[str],
) -> float | None:
    """How far another call's outputs are from ``references``; None if they cannot be compared.

    In budgets of the class of targets that is allowed most.
    """
    try:
        found = reference(*other, seen)
    except OracleError:
        return None
    target_class = max(CONSTANTS, key=lambda one: CONSTANTS[one])
    most = 0.0
    for name in seen:
        right, wrong = references[name], found[name]
        if right.value.shape != wrong.value.shape:
            return None
        unit = np.where(right.defined & wrong.defined, units[name], np.nan)
        each = shares(wrong.value, right.value, unit, target_class)
        most = max(most, float(each.max(initial=0.0)))
    return most


def _past(call: Call, output: Reference, unit: Float) -> dict[str, float]:
    """How far the output moves without all, and without any one, of the past tokens.

    Without keys that have the weight p and give the output the part s = sum p v, an output o
    becomes (o - s) / (1 - p); without all that it sees it is taken to become 0. The effects are
    the largest of any element, and the least of any sequence or token that is attended to.
    """
    a = output.attention
    if a is None:
        return {}
    budget = max(CONSTANTS.values()) * np.where(output.defined, unit, np.inf)
    batch_size, kv_num_heads, group, queries, size = a.output.shape
    budget = budget.reshape(batch_size, queries, kv_num_heads, group, size)
    budget = budget.transpose(0, 2, 3, 1, 4)
    whole, token = np.inf, np.inf
    for b, length in enumerate(call.past_lengths):
        rows = np.flatnonzero(np.isfinite(a.logits[b, ..., :length]).any(axis=(0, 1, 2)))
        if not rows.size or not a.defined[b].any():
            continue
        p = a.probabilities[b][..., rows]
        part = p @ a.value[b][:, None, rows]
        without = _without(a.output[b], part, p.sum(axis=-1, keepdims=True))
        whole = min(whole, float((np.abs(without - a.output[b]) / budget[b]).max()))
        token = min(token, float(_each_token(a, b, rows, budget[b]).min()))
    return {} if np.isinf(whole) else {"past": whole, "past_token": token}


def _without(output: Float, part: Float, weight: Float) -> Float:
    """The output without keys of this part in it and this weight; 0 if they are all there is."""
    rest = 1.0 - weight
    some = rest > 1e-12
    without: Float = np.where(some, (output - part) / np.where(some, rest, 1.0), 0.0)
    return without


def _each_token(a: Attention, b: int, rows: np.ndarray, budget: Float) -> Float:
    """How far the outputs of a sequence move without each of ``rows``."""
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


def reached(found: Mapping[str, float]) -> set[str]:
    """The features whose effects are high enough, so that later calls of a loop need no more."""
    return {name for name, figure in found.items() if figure >= THRESHOLDS.get(name, np.inf)}


def worst(calls: Collection[Mapping[str, float]]) -> dict[str, float]:
    """The effects of a loop from those of its calls: the largest, since one call shows a fault."""
    found: dict[str, float] = {}
    for each in calls:
        for name, figure in each.items():
            found[name] = max(figure, found.get(name, 0.0))
    return found


def insensitive(case: Case, found: Mapping[str, float]) -> str | None:
    """Why the case proves nothing of a feature, or claims too much; None if it is fit.

    ``found`` are the effects of its call. A case that must be rejected has no values to show
    anything by; one that may compute or be rejected is held to its values like any other.
    """
    if case.contract.demands == "rejects":
        return None
    wrong = []
    for name, bar in THRESHOLDS.items():
        figure = found.get(name)
        if figure is None:
            continue
        if name in case.indifferent and figure >= INDIFFERENT:
            wrong.append(
                f"The case says that {name} is indifferent, but a call without it, or with another,"
                f" is {figure:g} error budgets away: take {name} out of indifferent."
            )
        elif name not in case.indifferent and figure < bar:
            indifferent = f", or say indifferent: [{name}] if it must not matter"
            wrong.append(
                f"The case cannot show a fault in {name}: a call without it, or with another, is"
                f" {figure:g} error budgets away at most, and {bar:g} are wanted. Give it sharper"
                f" values{indifferent if figure < INDIFFERENT else ''}."
            )
    return " ".join(wrong) or None
