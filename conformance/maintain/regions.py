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

from conformance.case.features import BY_NAME, DOCUMENTATION, RULES, SLIDING, Rule

#: What a region or a mutant needs: the values of a feature that it may have, or the smallest and
#: the largest size.
Needs = Mapping[str, Sequence[str | float]]

#: Needs that are a range of numbers, not a choice of values.
SIZES: Final = ("keys", "queries", "batch_size", "head_size")

#: Areas whose faults are on in all calls or in none, and why.
EVERYWHERE: Final = {
    "acceptances": "The calls must be rejected. A region is a set of calls that are computed.",
    "messages": "The calls must be rejected. A region is a set of calls that are computed.",
    "process": "The process ends, or the whole node is placed elsewhere, whatever it computes.",
}
#: The same for the mutants of a kind.
OF_KIND: Final = {"hazard": "It shows in undefined elements only, where nothing is wrong."}

#: Areas whose faults may be within the error budget: they are errors of rounding.
SMALL: Final = ("precision",)

#: Rules of the operator that concern three features or more, and sizes.
_RULES: Final = (
    *RULES,
    Rule(
        {"cache": ("sliding_window",), "phase": ("chunked_prefill",), "batch": ("more",)},
        "Several tokens on a sliding-window cache require a batch of one.",
        SLIDING,
    ),
    Rule(
        {"queries": ("one",), "phase": ("chunked_prefill",)},
        "A chunk has several tokens.",
        DOCUMENTATION,
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
            both[name] = (max(low[0], high[0]), min(low[1], high[1]))  # type: ignore[type-var]
        else:
            both[name] = [value for value in both[name] if value in values]
    return both


def excluded(needs: Needs) -> str:
    """Why no call can have all that is needed; empty if a call can."""
    return _excluded(json.dumps(needs, sort_keys=True))


@cache
def _excluded(text: str) -> str:
    needs: Needs = json.loads(text)
    for name, values in needs.items():
        if name in SIZES and values[0] > values[1]:  # type: ignore[operator]
            return f"The two need different numbers of {name.replace('_', ' ')}."
        if not values:
            return f"The two need different values of {name.replace('_', ' ')}."
    domains = {
        name: list(needs.get(name, feature.values)) for name, feature in BY_NAME.items()
    }
    if needs.get("queries", (1, math.inf))[0] > 1:  # type: ignore[operator]
        domains["phase"] = [value for value in domains["phase"] if value != "decode"]
        if not domains["phase"]:
            return "A decode has one query token."
    if needs.get("queries", (1, math.inf))[1] == 1:
        domains["phase"] = [value for value in domains["phase"] if value != "chunked_prefill"]
        if not domains["phase"]:
            return "A chunk has several query tokens."
    if needs.get("batch_size", (1, math.inf))[0] > 1:  # type: ignore[operator]
        domains["batch"] = [value for value in domains["batch"] if value != "one"]
        if not domains["batch"]:
            return "A batch of one has no second sequence."
    if _possible(domains, _RULES):
        return ""
    for rule in _RULES:
        if _possible(domains, [other for other in _RULES if other is not rule]):
            return rule.reason
    return "Several rules of the features exclude it."


def _possible(domains: Mapping[str, Sequence[str | float]], rules: Sequence[Rule]) -> bool:
    """Whether there is a value for each feature that no rule forbids."""
    order = sorted(domains, key=lambda name: len(domains[name]))
    watching = {
        name: [rule for rule in rules if name in rule.values] for name in order
    }

    def search(row: dict[str, str | None], place: int) -> bool:
        if place == len(order):
            return True
        name = order[place]
        if not watching[name]:
            return search(row, place + 1)
        for value in domains[name]:
            row[name] = str(value)
            if not any(rule.forbids(row) for rule in watching[name]) and search(row, place + 1):
                return True
        row.pop(name, None)
        return False

    return search({}, 0)
