"""The pairs of features that the corpus covers: each possible pair has a case."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from conformance.case.case import Case
from conformance.operator.features import FEATURES, features_of
from conformance.operator.rules import RULES, Rule

FeaturePair = tuple[tuple[str, str], tuple[str, str]]
"""Two features, each with a value, in the order of `FEATURES`."""


def looked_at(case: Case) -> dict[str, str | None]:
    """The value of each feature of a case; None if the result does not depend on the feature.

    The result depends on all parts of the call but those in ``insensitive_to``, and the lengths of
    a causal prompt, which change no defined element.
    """
    values = features_of(case.call, case.steps)
    is_prompt = values["phase"] == "prefill"
    if ("quantisation" if is_prompt else "dequantisation") in case.insensitive_to:
        values["quantised"] = None
    for feature in FEATURES:
        if values[feature.name] != feature.plain and {*feature.shown_by} & {*case.insensitive_to}:
            values[feature.name] = None
    if is_prompt and values["causal"] == "causal" and values["lengths"] == "ragged":
        values["lengths"] = None
    return values


def pairs_of(values: Mapping[str, str | None]) -> Iterator[FeaturePair]:
    """The pairs of feature values of a call, without values such as `other`."""
    there = [
        (feature.name, value)
        for feature in FEATURES
        if (value := values.get(feature.name)) in feature.paired
    ]
    return itertools.combinations(there, 2)


def pair_counts(
    cases: Iterable[Case], values: Callable[[Case], Mapping[str, str | None]] = looked_at
) -> Counter[FeaturePair]:
    """The number of cases with each pair."""
    return Counter(
        pair for case in cases if case.counts_for_coverage for pair in pairs_of(values(case))
    )


def all_pairs() -> list[FeaturePair]:
    """All pairs of values of two features, including those that exclude each other."""
    return [
        ((one.name, value), (other.name, another))
        for one, other in itertools.combinations(FEATURES, 2)
        for value, another in itertools.product(one.paired, other.paired)
    ]


def reason_for(pair: FeaturePair) -> Rule | None:
    """The first rule that excludes a pair; None if no rule does."""
    return next((rule for rule in RULES if rule.forbids(dict(pair))), None)


def legal_pairs() -> list[FeaturePair]:
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
