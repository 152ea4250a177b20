"""The shortest description of a set of cases: patterns of ids, and features of calls.

It covers all wanted cases and no refused one. Of the others it may cover any. The search is greedy
and without chance: each step takes the description that covers the most cases for its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from conformance.case.case import Case
from conformance.case.features import FEATURES
from conformance.judge.expectations import Subject, id_pattern

Mask = npt.NDArray[np.bool_]
_Floats = npt.NDArray[np.float64]
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


@dataclass(frozen=True)
class Description:
    """Patterns of ids, of which a case must match one, and features, of which it must have each."""

    patterns: tuple[str, ...]
    features: Features


class CaseTable:
    """Cases with their themes, entries and features. Masks have a place for each case."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._cases = [subject.case for subject in subjects]
        self._theme_names, self._themes = _numbered([case.theme for case in self._cases])
        entries = [f"{case.theme}/{case.name}" for case in self._cases]
        self._entry_names, self._entries = _numbered(entries)
        self._codes = [
            np.array(
                [_code(each.values, subject.features[each.name]) for subject in subjects], np.int8
            )
            for each in FEATURES
        ]
        self._having: dict[tuple[str, str], Mask] = {
            (feature.name, value): codes == code
            for feature, codes in zip(FEATURES, self._codes, strict=True)
            for code, value in enumerate(feature.values)
        }
        self.graphs: Mask = np.array([case.is_graph for case in self._cases], bool)

    def having(self, features: Features) -> Mask:
        """The cases that have one of the values of each feature."""
        mask = np.ones(len(self._cases), bool)
        for name, values in features.items():
            mask &= np.logical_or.reduce([self._having[name, value] for value in values])
        return mask

    def describe(self, wanted: Mask, refused: Mask) -> Iterator[Description]:
        """Descriptions that together cover all ``wanted`` cases, and none that is ``refused``.

        What a description with features says of a graph is no refusal, since it says what may be.
        """
        left = wanted.copy()
        while left.any():
            features = self._best(left, refused)
            patterns = tuple(self._chosen(features, left, refused))
            yield Description(patterns, features)
            left &= ~(self.having(features) & self.matching(patterns))

    def matching(self, patterns: Sequence[str]) -> Mask:
        """The cases whose ids match one of ``patterns``."""
        found = id_pattern(*patterns)
        return np.array([found.fullmatch(case.id) is not None for case in self._cases], bool)

    # The search for features

    def _best(self, left: Mask, refused: Mask) -> Features:
        """The features of the description that covers the most for its length."""
        best: Features = {}
        best_score = self._score(best, left, refused)
        beam, tried = [best], set[str]()
        for _ in range(_MOST_FEATURES):
            rated: list[tuple[float, int, Features]] = []
            score_before = best_score
            for features in beam:
                for longer in self._longer(features, left, refused):
                    key = repr(sorted(longer.items()))
                    if key in tried:
                        continue
                    tried.add(key)
                    score = self._score(longer, left, refused)
                    rated.append((score, -len(rated), longer))
                    if score > best_score + 1e-9:
                        best_score, best = score, longer
            rated.sort(key=lambda one: one[:2], reverse=True)
            if best_score == score_before:
                break
            beam = [features for *_, features in rated[:_BEAM]]
        return best

    def _longer(self, features: Features, left: Mask, refused: Mask) -> Iterator[Features]:
        """``features`` and one more, with those of its values that exclude what is refused."""
        has = self.having(features)
        wanted, others = left & has, refused & has & ~self.graphs
        if not others.any():
            return
        for feature, codes in zip(FEATURES, self._codes, strict=True):
            if feature.name in features:
                continue
            size = len(feature.values)
            good = np.bincount(codes[wanted & (codes >= 0)], minlength=size)
            bad = np.bincount(codes[others & (codes >= 0)], minlength=size)
            there = [n for n in range(size) if good[n]]
            pure = [n for n in there if not bad[n]]
            lean = [n for n in there if good[n] * bad.sum() > bad[n] * good.sum()]
            sets = dict.fromkeys(map(tuple, (there, pure, lean, *([n] for n in there))))
            for values in sets:
                if values and len(values) < size:
                    yield {**features, feature.name: tuple(feature.values[n] for n in values)}

    def _score(self, features: Features, left: Mask, refused: Mask) -> float:
        """How many of the cases that are ``left`` the description covers for its length."""
        wanted, others = self._within(features, left, refused)
        gains, costs = self._units(wanted, others)[2:]
        if not gains.size:
            return 0.0
        order = np.argsort(-gains / costs, kind="stable")
        return float(np.max(np.cumsum(gains[order]) / self._lengths(features, costs[order])))

    def _lengths(self, features: Features, costs: _Floats) -> _Floats:
        """The length of a line with the first pattern, with the first two, and so on."""
        own = sum(_FEATURE + _VALUE * (len(values) - 1) for values in features.values())
        return LINE + own + np.cumsum(costs)

    def _within(self, features: Features, left: Mask, refused: Mask) -> tuple[Mask, Mask]:
        """The wanted and the refused cases among those that have ``features``."""
        if not features:
            return left, refused
        has = self.having(features)
        return left & has, refused & has & ~self.graphs

    # The search for patterns

    def _units(
        self, wanted: Mask, refused: Mask
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], _Floats, _Floats]:
        """The themes without a refused case, and the entries of the others: their numbers, and for
        each theme and then for each entry how many cases are wanted, and what it costs."""
        themes = np.bincount(self._themes[wanted], minlength=len(self._theme_names))
        against = np.bincount(self._themes[refused], minlength=len(self._theme_names))
        pure = np.flatnonzero((themes > 0) & (against == 0))
        if not against.any() and len(pure) > 2:
            return pure[:0], pure[:0], np.array([float(themes.sum())]), np.ones(1)
        mixed = wanted & (against[self._themes] > 0)
        gains, costs = themes[pure].astype(float), np.ones(len(pure))
        if not mixed.any():
            return pure, pure[:0], gains, costs
        entries = np.bincount(self._entries[mixed], minlength=len(self._entry_names))
        contra = np.bincount(self._entries[refused], minlength=len(self._entry_names))
        there = np.flatnonzero(entries)
        number = entries[there].astype(float)
        apart = np.where(contra[there] > 0, _ID * np.maximum(1.0, number / 2), 1.0)
        return pure, there, np.concatenate((gains, number)), np.concatenate((costs, apart))

    def _chosen(self, features: Features, left: Mask, refused: Mask) -> Iterator[str]:
        """The patterns with which the description covers the most cases for its length."""
        wanted, others = self._within(features, left, refused)
        pure, entries, gains, costs = self._units(wanted, others)
        if not len(pure) and not len(entries):
            yield "*"
            return
        order = np.argsort(-gains / costs, kind="stable")
        scores = np.cumsum(gains[order]) / self._lengths(features, costs[order])
        for place in sorted(order[: int(np.argmax(scores)) + 1]):
            if place < len(pure):
                yield f"{self._theme_names[pure[place]]}/*"
            else:
                yield from self._of_entry(int(entries[place - len(pure)]), wanted, others)

    def _of_entry(self, entry: int, wanted: Mask, refused: Mask) -> Iterator[str]:
        there = self._entries == entry
        mine = [self._cases[n] for n in np.flatnonzero(there & wanted)]
        against = [self._cases[n].id for n in np.flatnonzero(there & refused)]
        yield from _patterns(self._entry_names[entry], mine, against)


def _patterns(entry: str, wanted: list[Case], refused: list[str]) -> Iterator[str]:
    """Patterns for the ``wanted`` cases of an entry: by its axes, else their ids."""
    left = {case.id for case in wanted}
    if not refused and all(case.axes for case in wanted):
        yield f"{entry}[*"
        return
    found: list[tuple[str, frozenset[str]]] = []
    for pattern in _by_axes(entry, wanted):
        expression = id_pattern(pattern)
        if not any(map(expression.fullmatch, refused)):
            found.append((pattern, frozenset(filter(expression.fullmatch, left))))
    while left:
        best = max(found, key=lambda one: len(one[1] & left), default=("", frozenset()))
        if len(best[1] & left) < 2:
            yield from (case.id for case in wanted if case.id in left)
            return
        yield best[0]
        left -= best[1]


def _by_axes(entry: str, cases: Sequence[Case]) -> Iterator[str]:
    """Patterns of an entry with the values of one or two axes that some of ``cases`` have."""
    seen: dict[str, None] = {}
    for most in (1, 2):
        for case in cases:
            axes = list(case.axes.items())
            for chosen in combinations(range(len(axes)), most):
                text, after = f"{entry}[", 0
                for n in chosen:
                    text += ("" if n == after else "*") + "=".join(axes[n])
                    text += "," if n + 1 < len(axes) else "]"
                    after = n + 1
                seen.setdefault(text + ("*" if after < len(axes) else ""))
    yield from seen


def _numbered(names: Sequence[str]) -> tuple[list[str], npt.NDArray[np.intp]]:
    """The different names, and the number of each."""
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return list(known), np.array([known[name] for name in names], np.intp)


def _code(values: Sequence[str], value: str | None) -> int:
    return -1 if value is None else values.index(value)
