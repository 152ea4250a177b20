"""Makes docs/coverage.md: the number of cases for each part of the signature and each feature.

``python -m conformance.maintain.generate`` writes the file.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conformance.base.paths import data_path
from conformance.base.signature import ATTRIBUTES, INPUTS, OUTPUTS, Attribute
from conformance.case.case import Case
from conformance.case.features import BY_NAME, FEATURES, REST, RULES, Rule, features_of
from conformance.case.tensors import Tensor, attributes_of

#: The largest number of values of an attribute that are listed one by one.
FEW: Final = 5

Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two features, each with a value, in the order of `FEATURES`."""

#: The parts of a call (:data:`conformance.case.case.EffectName`) that depend on each feature. If a
#: case is insensitive to one of them, its result does not show the value of the feature.
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
    """The value of each feature of a case; None if the result does not depend on the feature.

    The result depends on all parts of the call but those in ``insensitive_to``, and the lengths of
    a causal prompt, which change no defined element.
    """
    values = features_of(case.call, case.steps)
    is_prompt = values["phase"] == "prefill"
    if ("quantisation" if is_prompt else "dequantisation") in case.insensitive_to:
        values["quantised"] = None
    for feature, parts in SHOWN_BY.items():
        is_plain = values[feature] == BY_NAME[feature].values[0]
        if not is_plain and set(parts) & set(case.insensitive_to):
            values[feature] = None
    if is_prompt and values["causal"] == "causal" and values["lengths"] == "ragged":
        values["lengths"] = None
    return values


def pairs_of(values: Mapping[str, str | None]) -> Iterator[Pair]:
    """The pairs of feature values of a call, without values such as `other`."""
    there = [
        (feature.name, value)
        for feature in FEATURES
        if (value := values.get(feature.name)) in feature.paired
    ]
    return itertools.combinations(there, 2)


def pair_counts(
    cases: Iterable[Case], values: Callable[[Case], Mapping[str, str | None]] = looked_at
) -> Counter[Pair]:
    """The number of cases with each pair."""
    return Counter(
        pair for case in cases if case.counts_for_coverage for pair in pairs_of(values(case))
    )


def all_pairs() -> list[Pair]:
    """All pairs of values of two features, including those that exclude each other."""
    return [
        ((one.name, value), (other.name, another))
        for one, other in itertools.combinations(FEATURES, 2)
        for value, another in itertools.product(one.paired, other.paired)
    ]


def reason_for(pair: Pair) -> Rule | None:
    """The first rule that excludes a pair; None if no rule does."""
    return next((rule for rule in RULES if rule.forbids(dict(pair))), None)


def legal_pairs() -> list[Pair]:
    """All pairs of values that no rule excludes."""
    return [pair for pair in all_pairs() if reason_for(pair) is None]


def faults(cases: Iterable[Case]) -> list[str]:
    """The errors of the coverage: pairs with neither a case nor a rule, and pairs with both."""
    counts = pair_counts(cases)
    errors = []
    for pair in all_pairs():
        rule = reason_for(pair)
        name = " × ".join(map(" ".join, pair))
        if counts[pair] and rule:
            errors.append(f"{name}: {counts[pair]} cases, although '{rule.reason}'")
        elif not counts[pair] and not rule:
            errors.append(f"{name}: no case and no reason")
    return errors


def text(cases: Sequence[Case], looking_at: Mapping[str, int]) -> str:
    """The page. ``looking_at`` has the number of cases that depend on each input (looked_at.py)."""
    single = [case for case in cases if not case.is_graph]
    counts = pair_counts(single)
    legal = legal_pairs()
    return rendered(
        "coverage.md.j2",
        cases=len(cases),
        themes=len({case.theme for case in cases}),
        demands=Counter(case.contract.demands for case in cases),
        graphs=len(cases) - len(single),
        inputs=[_input(single, parameter.name, looking_at) for parameter in INPUTS],
        outputs=[_output(single, place) for place in range(len(OUTPUTS))],
        attributes=[_attribute(single, attribute) for attribute in ATTRIBUTES],
        features=list(_features(single)),
        pairs=len(legal),
        fewest=min(counts[pair] for pair in legal),
        rest=REST,
    )


def rendered(template: str, **values: object) -> str:
    """A page made from a template in ``reports``."""
    environment = Environment(
        loader=FileSystemLoader(data_path("reports")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def _input(cases: Sequence[Case], name: str, looking_at: Mapping[str, int]) -> tuple[object, ...]:
    tensors = [case.steps[0].input(name) for case in cases]
    return f"`{name}`", *_states(tensors), looking_at.get(name, 0), _forms(tensors)


def _output(cases: Sequence[Case], place: int) -> tuple[object, ...]:
    tensors = [case.steps[0].outputs[place] for case in cases]
    declared = sum(tensor.connected and tensor.shape is not None for tensor in tensors)
    types = _counted(tensor.dtype for tensor in tensors if tensor.connected)
    forms = [types, f"shape declared: {declared}" if declared else ""]
    return f"`{OUTPUTS[place].name}`", *_states(tensors), "; ".join(filter(None, forms))


def _states(tensors: Sequence[Tensor]) -> tuple[int, int, int]:
    states = Counter(tensor.state for tensor in tensors)
    return states["connected"], states["omitted"], states["trailing"]


def _forms(tensors: Sequence[Tensor]) -> str:
    """The numbers of cases by dtype, with empty tensors, and with values written in the case."""
    there = [tensor for tensor in tensors if tensor.connected and tensor.shape is not None]
    parts = [_counted(tensor.dtype for tensor in there)]
    if empty := sum(0 in (tensor.shape or ()) for tensor in there):
        parts.append(f"empty: {empty}")
    if written := sum(tensor.data is not None for tensor in there):
        parts.append(f"numbers written out: {written}")
    return "; ".join(filter(None, parts))


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word}: {count}" for word, count in sorted(Counter(words).items()))


def _attribute(cases: Sequence[Case], attribute: Attribute) -> tuple[str, str]:
    """An attribute with the number of cases for each value; rare values are only counted."""
    of_cases = [attributes_of(case.call) for case in cases]
    values = (each[attribute.name] for each in of_cases if attribute.name in each)
    counts: Counter[Any] = Counter(math.nan if value != value else value for value in values)
    unset = len(cases) - counts.total()
    parts = [f"not set: {unset}"] if unset else []
    common = sorted(counts, key=lambda value: (-counts[value], str(value)))
    usual = [value for value in (attribute.default, 0, -1) if value in counts]
    listed = common
    if len(common) > FEW:
        listed = list(dict.fromkeys(usual + common[: FEW - len(usual)]))
    parts += [f"{value}: {counts[value]}" for value in sorted(listed, key=_order)]
    rest = len(common) - len(listed)
    if rest:
        others = counts.total() - sum(counts[value] for value in listed)
        parts.append(f"{rest} other values: {others}")
    return f"`{attribute.name}`", ", ".join(parts)


def _order(value: object) -> tuple[int, float, str]:
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _features(cases: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """Each feature with the number of cases for each value; after a +, those that may reject."""
    counts: Counter[tuple[bool, str, str | None]] = Counter()
    for case in cases:
        if case.counts_for_coverage:
            either = case.contract.demands == "either"
            counts.update((either, *value) for value in looked_at(case).items())
    for name, values in ((feature.name, feature.values) for feature in FEATURES):
        cells = []
        for value in values:
            extra = counts[True, name, value]
            cells.append(f"{value} {counts[False, name, value]}" + (f" + {extra}" if extra else ""))
        yield name, ", ".join(cells)
