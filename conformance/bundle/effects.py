"""Whether a case can detect a fault: how far the output moves when one part of the call changes.

A case about a softcap detects nothing if the call without it has the same result within the
tolerance: a runtime that ignores it would pass. The same holds for an input that is equal to the
value that a faulty kernel uses in its place. Therefore each attribute is changed and each input
replaced, one at a time, and the oracle computes the changed call too. The *effect* is the largest
change of any output element, in multiples of that element's error budget. :data:`REPLACEMENTS`
lists the changes. If the changed call has no meaning, there is no effect value.

``cases/sensitive.json`` has the SHA-256 of each theme's file from the time when all its cases were
found sensitive. A run measures a case only if its file has changed since then: measuring takes a
third of the time in which a case is prepared. ``tests/case/test_sensitivity.py`` measures the whole
corpus, and ``python -m conformance.maintain.sensitivity`` lists the effects of cases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from conformance.base.paths import data_path
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import computed_steps
from conformance.bundle.replacements import REPLACEMENTS, equals, last_heads, last_part
from conformance.bundle.script import script_of
from conformance.case.case import Case
from conformance.case.corpus import shipped_files
from conformance.operator.call import Call, GivenCall, GraphCall
from conformance.operator.replacement import THRESHOLD, CallChanges, ConnectedCall, Replacement
from conformance.operator.signature import INPUT_NAMES
from conformance.operator.tensors import attributes_of
from conformance.oracle import OracleError, Reference
from conformance.oracle.numbers import Bool, Float
from conformance.oracle.read_call import Attributes, Inputs, OracleCall, read_call
from conformance.oracle.reference import attended, outputs_of, rotated
from conformance.oracle.tolerance import CONSTANTS, TargetClass, shares

#: The record of the themes whose cases are sensitive, in the folder of the corpus.
RECORD: Final = "sensitive.json"
#: A case is insensitive to a feature if the effect is below this: one error budget.
NO_EFFECT: Final = 1.0
#: Effects are capped here: a larger one carries no more information, and JSON has no infinity.
_LARGEST_EFFECT: Final = 1e9
#: The target class with the largest error budgets, the unit of effects.
_WIDEST: Final[TargetClass] = max(CONSTANTS, key=lambda one: CONSTANTS[one])

#: The replacements, by the names of the effects.
REPLACED: Final[Mapping[str, Replacement]] = {one.key: one for one in REPLACEMENTS}

#: The effects that a case must show: the threshold of each, by its name.
THRESHOLDS: Final[Mapping[str, float]] = {
    **{name: one.threshold for name, one in REPLACED.items() if one.effect},
    "past": THRESHOLD,
}


def part_of(name: str) -> str:
    """The part of a call, as in ``insensitive_to``, that the effect with this name concerns."""
    replaced = REPLACED.get(name)
    return name if replaced is None or replaced.effect is None else replaced.effect


def effects(call: Call, *, every: bool = False) -> dict[str, float]:
    """The required effects of the active features of ``call``: the largest over its steps.

    ``every``: also the effects that only count as coverage, which take four times as long. Raises
    :class:`conformance.case.given.GivenError`.
    """
    found: dict[str, float] = {}
    if isinstance(call, GivenCall | GraphCall):  # values of a model are as they are
        return found
    script = script_of(call)
    answers = computed_steps(script)
    if answers.unjudged is not None:
        return found
    attributes = attributes_of(call)
    for inputs, expected in zip(answers.inputs, answers.steps, strict=True):
        skipped = sufficient(found)
        moved = effects_of_step(inputs, attributes, expected, skipped, every=every)
        found |= {name: max(effect, found.get(name, 0.0)) for name, effect in moved.items()}
    return found


def effects_of_step(
    inputs: Inputs,
    attributes: Attributes,
    expected: Mapping[str, Expected],
    skipped: Collection[str] = (),
    *,
    every: bool = False,
) -> dict[str, float]:
    """The effects of one step, except for the ``skipped`` ones, which another step shows.

    Nothing is measured if the attention of the call does not fit into memory
    (:attr:`Computation.is_large`).
    """
    references = {name: one.reference for name, one in expected.items()}
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
    given = ConnectedCall(call, inputs, references)
    wanted = [one for one in REPLACEMENTS if (one.effect or every) and one.key not in skipped]
    found = _replaced_effects(given, expected, stored, wanted)
    if "past" not in skipped:
        found |= _past_effect(call, output, expected["output"].units)
    return {name: min(float(f"{effect:.3g}"), _LARGEST_EFFECT) for name, effect in found.items()}


#: A replacement, the fields of the call that it changes, and the outputs that are compared.
_Pending = tuple[Replacement, CallChanges, Sequence[str]]
#: An output: its values, which of them are computed, and their unit budgets.
_Right = tuple[Float, Bool, Float]


def _replaced_effects(
    given: ConnectedCall,
    expected: Mapping[str, Expected],
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
        compared = [name for name in dict.fromkeys((*one.outputs, *stored)) if name in expected]
        changes = one.changes(given) if compared else None
        if changes is None:
            continue
        if not equals(call, changes):
            pending.append((one, changes, compared))
        elif one.effect:
            found[one.key] = 0.0
    right = {
        name: (expected[name].value, expected[name].reference.computed, expected[name].units)
        for name in {name for _, _, compared in pending for name in compared}
    }
    heads = last_heads(call)
    if (call.batch_size, call.num_heads) != (1, heads):
        width = heads * call.head_size
        of_part = {}
        for name, (value, computed, unit) in right.items():
            at = np.s_[-1:, :, -width:] if name == "output" else np.s_[-1:, -1:]
            of_part[name] = value[at], computed[at], unit[at]
        part = replace(call, **last_part(call, vars(call)))
        restricted = [(one, last_part(call, fields), names) for one, fields, names in pending]
        for one, effect in _measured(part, of_part, restricted):
            if effect >= one.enough:
                found[one.key] = effect
        pending = [each for each in pending if each[0].key not in found]
    found |= {one.key: effect for one, effect in _measured(call, right, pending)}
    return {name: found[name] for name in REPLACED if name in found}


def _measured(
    call: OracleCall, right: Mapping[str, _Right], pending: Sequence[_Pending]
) -> Iterator[tuple[Replacement, float]]:
    """The effects on a call; nothing for a changed call that has no meaning."""
    for one, changes, compared in pending:
        changed = replace(call, **changes)
        with suppress(OracleError):
            wrong = outputs_of(attended(changed, *rotated(changed)), compared)
            if all(wrong[name].value.shape == right[name][0].shape for name in compared):
                yield one, max(_distance(wrong[name], *right[name]) for name in compared)


def _distance(wrong: Reference, value: Float, computed: Bool, units: Float) -> float:
    """The distance of an output from the right value, in error budgets."""
    unit = np.where(computed & wrong.computed, units, np.nan)
    return float(shares(wrong.value, value, unit, _WIDEST).max(initial=0.0))


def _past_effect(call: OracleCall, output: Reference, unit: Float) -> dict[str, float]:
    """How far the output moves without all past tokens; empty if that shows in no sequence.

    Keys of total weight p contribute s = sum p v to an output o; without them the output is (o - s)
    / (1 - p), and 0 if there are no other keys. The effect is the largest over elements, and then
    the smallest over sequences.
    """
    a = output.attention
    if a is None:
        return {}
    budget = max(CONSTANTS.values()) * np.where(output.computed, unit, np.inf)
    batch_size, kv_num_heads, group, queries, size = a.output.shape
    budget = budget.reshape(batch_size, queries, kv_num_heads, group, size)
    budget = budget.transpose(0, 2, 3, 1, 4)
    least = np.inf
    for b, length in enumerate(call.past_lengths):
        rows = np.flatnonzero(np.isfinite(a.logits[b, ..., :length]).any(axis=(0, 1, 2)))
        if not rows.size or not np.isfinite(budget[b]).any():
            continue
        p = a.probabilities[b][..., rows]
        part = p @ a.value[b][:, None, rows]
        without = _without(a.output[b], part, p.sum(axis=-1, keepdims=True))
        least = min(least, float((np.abs(without - a.output[b]) / budget[b]).max()))
    return {} if np.isinf(least) else {"past": least}


def _without(output: Float, part: Float, weight: Float) -> Float:
    """The output without keys of this contribution and weight; 0 if there are no others."""
    rest = 1.0 - weight
    some = rest > 1e-12
    without: Float = np.where(some, (output - part) / np.where(some, rest, 1.0), 0.0)
    return without


def sufficient(found: Mapping[str, float]) -> set[str]:
    """The effects that are large enough; later steps of a loop can skip them."""
    return {name for name, effect in found.items() if effect >= enough(name)}


def enough(name: str) -> float:
    """The smallest effect, in error budgets, that shows the part ``name``."""
    return REPLACED[name].enough if name in REPLACED else THRESHOLDS[name]


def why_insensitive(case: Case) -> str | None:
    """The result of `insensitive`, measured only if the case's file is not recorded as sensitive.

    Raises :class:`conformance.case.given.GivenError`.
    """
    return None if is_recorded(case.file) else insensitive(case)


def insensitive(case: Case, found: Mapping[str, float] | None = None) -> str | None:
    """Why the case cannot detect a fault, or why ``insensitive_to`` names a part wrongly.

    None if it is sensitive enough. ``found`` are the effects of its call, if they are known. A case
    that must be rejected has no values to compare and is always accepted; a case that may either
    compute or be rejected is treated like any other.
    """
    if case.contract.demands == "rejects":
        return None
    found = effects(case.call) if found is None else found
    return " ".join(shortfalls(found, case.insensitive_to)) or None


def record_text(cases: Sequence[Case]) -> str:
    """The record of the files of these ``cases``; ends the command if one is insensitive.

    Only cases of files that are new or have changed are measured.
    """
    for case in cases:
        if why := why_insensitive(case):
            raise SystemExit(f"{case.id}: {why}")
    files = sorted({case.file for case in cases})
    return json.dumps({file.name: _digest(file) for file in files}, indent=1) + "\n"


@lru_cache(maxsize=1024)
def is_recorded(file: Path) -> bool:
    """Whether the file belongs to the corpus and has not changed since its cases were measured."""
    shipped = shipped_files().get(file.stem)
    return (
        shipped is not None
        and file.resolve() == shipped.resolve()
        and _digest(file) == _recorded().get(file.name)
    )


@cache
def _recorded() -> dict[str, str]:
    """The record; empty if it cannot be read, so that everything is measured."""
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        found = json.loads((data_path("cases") / RECORD).read_bytes())
    return found


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def lines(found: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """The effects as (label, line): the required ones, and the replacements that do not show."""
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
