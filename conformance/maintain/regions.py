"""The regions in which a fault can be on, and which faults and regions exclude each other.

Regions and what the mutants need are declared beside the mutants (``mutants/regions.py``,
``mutants/needs.py``), in the words of the features. Whether a call can meet both is decided by
these declarations, by the rules of the features and by arithmetic; never by the corpus.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from conformance.case.features import BY_NAME, RULES, SLIDING, Rule

#: What a region or a mutant needs: the values of a feature that it may have, or the smallest and
#: the largest size.
Needs = Mapping[str, Sequence[str | float]]

#: Needs that are a range of numbers, not a choice of values.
SIZES: Final = ("keys", "queries", "batch_size", "head_size", "num_heads", "kv_num_heads")

#: The rules of the features, and one that concerns three of them.
_RULES: Final = (
    *RULES,
    Rule(
        {"cache": ("sliding_window",), "phase": ("chunked_prefill",), "batch": ("more",)},
        "Several tokens on a sliding-window cache require a batch of one.",
        SLIDING,
    ),
)
#: The features that a rule names.
_RULED: Final = tuple(name for name in BY_NAME if any(name in rule.values for rule in _RULES))

#: The most tokens of a prompt: all of them are queries, and so are its scores the square of it.
LONGEST_PROMPT: Final = 1024

#: If a size lies in a range, then a feature does not have a value.
_ARITHMETIC: Final = (
    ("queries", 2, math.inf, "phase", "decode", "A decode has one query token."),
    ("queries", 1, 1, "phase", "chunked_prefill", "A chunk has several query tokens."),
    ("batch_size", 2, math.inf, "batch", "one", "A batch of one has no second sequence."),
    ("batch_size", 1, 1, "batch", "more", "A batch of one has no second sequence."),
    ("keys", 1, 1, "phase", "decode", "A sequence of one token has no past."),
    ("kv_num_heads", 2, math.inf, "heads", "mqa", "MQA has one key/value head."),
    ("keys", 1, 1, "lengths", "ragged", "A sequence has a token."),
    (
        "keys",
        LONGEST_PROMPT + 1,
        math.inf,
        "phase",
        "prefill",
        "The corpus has no prompt so long: it has over a million scores a head.",
    ),
)


class Part(NamedTuple):
    """What lies on an axis from index ``first`` on."""

    axis: str
    first: int


@dataclass(frozen=True)
class Region:
    """A set of calls, or of parts of calls. ``what`` describes it in a sentence.

    ``outputs``: those that have the part.
    """

    name: str
    group: str
    what: str
    needs: Needs = field(hash=False)
    part: Part | None = None
    outputs: Sequence[str] = field(default=(), hash=False)

    @staticmethod
    def read(line: str) -> Region:
        """A region as the runner lists it."""
        fields = json.loads(line)
        return Region(**{**fields, "part": fields["part"] and Part(*fields["part"])})


def joined(one: Needs, other: Needs) -> Needs:
    """What both need together."""
    both = dict(one)
    for name, values in other.items():
        if name not in both:
            both[name] = values
        elif name in SIZES:
            low, high = both[name], values
            both[name] = (max(low[0], high[0]), min(low[1], high[1]))
        else:
            both[name] = [value for value in both[name] if value in values]
    return both


def excluded(needs: Needs) -> str:
    """Why no call can have all that is needed; empty if a call can."""
    for name, values in needs.items():
        what = name.replace("_", " ")
        if name in SIZES and values[0] > values[1]:  # type: ignore[operator]
            return f"The two need different numbers of {what}."
        if not values:
            return f"The two need different values of {what}."
    if set(needs.get("phase", ())) == {"prefill"}:
        tokens = [needs.get(name, (1, math.inf)) for name in ("keys", "queries")]
        if max(float(low) for low, _ in tokens) > min(float(high) for _, high in tokens):
            return "In a prompt each token is a query and a key."
    for name, low, high, other, value, why in _ARITHMETIC:
        least, most = needs.get(name, (1, math.inf))
        if least >= low and most <= high and set(needs.get(other, ())) == {value}:  # type: ignore[operator]
            return why
        if least >= low and most <= high:  # type: ignore[operator]
            needs = {**needs, other: _without(value, needs.get(other, BY_NAME[other].values))}
    return _by_rules(
        tuple((name, tuple(map(str, needs.get(name, BY_NAME[name].values)))) for name in _RULED)
    )


def _without(value: str, values: Sequence[str | float]) -> tuple[str | float, ...]:
    return tuple(other for other in values if other != value)


@cache
def _by_rules(domains: tuple[tuple[str, tuple[str, ...]], ...]) -> str:
    """The reason of the rule by which no call has a value of each domain."""
    if _possible(domains, _RULES):
        return ""
    for rule in _RULES:
        if _possible(domains, [other for other in _RULES if other is not rule]):
            return rule.reason
    return "Several rules of the features exclude it."


def _possible(domains: Sequence[tuple[str, tuple[str, ...]]], rules: Sequence[Rule]) -> bool:
    """Whether there is a value for each feature that no rule forbids."""
    left = dict(domains)
    rules = [
        rule
        for rule in rules
        if all(set(values) & set(left[name]) for name, values in rule.values.items())
    ]
    # A value that no rule names is the best choice: no rule that names its feature matters then.
    while free := [
        name
        for name in {name for rule in rules for name in rule.values}
        if set(left[name]).difference(*(rule.values.get(name, ()) for rule in rules))
    ]:
        rules = [rule for rule in rules if rule.values.keys().isdisjoint(free)]
    named = {name for rule in rules for name in rule.values}
    order = sorted(((n, left[n]) for n in named), key=lambda one: (len(one[1]), one[0]))
    names = [name for name, _ in order]
    due: list[list[Rule]] = [[] for _ in order]  # rules whose features are then all chosen
    for rule in rules:
        due[max(names.index(name) for name in rule.values)].append(rule)

    def search(row: dict[str, str | None], place: int) -> bool:
        if place == len(order):
            return True
        name, values = order[place]
        for value in values:
            row[name] = value
            if not any(rule.forbids(row) for rule in due[place]) and search(row, place + 1):
                return True
        return False

    return search({}, 0)
