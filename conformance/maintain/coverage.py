"""Which pairs and triples of values have a case.

A value is one of a feature, or a class of sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from conformance.case.case import Case
from conformance.case.properties import Described, comparison_test
from conformance.operator.features import FEATURES, features_of
from conformance.operator.part import Condition, FieldChanges
from conformance.operator.parts.cache import CACHE
from conformance.operator.parts.key_value import KEY_VALUE
from conformance.operator.parts.lengths import BATCH, PHASE
from conformance.operator.parts.sizes import HEAD_SIZE, HEADS
from conformance.operator.rules import RULES, Rule

FeatureValue = tuple[str, str]
"""A feature and its value, or a size and the comparison that its class has in ``-k``."""
Combinations = np.ndarray[Any, np.dtype[np.bool_]]
"""Which combinations of three of `VALUES`, an axis each; a pair repeats one of its values."""

#: Classes of sizes in which kernels take other ways than in small calls, and fields with them.
SIZE_CLASSES: Final[Mapping[FeatureValue, tuple[FieldChanges, ...]]] = {
    ("num_heads", ">=32"): (
        {"num_heads": 32, "kv_num_heads": 4},
        {"num_heads": 32, "kv_num_heads": 32},
        {"num_heads": 32, "kv_num_heads": 1},
    ),
    ("group_size", ">=5"): (
        {"num_heads": 10, "kv_num_heads": 2},
        {"num_heads": 5, "kv_num_heads": 1},
    ),
    ("kv_num_heads", ">2"): (
        {"num_heads": 6, "kv_num_heads": 3},
        {"num_heads": 3, "kv_num_heads": 3},
    ),
    ("head_size", "%8!=0"): ({"head_size": 20},),
    ("head_size", "%16=8"): ({"head_size": 24},),
    ("head_size", "%32=16"): ({"head_size": 48},),
    ("batch_size", ">4"): ({"batch_size": 5},),
    ("sequence_length", ">16"): ({"sequence_length": 17}, {"loop": [17, 1, 3]}),
    ("sequence_length", ">64"): ({"sequence_length": 65}, {"loop": [65, 1, 3]}),
    ("total_sequence_length", "=2000..2100"): (
        {"past_sequence_length": 2031},
        {"past_sequence_length": 2031, "num_heads": 2, "kv_num_heads": 1},
    ),
    ("total_sequence_length", ">8192"): (
        {"past_sequence_length": 8200},
        {"past_sequence_length": 8200, "num_heads": 2, "kv_num_heads": 1},
        {"past_sequence_length": 8200, "num_heads": 1, "kv_num_heads": 1},
    ),
}
_LONG: Final[Condition] = ("total_sequence_length", (">8192",))
_TOTAL: Final[Condition] = ("total_sequence_length", ("=2000..2100",))
_STEPS: Final[Condition] = ("sequence_length", (">16", ">64"))
#: The values of features that classes of sizes exclude.
SIZE_RULES: Final = (
    Rule((HEADS.of("mha"), ("group_size", (">=5",))), "A group of MHA has one head."),
    Rule((HEADS.of("mqa"), ("kv_num_heads", (">2",))), "MQA has one key/value head."),
    Rule((BATCH.of("one"), ("batch_size", (">4",))), "One sequence is no batch."),
    Rule((PHASE.of("decode"), _STEPS), "A decode has one token."),
    Rule((PHASE.of("prefill"), _LONG), "A prompt of 8,193 tokens takes seconds."),
    Rule((CACHE.of("none"), _LONG), "Without a cache it is such a prompt."),
    Rule((PHASE.of("loop"), _LONG), "Each call of the loop would take as long as a large one."),
)

#: Why triples have no case although no rule excludes them.
LEFT: Final = (
    Rule((PHASE.of("prefill"), _TOTAL), "A prompt of 2,000 tokens takes long."),
    Rule((PHASE.of("prefill"), KEY_VALUE.of("zero_valued")), "Such a prompt puts out zeros."),
)
_MANY_KEYS: Final[Condition] = ("total_sequence_length", ("=2000..2100", ">8192"))
#: Other triples without a case: rows of them are made last, if at all.
LARGE: Final = tuple(
    Rule((_MANY_KEYS, other), "With so many keys the call is large.")
    for other in (
        ("num_heads", (">=32",)),
        ("batch_size", (">4",)),
        ("sequence_length", (">16", ">64")),
        HEAD_SIZE.of("64", "80", "128", "256", "512"),
    )
)

VALUES: Final[tuple[FeatureValue, ...]] = (
    *((feature.name, value) for feature in FEATURES for value in feature.paired),
    *SIZE_CLASSES,
)
INDEX: Final = {value: number for number, value in enumerate(VALUES)}


_IN_CLASS: Final = {
    one: test for one in SIZE_CLASSES if (test := comparison_test("".join(one))) is not None
}


def size_classes(case: Described) -> set[FeatureValue]:
    """The classes of the sizes of a call."""
    return {one for one, test in _IN_CLASS.items() if test(case)}


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


def values_of(case: Case) -> set[FeatureValue]:
    """The values of a case on which its result depends, without such as `other`."""
    return {value for value in looked_at(case).items() if value in INDEX} | size_classes(case)


def combinations(rows: Iterable[Collection[FeatureValue]]) -> Combinations:
    """The pairs and triples of the values of each of ``rows``."""
    found = np.zeros((len(VALUES),) * 3, bool)
    for row in rows:
        at = [INDEX[value] for value in row]
        found[np.ix_(at, at, at)] = True
    return found


@cache
def possible() -> Combinations:
    """The pairs and triples of values of different features that no rule excludes."""
    names = np.array([name for name, _ in VALUES])
    same = np.eye(len(VALUES), dtype=bool)
    fit = same | (names[:, None] != names)
    found: Combinations = fit[:, :, None] & fit[:, None] & fit & ~(same[:, :, None] & same)
    found &= ~excluded_by((*RULES, *SIZE_RULES))
    for feature in FEATURES:
        if len(feature.paired) == len(feature.values):
            found &= _fits(found, [INDEX[feature.name, value] for value in feature.values])
    return found


def excluded_by(rules: Iterable[Rule]) -> Combinations:
    """The combinations that one of the rules forbids."""
    found = np.zeros((len(VALUES),) * 3, bool)
    for rule in rules:
        if len(rule.values) > 3:
            continue
        sides = [
            [number for number, (name, value) in enumerate(VALUES) if name == of and value in some]
            for of, some in rule.values
        ]
        sides += [[*range(len(VALUES))]] * (3 - len(sides))
        for order in itertools.permutations(sides):
            found[np.ix_(*order)] = True
    return found


def _fits(found: Combinations, values: Sequence[int]) -> Combinations:
    """The combinations that go together with one of these ``values`` of a feature."""
    fit = np.zeros_like(found)
    for value in values:
        pairs = found[value].copy()
        pairs[value, value] = True
        fit |= pairs[:, :, None] & pairs[:, None] & pairs
    return fit


@cache
def are_pairs() -> Combinations:
    """The combinations that are pairs."""
    same = np.eye(len(VALUES), dtype=bool)
    found: Combinations = same[:, :, None] | same[:, None] | same
    return found


def listed(found: Combinations) -> Iterator[tuple[FeatureValue, ...]]:
    """The pairs and triples in ``found``, each once, in the order of `VALUES`."""
    for at in np.argwhere(found):
        if (np.diff(at) >= 0).all() and at[0] != at[1]:  # a pair repeats its second value
            yield tuple(VALUES[number] for number in dict.fromkeys(at.tolist()))


def reason_of(rules: Iterable[Rule], values: Sequence[FeatureValue]) -> str:
    """The reason of the first of ``rules`` that forbids a combination; "" if none does."""
    return next((rule.reason for rule in rules if rule.forbids(dict(values))), "")


def name_of(values: Sequence[FeatureValue]) -> str:
    """A combination in words; a class of sizes is its comparison."""
    return " × ".join("".join(one) if one in SIZE_CLASSES else " ".join(one) for one in values)


def faults(cases: Iterable[Case]) -> list[str]:
    """The errors of the coverage: pairs with neither a case nor a rule, and pairs with both."""
    there = combinations(values_of(case) for case in cases if case.counts_for_coverage)
    errors = [
        f"{name_of(pair)}: no case and no reason"
        for pair in listed(possible() & are_pairs() & ~there & ~excluded_by(LARGE))
    ]
    for pair in listed(there & are_pairs() & ~possible()):
        if why := reason_of((*RULES, *SIZE_RULES), pair):
            errors.append(f"{name_of(pair)}: a case, although '{why}'")
    return errors
