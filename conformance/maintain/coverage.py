"""docs/coverage.md: the number of cases for each part of the signature and each feature.

``python -m conformance.maintain.generate`` writes the file.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from conformance.base.signature import ATTRIBUTES, INPUTS, OUTPUTS, Attribute
from conformance.case.case import Case
from conformance.case.features import (
    BY_NAME,
    FEATURES,
    REST,
    RULES,
    Feature,
    Rule,
    features_of,
)
from conformance.case.tensors import Tensor, attributes_of

#: The largest number of values of an attribute that are listed singly.
FEW: Final = 5

Pair = tuple[str, str, str, str]

#: The parts of a call that show each value of a feature (:data:`conformance.case.case.EffectName`).
#: A case that is insensitive to all of them has the value, but does not look at it.
SHOWN_BY: Final[Mapping[str, Sequence[str]]] = {
    "position_ids": ("position_ids",),
    "lengths": ("ragged",),
    "attention_bias": ("attention_bias",),
    "sink": ("head_sink", "smooth_softmax"),
    "softcap": ("softcap",),
    "scale": ("scale",),
    "qk_norm": ("qk_norm",),
    "rotary": ("rotary",),
    "query_seqlens": ("query_seqlens",),
}


def looked_at(case: Case) -> dict[str, str | None]:
    """The value of each feature of a case; None for one that its result does not depend on.

    A case that runs shows all parts of its call that it does not declare in ``insensitive_to``. The
    lengths of a causal prompt change no defined element.
    """
    found = features_of(case.call, case.steps)
    is_prompt = found["phase"] == "prefill"
    if ("quantisation" if is_prompt else "dequantisation") in case.insensitive_to:
        found["quantised"] = None
    for feature, parts in SHOWN_BY.items():
        is_plain = found[feature] == BY_NAME[feature].values[0]
        if not is_plain and set(parts) & set(case.insensitive_to):
            found[feature] = None
    if is_prompt and found["causal"] == "causal" and found["lengths"] == "ragged":
        found["lengths"] = None
    return found


def pair_counts(
    cases: Iterable[Case], values: Callable[[Case], Mapping[str, str | None]] = looked_at
) -> Counter[Pair]:
    """How many cases have each pair, as (feature, value, feature, value) in FEATURES' order."""
    counts: Counter[Pair] = Counter()
    for case in cases:
        if not case.counts_for_coverage:
            continue
        found = [(name, value) for name, value in values(case).items() if value is not None]
        counts.update((*one, *other) for one, other in itertools.combinations(found, 2))
    return counts


def all_pairs(one: Feature, other: Feature) -> Iterator[Pair]:
    """Every required pair of values of the two features."""
    for value, another in itertools.product(one.paired, other.paired):
        yield one.name, value, other.name, another


def reason_for(pair: Pair) -> Rule | None:
    """The first rule that excludes a pair."""
    row = {pair[0]: pair[1], pair[2]: pair[3]}
    return next((rule for rule in RULES if rule.forbids(row)), None)


def faults(cases: Iterable[Case]) -> list[str]:
    """The errors of the coverage: pairs with neither a case nor a reason, and pairs with both."""
    counts = pair_counts(cases)
    found = []
    for one, other in itertools.combinations(FEATURES, 2):
        for pair in all_pairs(one, other):
            rule = reason_for(pair)
            if counts[pair] and rule:
                found.append(f"{_named(pair)}: {counts[pair]} cases, although '{rule.reason}'")
            elif not counts[pair] and not rule:
                found.append(f"{_named(pair)}: no case and no reason")
    return found


def text(cases: Sequence[Case], looking_at: Mapping[str, int]) -> str:
    """The page. ``looking_at``: how many cases look at each input (looked_at.py)."""
    single = [case for case in cases if not case.is_graph]
    sections = [_head(cases), _signature(single, looking_at), _features(single), _pairs(single)]
    return "\n".join(line for section in sections for line in section)


def _named(pair: Pair) -> str:
    return f"{pair[0]} {pair[1]} × {pair[2]} {pair[3]}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield ""


def _head(cases: Sequence[Case]) -> Iterator[str]:
    demands = Counter(case.contract.demands for case in cases)
    yield "# What the cases cover"
    yield ""
    yield "Written by `python -m conformance.maintain.generate`; a test keeps it current. Features,"
    yield "and the rules for values that exclude each other, are in `conformance/case/features.py`."
    yield ""
    yield (
        f"{len(cases)} cases in {len({case.theme for case in cases})} themes:"
        f" {demands['computes']} must compute, {demands['rejects']} must be rejected,"
        f" {demands['either']} may do either."
    )
    graphs = sum(case.is_graph for case in cases)
    yield f"{graphs} of them are [graphs](cases.md#graphs), which the tables below leave out."
    yield ""


def _signature(cases: Sequence[Case], looking_at: Mapping[str, int]) -> Iterator[str]:
    yield "## The signature"
    yield ""
    yield "Cases of every contract. An omitted input has an empty name, or the list ends before it."
    yield "*Looked at*: cases whose result moves when the input is replaced by something that a"
    yield "faulty kernel could use in its place; [inputs.md](inputs.md) has each replacement."
    yield ""
    rows: list[tuple[object, ...]] = []
    for parameter in INPUTS:
        tensors = [case.steps[0].input(parameter.name) for case in cases]
        looking = looking_at.get(parameter.name, 0)
        rows.append((f"`{parameter.name}`", *_states(tensors), looking, _forms(tensors)))
    states = ("connected", "omitted", "list ends before")
    yield from _table(("input", *states, "looked at", "forms"), rows)
    rows = []
    for index, parameter in enumerate(OUTPUTS):
        tensors = [case.steps[0].outputs[index] for case in cases]
        declared = sum(tensor.connected and tensor.shape is not None for tensor in tensors)
        shape = f"shape declared: {declared}" if declared else ""
        types = _counted(tensor.dtype for tensor in tensors if tensor.connected)
        rows.append(
            (f"`{parameter.name}`", *_states(tensors), "; ".join(filter(None, (types, shape))))
        )
    yield from _table(("output", *states, "forms"), rows)
    rows = [
        (f"`{attribute.name}`", _values([attributes_of(case.call) for case in cases], attribute))
        for attribute in ATTRIBUTES
    ]
    yield from _table(("attribute", "cases at each value"), rows)


def _states(tensors: Sequence[Tensor]) -> tuple[int, int, int]:
    states = Counter(tensor.state for tensor in tensors)
    return states["connected"], states["omitted"], states["trailing"]


def _forms(tensors: Sequence[Tensor]) -> str:
    """Number of cases by dtype, with empty tensors and with values written by hand."""
    there = [tensor for tensor in tensors if tensor.connected and tensor.shape is not None]
    parts = [_counted(tensor.dtype for tensor in there)]
    if empty := sum(0 in (tensor.shape or ()) for tensor in there):
        parts.append(f"empty: {empty}")
    if written := sum(tensor.data is not None for tensor in there):
        parts.append(f"numbers written out: {written}")
    return "; ".join(filter(None, parts))


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in sorted(Counter(words).items()))


def _values(found: Sequence[dict[str, Any]], attribute: Attribute) -> str:
    """The number of cases with each value of an attribute; rare values are only counted."""
    values = (attributes[attribute.name] for attributes in found if attribute.name in attributes)
    counts = Counter(math.nan if value != value else value for value in values)
    unset = len(found) - counts.total()
    parts = [f"not set: {unset}"] if unset else []
    shown = sorted(counts, key=lambda value: (-counts[value], str(value)))
    known = [value for value in (attribute.default, 0, -1) if value in counts]
    told = shown if len(shown) <= FEW else list(dict.fromkeys(known + shown[: FEW - len(known)]))
    parts += [f"{value}: {counts[value]}" for value in sorted(told, key=_order)]
    rest = len(shown) - len(told)
    if rest:
        others = counts.total() - sum(counts[value] for value in told)
        parts.append(f"{rest} other values: {others}")
    return ", ".join(parts)


def _order(value: object) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _features(cases: Sequence[Case]) -> Iterator[str]:
    yield "## Features"
    yield ""
    yield "Cases that must compute and, after a +, those that may compute or reject. Calls without"
    yield "a listed value (invalid on purpose, or a reading only requested) are not counted."
    yield "Nor is a value on which the result does not depend: the case lists the part in"
    yield "`insensitive_to`, which the tests compare with what was measured, or it is the lengths"
    yield "of a causal prompt."
    yield ""
    plain: Counter[tuple[str, str | None]] = Counter()
    either: Counter[tuple[str, str | None]] = Counter()
    for case in cases:
        if case.counts_for_coverage:
            tally = either if case.contract.demands == "either" else plain
            tally.update(looked_at(case).items())
    rows = []
    for feature in FEATURES:
        cells = []
        for value in feature.values:
            extra = either[feature.name, value]
            cells.append(f"{value} {plain[feature.name, value]}" + (f" + {extra}" if extra else ""))
        rows.append((feature.name, ", ".join(cells)))
    yield from _table(("feature", "cases at each value"), rows)


def _pairs(cases: Sequence[Case]) -> Iterator[str]:
    counts = pair_counts(cases)
    possible = [
        pair
        for one, other in itertools.combinations(FEATURES, 2)
        for pair in all_pairs(one, other)
        if reason_for(pair) is None
    ]
    fewest = min(counts[pair] for pair in possible)
    yield "## Pairs"
    yield ""
    yield f"Each of the {len(possible):,} possible pairs of values of two features has at least"
    yield f"{fewest} cases; the value `{REST}` has no pairs. `gqa list` shows those of a pair:"
    yield '`gqa list "softcap=given and sink=head_sink"`.'
    yield ""
