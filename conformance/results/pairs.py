"""Pairs the targets of two runs that are to be compared.

If each run has one release of a target, these two are compared. If a run has several releases of
it, each release is compared only with the same release.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from conformance.results.table import Column, Table
from conformance.results.verdicts import Verdict


@dataclass(frozen=True)
class Pair:
    """A column of the baseline and the column of the new run that it is compared with.

    If one of them is None, the other has no counterpart; the totals of None are empty.
    """

    before: Column | None
    after: Column | None
    totals_before: Mapping[Verdict, int]
    totals_after: Mapping[Verdict, int]
    series: object
    """The target and the adapter of both columns, without a release."""

    def title(self, shown: Callable[[str], str]) -> str:
        """The labels, each passed through ``shown``, and a note if a column is missing."""
        labels = (shown(column.label) for column in (self.before, self.after) if column)
        note = " (new)" if self.before is None else " (missing)" if self.after is None else ""
        return " → ".join(dict.fromkeys(labels)) + note

    def counts(self, verdicts: Iterable[Verdict]) -> list[str]:
        """The number of results with each verdict, and of all results: ``3``, or ``3 → 4``."""
        both = self.totals_before, self.totals_after
        pairs = [[totals.get(each, 0) for totals in both] for each in verdicts]
        pairs.append([sum(totals.values()) for totals in both])
        return [f"{b:,}" if b == a else f"{b:,} → {a:,}" for b, a in pairs]


def pairs_of(new: Table, old: Table) -> list[Pair]:
    """The pairs in the order of the new run, then those that the new run lacks.

    Columns are matched by the target's name, which has the release, and otherwise by target and
    adapter, if each run has one column of these.
    """
    series = _series_of([*old.columns, *new.columns])
    partners: dict[str, Column] = {}  # by the label in the new run
    for key in (_name, series):
        before, after = _unique(old.columns, key), _unique(new.columns, key)
        partners |= {after[same].label: before[same] for same in before.keys() & after.keys()}
    taken = {column.label for column in partners.values()}
    pairs: list[tuple[Column | None, Column | None]] = [
        *((partners.get(column.label), column) for column in new.columns),
        *((column, None) for column in old.columns if column.label not in taken),
    ]
    return [
        Pair(
            before,
            after,
            old.totals.get(before.label, {}) if before else {},
            new.totals.get(after.label, {}) if after else {},
            next(series(column) for column in (after, before) if column),
        )
        for before, after in pairs
    ]


def unclear(pairs: Iterable[Pair]) -> list[tuple[list[str], list[str]]]:
    """The columns without a counterpart that could belong together: for each target and adapter,
    the labels in the baseline and those in the new run."""
    labels: dict[object, tuple[list[str], list[str]]] = {}
    for pair in pairs:
        olds, news = labels.setdefault(pair.series, ([], []))
        if pair.after is None and pair.before is not None:
            olds.append(pair.before.label)
        elif pair.before is None and pair.after is not None:
            news.append(pair.after.label)
    return [(olds, news) for olds, news in labels.values() if olds and news]


_Key = Callable[[Column], object]


def _unique(columns: Iterable[Column], key: _Key) -> dict[object, Column]:
    """The columns by key, without those whose key occurs several times."""
    counts = Counter(map(key, columns))
    return {same: column for column in columns if counts[same := key(column)] == 1}


def _name(column: Column) -> str:
    return column.target.name


def _series_of(columns: Iterable[Column]) -> _Key:
    """A function that returns the target and the adapter of a column.

    A target that was not available has no description. If ``columns`` has one adapter for its name,
    it counts as that.
    """
    adapters: dict[str, set[str]] = {}
    for column in columns:
        if about := column.target.describe:
            adapters.setdefault(column.target.base, set()).add(about.adapter or "")

    def series(column: Column) -> tuple[str, str]:
        base, about = column.target.base, column.target.describe
        known = {about.adapter or ""} if about else adapters.get(base, set())
        return base, next(iter(known)) if len(known) == 1 else ""

    return series
