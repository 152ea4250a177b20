"""Histories: since which release a case is right, when it broke, and when it was fixed.

A history covers the releases of one target and adapter, the oldest first. In a release that skipped
a case, or has no result for it, the state of the case is *unknown*. If the case is flaky, or its
result did not repeat alone, it is *unstable* there. Unknown and unstable releases neither break nor
fix a case: if it was right before and wrong after them, it is broken in the first release in which
it is known to be wrong.

`spans` derives ranges of releases from the states of a case, or of a group of cases: an entry of a
case file, or the cases with a value of a feature.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, groupby, pairwise
from typing import Final, Generic, Literal, TypeVar, get_args

from conformance.base.versions import ordered_version, release_key
from conformance.case.features import BY_NAME
from conformance.results.records import ResultRecord
from conformance.results.table import Column, Table
from conformance.results.verdicts import was_tried, worst

#: Marks a release if nothing is known about those before it: since this release, or earlier.
OR_EARLIER: Final = "≤"

#: The state of a case that is flaky, or whose result did not repeat alone.
UNSTABLE: Final = "unstable"

#: How the state of a case changed between two releases.
ChangeKind = Literal["broken", "fixed"]
CHANGE_KINDS: Final[tuple[ChangeKind, ...]] = get_args(ChangeKind)

#: How many of the cases of a group are right: all, some or none of them.
GroupState = Literal["full", "partly", "none"]

K = TypeVar("K", bound=str)


# Releases


@dataclass(frozen=True)
class Release:
    """A release of a target. ``unavailable`` says why it could not be tried; empty if it was."""

    version: str
    columns: tuple[Column, ...]
    unavailable: str = ""

    @property
    def label(self) -> str:
        """The label of its first column."""
        return self.columns[0].label

    @property
    def labels(self) -> list[str]:
        """The labels of its columns."""
        return [column.label for column in self.columns]


@dataclass(frozen=True)
class Series:
    """The releases of one target and adapter, the oldest first.

    ``name`` is the target's without a version: ``cpu``, ``webgpu+lavapipe``.
    """

    name: str
    releases: tuple[Release, ...]

    @property
    def tried(self) -> tuple[Release, ...]:
        """The releases that were available."""
        return tuple(release for release in self.releases if not release.unavailable)


def series_of(columns: Sequence[Column]) -> list[Series]:
    """The columns grouped by target and adapter, and within these by version.

    A target that was not available gets its version from its name, ``cpu@1.20.1``; without a
    version in its name, it is left out. Its adapter is not known, so it is added to the series of
    every adapter of the target.
    """
    grouped: dict[str, dict[str, list[Column]]] = {}
    for column in sorted(columns, key=_is_missing):
        about, (called, _, version) = column.target.describe, column.target.name.rpartition("@")
        if about is not None and not _is_missing(column):
            adapter = f"+{about.adapter}" if about.adapter else ""
            names, version = [f"{column.target.base}{adapter}"], about.version or "unknown"
        elif called and ordered_version(version) is not None:
            names = [name for name in grouped if f"{name}+".startswith(f"{called}+")] or [called]
        else:
            continue
        for name in names:
            grouped.setdefault(name, {}).setdefault(version, []).append(column)
    return [
        Series(
            name, tuple(_release(version, of[version]) for version in sorted(of, key=release_key))
        )
        for name, of in grouped.items()
    ]


def _is_missing(column: Column) -> bool:
    return column.target.describe is None or column.target.unavailable is not None


def _release(version: str, columns: Sequence[Column]) -> Release:
    tried = tuple(column for column in columns if not column.target.unavailable)
    reason = columns[0].target.unavailable or ""
    return Release(version, tried or tuple(columns), "" if tried else reason)


# Spans


@dataclass(frozen=True)
class Span(Generic[K]):
    """Consecutive releases with the same state; their state may also be unknown.

    ``unknown`` lists the releases between ``first`` and ``last`` whose state is unknown.
    ``earliest``: nothing is known about releases before ``first``, so the state may be older.
    """

    state: K
    first: str
    last: str
    earliest: bool
    unknown: tuple[str, ...] = ()

    @property
    def since(self) -> str:
        """The first release: ``1.27.0``, or ``≤1.27.0`` if the state may be older."""
        return f"{OR_EARLIER if self.earliest else ''}{self.first}"


def spans(states: Iterable[tuple[str, K | None]]) -> list[Span[K]]:
    """The spans of these releases and states, the oldest first; the state None is unknown."""
    tried = list(states)
    known = [(number, state) for number, (_, state) in enumerate(tried) if state is not None]
    made = []
    for state, members in groupby(known, key=lambda item: item[1]):
        numbers = [number for number, _ in members]
        first, last = numbers[0], numbers[-1]
        between = tuple(tried[number][0] for number in range(first, last) if number not in numbers)
        made.append(Span(state, tried[first][0], tried[last][0], first == 0, between))
    return made


# A case


@dataclass(frozen=True)
class CaseChange:
    """A change of a case from right to not right (``broken``), or back (``fixed``).

    ``version`` is the first release with the new ``state``; ``last`` is the last release known to
    be without it.
    """

    kind: ChangeKind
    version: str
    last: str
    state: str


@dataclass(frozen=True)
class CaseHistory:
    """The history of a case over the releases of a series, the oldest first.

    ``states`` has the verdict in each release, or `UNSTABLE`, or None if it is unknown. ``results``
    has None if the case was not tried in the release.
    """

    case: str
    versions: tuple[str, ...]
    states: tuple[str | None, ...]
    results: tuple[ResultRecord | None, ...]

    @cached_property
    def spans(self) -> list[Span[str]]:
        """The ranges of releases with the same state.

        Unknown releases before the first known one are ignored, so the first span is ``earliest``.
        """
        of_release = zip(self.versions, self.states, strict=True)
        return spans(dropwhile(lambda each: each[1] is None, of_release))

    @cached_property
    def changes(self) -> tuple[CaseChange, ...]:
        """All changes from right to not right and back, in order."""
        known = [
            (version, state)
            for version, state in zip(self.versions, self.states, strict=True)
            if state is not None and state != UNSTABLE
        ]
        return tuple(
            CaseChange("fixed" if state == "pass" else "broken", version, last, state)
            for (last, before), (version, state) in pairwise(known)
            if (before == "pass") != (state == "pass")
        )

    @property
    def since(self) -> str | None:
        """The release since which the case is right; ``≤1.20.1`` if it may be an earlier one.

        None if it is not right, or not stable, in the last release with a known state.
        """
        last = self.spans[-1] if self.spans else None
        return last.since if last is not None and last.state == "pass" else None

    def changed_in(self, kind: ChangeKind) -> list[str]:
        """The releases with a change of this kind."""
        return [change.version for change in self.changes if change.kind == kind]

    @property
    def regressed(self) -> bool:
        """Whether it was right in a release, and is not right in the last with a known state."""
        return bool(self.changes) and self.changes[-1].kind == "broken"

    @property
    def mended(self) -> bool:
        """Whether it broke in a release, and is right in the last with a known state."""
        return bool(self.changed_in("broken")) and not self.regressed


def _case_history(
    joined: Table,
    releases: Sequence[Release],
    case: str,
    unstable: set[tuple[str, str]],
) -> CaseHistory:
    states: list[str | None] = []
    results: list[ResultRecord | None] = []
    for release in releases:
        every = [(case, column.label) for column in release.columns]
        there = [r for key in every if (r := joined.results.get(key)) and was_tried(r)]
        result = worst(there) if there else None
        shaken = not unstable.isdisjoint(every) or any(r.flaky is not None for r in there)
        results.append(result)
        states.append(UNSTABLE if shaken else result.verdict if result else None)
    versions = tuple(release.version for release in releases)
    return CaseHistory(case, versions, tuple(states), tuple(results))


# A group of cases


@dataclass(frozen=True)
class GroupHistory:
    """The history of a group of cases: those of an entry, or those with a value of a feature."""

    name: str
    members: tuple[CaseHistory, ...]

    @property
    def _versions(self) -> tuple[str, ...]:
        return self.members[0].versions if self.members else ()

    @cached_property
    def spans(self) -> list[Span[GroupState]]:
        """The ranges of releases in which all, some or none of its cases are right.

        Releases in which no case of the group was tried are ignored.
        """
        return spans(
            (version, self._state(number))
            for number, version in enumerate(self._versions)
            if any(one.results[number] is not None for one in self.members)
        )

    def _state(self, number: int) -> GroupState | None:
        """The state in the release with this index.

        None (unknown) if some cases were not tried or are unstable, and all others are right.
        """
        results = [result for one in self.members if (result := one.results[number]) is not None]
        right = sum(result.verdict == "pass" for result in results)
        if right < len(results):
            return "partly" if right else "none"
        unstable = any(one.states[number] == UNSTABLE for one in self.members)
        return None if unstable or len(results) < len(self.members) else "full"

    @property
    def since(self) -> Span[GroupState] | None:
        """The last span, if all or some of the cases are right in it; else None."""
        last = self.spans[-1] if self.spans else None
        return last if last is not None and last.state != "none" else None

    def changed(self, kind: ChangeKind) -> dict[str, list[CaseHistory]]:
        """The cases with a change of this kind, by release, the oldest first."""
        by_release: dict[str, list[CaseHistory]] = {version: [] for version in self._versions}
        for one in self._changing:
            for change in one.changes:
                if change.kind == kind:
                    by_release[change.version].append(one)
        return {version: cases for version, cases in by_release.items() if cases}

    @cached_property
    def _changing(self) -> list[CaseHistory]:
        """The members with changes, cached because most have none."""
        return [one for one in self.members if one.changes]

    @cached_property
    def regressed(self) -> list[CaseHistory]:
        """Its cases that were right in a release, and are not in the last with a known state."""
        return [one for one in self.members if one.regressed]


@dataclass(frozen=True)
class History:
    """The histories of all cases and entries over the releases of one target and adapter."""

    series: Series
    cases: Mapping[str, CaseHistory]
    entries: tuple[GroupHistory, ...]

    def by_feature(self, features: Mapping[str, Mapping[str, str | None]]) -> list[GroupHistory]:
        """The groups of cases with the same value of a feature, named ``softcap=given``.

        They have the order of docs/coverage.md. ``features`` has the values of the features of each
        case by its id; a case that is not in it is in no group.
        """
        groups: dict[str, list[CaseHistory]] = {
            f"{name}={value}": [] for name, feature in BY_NAME.items() for value in feature.values
        }
        for id, values in features.items():
            if id in self.cases:
                for name, value in values.items():
                    if value is not None:
                        groups[f"{name}={value}"].append(self.cases[id])
        return [GroupHistory(name, tuple(members)) for name, members in groups.items() if members]

    @cached_property
    def whole(self) -> GroupHistory:
        """All cases as one group."""
        return GroupHistory(self.series.name, tuple(self.cases.values()))


def histories(joined: Table) -> list[History]:
    """The histories of the targets that were tried in several releases."""
    return [
        history_of(joined, series) for series in series_of(joined.columns) if len(series.tried) > 1
    ]


def older_labels(histories: Iterable[History]) -> set[str]:
    """The labels of all columns but those of the newest release tried of each target."""
    return {
        label
        for history in histories
        for release in history.series.releases
        if release is not history.series.tried[-1]
        for label in release.labels
    }


def history_of(joined: Table, series: Series) -> History:
    """The history of a target: of every case and every entry, over its releases."""
    unstable = {
        (record.case, label) for label, records in joined.instability.items() for record in records
    }
    cases = {id: _case_history(joined, series.tried, id, unstable) for id in joined.ids}
    entries: dict[str, list[CaseHistory]] = {}
    for id, one in cases.items():
        case = joined.cases.get(id)
        entries.setdefault(case.entry if case else id, []).append(one)
    groups = tuple(GroupHistory(name, tuple(members)) for name, members in entries.items())
    return History(series, cases, groups)
