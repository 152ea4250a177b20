"""The shortest description of a set of cases: patterns of ids, and features of calls.

It covers all wanted cases and no refused one. Of the others it may cover any. The search is greedy
and without chance: each step takes the description that covers the most cases for its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from conformance.case.case import Case
from conformance.case.features import FEATURES
from conformance.judge.expectations import id_pattern

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.intp]
#: Values of features, by the feature's name.
Features = Mapping[str, tuple[str, ...]]

#: What a line, a feature and a further value of one cost, where a pattern costs 1.
LINE: Final = 4.0
_FEATURE: Final = 1.0
_VALUE: Final = 0.25
#: An id says more about its case than a pattern, and covers no more than one.
_ID: Final = 1.25
#: So many features a line has at most, and so many descriptions are made longer by one.
_MOST_FEATURES: Final = 4
_BEAM: Final = 6


class CaseTable:
    """Cases with their themes, entries and features. Masks have a place for each case."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = [*cases]
        self._theme_names, self._themes = _numbered([case.theme for case in cases])
        entries = [f"{case.theme}/{case.name}" for case in cases]
        self._entry_names, self._entries = _numbered(entries)
        #: The place of each case's value of a feature; behind the last for a case without one.
        self._codes = {
            each.name: np.array(
                [(*each.values, None).index(one.features[each.name]) for one in cases], np.intp
            )
            for each in FEATURES
        }
        self._values = {each.name: each.values for each in FEATURES}
        self._graphs: Mask = np.array([case.is_graph for case in self._cases], bool)

    def describe(self, wanted: Mask, refused: Mask) -> Iterator[tuple[tuple[str, ...], Features]]:
        """Patterns of ids, of which a case must match one, and features, of which it must have
        each: pairs that together cover all ``wanted`` cases, and none that is ``refused``.

        What a description with features says of a graph is no refusal, since it says what may be.
        """
        left = wanted.copy()
        while left.any():
            features = self._best(left, refused)
            mine, others = self._within(features, left, refused)
            patterns = tuple(self._patterns(features, mine, others))
            yield patterns, features
            found = id_pattern(*patterns)
            left &= ~(mine & [found.fullmatch(case.id) is not None for case in self._cases])

    # The search for features

    def _best(self, left: Mask, refused: Mask) -> Features:
        """The features of the description that covers the most for its length."""

        def score(features: Features) -> float:
            return self._chosen(features, *self._within(features, left, refused))[0]

        best: Features = {}
        best_score, beam = score(best), [best]
        for _ in range(_MOST_FEATURES):
            longer: dict[str, Features] = {}
            for features in beam:
                for one in self._longer(features, *self._within(features, left, refused)):
                    longer.setdefault(repr(sorted(one.items())), one)
            rated = sorted(((score(one), one) for one in longer.values()), key=lambda x: -x[0])
            if not rated or rated[0][0] <= best_score + 1e-9:
                break
            best_score, best = rated[0]
            beam = [features for _, features in rated[:_BEAM]]
        return best

    def _within(self, features: Features, left: Mask, refused: Mask) -> tuple[Mask, Mask]:
        """The wanted and the refused cases among those that have ``features``."""
        if not features:
            return left, refused
        has = np.ones(len(self._cases), bool)
        for name, values in features.items():
            places = [self._values[name].index(value) for value in values]
            has &= np.isin(self._codes[name], places)
        return left & has, refused & has & ~self._graphs

    def _longer(self, features: Features, wanted: Mask, refused: Mask) -> Iterator[Features]:
        """``features`` and one more, with those of its values that exclude what is refused."""
        refused = refused & ~self._graphs
        if not refused.any():
            return
        for name, values in self._values.items():
            if name in features:
                continue
            good, bad = (
                np.bincount(self._codes[name][mask], minlength=len(values) + 1)[:-1]
                for mask in (wanted, refused)
            )
            there = np.flatnonzero(good)
            pure = there[bad[there] == 0]
            lean = there[good[there] * bad.sum() > bad[there] * good.sum()]
            for chosen in dict.fromkeys(map(tuple, (there, pure, lean, *there[:, None]))):
                if 0 < len(chosen) < len(values):
                    yield {**features, name: tuple(values[n] for n in chosen)}

    # The search for patterns

    def _chosen(self, features: Features, wanted: Mask, refused: Mask) -> tuple[float, list[int]]:
        """How many cases a line with ``features`` covers for its length at best, and with which
        patterns: places of themes and, after these, of entries; none for all cases.

        A theme with a refused case cannot be named; its entries are, with more patterns where they
        have one.
        """
        length = LINE + sum(_FEATURE + _VALUE * (len(v) - 1) for v in features.values())
        themes = np.bincount(self._themes[wanted], minlength=len(self._theme_names))
        against = np.bincount(self._themes[refused], minlength=len(self._theme_names))
        pure = (themes > 0) & (against == 0)
        if not against.any() and pure.sum() > 2:
            return float(themes.sum() / (length + 1)), []
        mixed = wanted & (against[self._themes] > 0)
        entries = np.bincount(self._entries[mixed], minlength=len(self._entry_names))
        contra = np.bincount(self._entries[refused], minlength=len(self._entry_names))
        gains = np.concatenate((themes * pure, entries))
        costs = np.ones(len(gains))
        costs[len(themes) :][contra > 0] = _ID * np.maximum(1.0, entries[contra > 0] / 2)
        order = np.argsort(-gains / costs, kind="stable")[: np.count_nonzero(gains)]
        if not len(order):
            return 0.0, []
        scores = np.cumsum(gains[order]) / (length + np.cumsum(costs[order]))
        best = int(np.argmax(scores))
        return float(scores[best]), sorted(order[: best + 1].tolist())

    def _patterns(self, features: Features, wanted: Mask, refused: Mask) -> Iterator[str]:
        """The patterns with which the description covers the most cases for its length."""
        chosen = self._chosen(features, wanted, refused)[1]
        if not chosen:
            yield "*"
        for place in chosen:
            if place < len(self._theme_names):
                yield f"{self._theme_names[place]}/*"
                continue
            entry = place - len(self._theme_names)
            there = self._entries == entry
            mine = [self._cases[n] for n in np.flatnonzero(there & wanted)]
            against = [self._cases[n].id for n in np.flatnonzero(there & refused)]
            yield from _of_entry(self._entry_names[entry], mine, against)


def _of_entry(entry: str, wanted: list[Case], refused: list[str]) -> Iterator[str]:
    """Patterns for the ``wanted`` cases of an entry: by its axes, else their ids."""
    if not refused and all(case.axes for case in wanted):
        yield f"{entry}[*"
        return
    left = {case.id for case in wanted}
    found: dict[str, set[str]] = {}
    for pattern in _by_axes(entry, wanted):
        expression = id_pattern(pattern)
        if not any(map(expression.fullmatch, refused)):
            found[pattern] = {id for id in left if expression.fullmatch(id)}
    while left:
        best = max(found, key=lambda one: len(found[one] & left), default="")
        covered = found.get(best, set()) & left
        if len(covered) < 2:
            yield from (case.id for case in wanted if case.id in left)
            return
        yield best
        left -= covered


def _by_axes(entry: str, cases: Sequence[Case]) -> Iterator[str]:
    """Patterns of an entry with the values of one or two axes that some of ``cases`` have."""
    for most in (1, 2):
        for case in cases:
            axes = [f"{name}={value}" for name, value in case.axes.items()]
            for chosen in combinations(range(len(axes)), most):
                text, after = f"{entry}[", 0
                for n in chosen:
                    text += ("" if n == after else "*") + axes[n]
                    text += "," if n + 1 < len(axes) else "]"
                    after = n + 1
                yield text + ("*" if after < len(axes) else "")


def _numbered(names: Sequence[str]) -> tuple[list[str], _Numbers]:
    """The different names, and the number of each."""
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return list(known), np.array([known[name] for name in names], np.intp)
