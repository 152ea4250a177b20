"""Since which release something is right, in which it broke, and in which it was fixed.

A history is that of one target and adapter over its releases, the oldest first. Only what was
tried counts. A case that a release skipped, or that has no result there because the runner failed,
is *unknown* there, never right; one that is flaky, or whose result did not repeat alone, is
*unstable* there. Neither breaks anything, and neither mends it: a case that was right before and
wrong after is broken in the first release in which it is known to be wrong.

`spans` derives the ranges of releases from the states in each; cases and groups of cases (an entry
of a case file, a value of a feature) both use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, groupby, pairwise
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar, get_args

from conformance.base.target_names import on_adapter, split_version
from conformance.base.versions import ordered_version, release_key, series_between
from conformance.results.verdicts import Verdict, was_tried, worst

if TYPE_CHECKING:
    from conformance.results.table import Column, Table

#: What marks a release before which nothing is known: it holds since then, or since earlier.
OR_EARLIER: Final = "≤"

#: The state of a case whose result in a release did not repeat alone, or is known to be flaky.
UNSTABLE: Final = "unstable"

#: How a case changed between two releases in which it is known.
ChangeKind = Literal["broken", "fixed"]
CHANGE_KINDS: Final[tuple[ChangeKind, ...]] = get_args(ChangeKind)

#: ``full``: every case is right. ``partly``: some are. ``none``: none is. ``unknown``: some cases
#: were not tried or did not repeat, and the others are right.
GroupState = Literal["full", "partly", "none", "unknown"]

K = TypeVar("K", bound=str)


# Releases


@dataclass(frozen=True)
class Release:
    """A release of a target. ``unavailable``: why nothing was tried on it; empty if it was."""

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
    """The columns by target and adapter, and in each by version.

    A target that was not available has the version that its name has, ``cpu@1.20.1``; without one
    it is in no series. Its adapter is not known, so it is missing with every adapter.
    """
    found: dict[str, dict[str, list[Column]]] = {}
    for column in sorted(columns, key=_is_missing):
        about, (called, version) = column.target.describe, split_version(column.target.name)
        if about is not None and not _is_missing(column):
            names = [on_adapter(column.target.base, about.adapter)]
            version = about.version or "unknown"
        elif ordered_version(version) is not None:
            names = [name for name in found if f"{name}+".startswith(f"{called}+")] or [called]
        else:
            continue
        for name in names:
            found.setdefault(name, {}).setdefault(version, []).append(column)
    return [
        Series(
            name, tuple(_release(version, of[version]) for version in sorted(of, key=release_key))
        )
        for name, of in found.items()
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
    """Releases in a row that have one state, as far as it is known.

    ``earliest``: nothing is known before ``first``, so the state may be older. ``unknown``: the
    releases from ``first`` to ``last`` of which the state is not known. ``untried``: the published
    series of releases just before ``first`` of which it is not known either.
    """

    state: K
    first: str
    last: str
    earliest: bool
    unknown: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def since(self) -> str:
        """``1.27.0``, or ``≤1.27.0`` where nothing is known of the release before."""
        return f"{OR_EARLIER if self.earliest or self.untried else ''}{self.first}"


def spans(states: Iterable[tuple[str, K | None]], target: str = "") -> list[Span[K]]:
    """The spans of the states in each release, the oldest first; None: it is not known.

    ``target`` is the one whose releases these are.
    """
    tried = list(states)
    known = [(number, state) for number, (_, state) in enumerate(tried) if state is not None]
    found: list[Span[K]] = []
    for state, members in groupby(known, key=lambda item: item[1]):
        numbers = [number for number, _ in members]
        first, last = numbers[0], numbers[-1]
        between = tuple(tried[number][0] for number in range(first, last) if number not in numbers)
        before = series_between(target, found[-1].last, tried[first][0]) if found else ()
        found.append(Span(state, tried[first][0], tried[last][0], first == 0, between, before))
    return found


# A case


@dataclass(frozen=True)
class CaseChange:
    """A case that was right in one release and is not in a later one, or the other way round.

    ``version`` is the first release in which it is known to be so, and ``state`` its state there;
    ``last`` is the last release before in which it is known not to be.
    """

    kind: ChangeKind
    version: str
    last: str
    state: str


@dataclass(frozen=True)
class CaseHistory:
    """A case in each release of a series, the oldest first.

    ``states`` has a verdict, `UNSTABLE`, or None where the release is unknown; ``verdicts`` the
    verdict also where it is unstable.
    """

    case: str
    versions: tuple[str, ...]
    states: tuple[str | None, ...]
    verdicts: tuple[Verdict | None, ...]
    target: str = ""

    @cached_property
    def spans(self) -> list[Span[str]]:
        """The ranges of releases with one verdict, or in which it is unstable.

        What was not tried before the first known release is no state, so that span is earliest.
        """
        of_release = zip(self.versions, self.states, strict=True)
        return spans(dropwhile(lambda each: each[1] is None, of_release), self.target)

    @cached_property
    def changes(self) -> tuple[CaseChange, ...]:
        """Where it broke and where it was fixed, in order."""
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
        """The first release from which on it is right, ``≤1.20.1`` where nothing is known before.

        None: it is not right, or not stable, in the last release in which it is known.
        """
        last = self.spans[-1] if self.spans else None
        return last.since if last is not None and last.state == "pass" else None

    def changed_in(self, kind: ChangeKind) -> list[str]:
        """The releases in which it was no longer right, or became right."""
        return [change.version for change in self.changes if change.kind == kind]

    @property
    def regressed(self) -> bool:
        """Whether it was right in some release, and is not in the last in which it is known."""
        return bool(self.changes) and self.changes[-1].kind == "broken"

    @property
    def mended(self) -> bool:
        """Whether it broke in some release, and is right in the last in which it is known."""
        return bool(self.changed_in("broken")) and not self.regressed


def _case_history(
    joined: Table,
    series: Series,
    case: str,
    unstable: set[tuple[str, str]],
) -> CaseHistory:
    states: list[str | None] = []
    verdicts: list[Verdict | None] = []
    for release in series.tried:
        every = [(case, column.label) for column in release.columns]
        there = [r for key in every if (r := joined.results.get(key)) and was_tried(r)]
        verdict = worst(there).verdict if there else None
        shaken = not unstable.isdisjoint(every) or any(r.flaky is not None for r in there)
        verdicts.append(verdict)
        states.append(UNSTABLE if shaken else verdict)
    versions = tuple(release.version for release in series.tried)
    return CaseHistory(case, versions, tuple(states), tuple(verdicts), series.name)


# A group of cases


@dataclass(frozen=True)
class GroupHistory:
    """The cases of an entry, or those with a value of a feature, over the releases of a series."""

    name: str
    members: tuple[CaseHistory, ...]

    @property
    def _versions(self) -> tuple[str, ...]:
        return self.members[0].versions if self.members else ()

    def _state(self, number: int) -> GroupState | None:
        """The state in a release; None if not all cases were tried there, and the others pass."""
        verdicts = [one.verdicts[number] for one in self.members]
        right = verdicts.count("pass")
        if right < len(verdicts) - verdicts.count(None):
            return "partly" if right else "none"
        is_full = right == len(verdicts) and all(
            one.states[number] != UNSTABLE for one in self.members
        )
        return "full" if is_full else None

    @property
    def first_state(self) -> GroupState | None:
        """The state in the first release in which it is known; None: it is known in none."""
        return next(filter(None, map(self._state, range(len(self._versions)))), None)

    @cached_property
    def spans(self) -> list[Span[GroupState]]:
        """The ranges of releases in which all, some or none of its cases are right."""
        return spans(
            ((version, self._state(number)) for number, version in enumerate(self._versions)),
            self.members[0].target if self.members else "",
        )

    @property
    def since(self) -> Span[GroupState] | None:
        """The last span in which all or some of its cases are right; None: none is, or unknown."""
        last = self.spans[-1] if self.spans else None
        return last if last is not None and last.state != "none" else None

    def changed(self, kind: ChangeKind) -> dict[str, list[CaseHistory]]:
        """The cases that broke or were fixed, by release, the oldest first."""
        found: dict[str, list[CaseHistory]] = {version: [] for version in self._versions}
        for one in self.members:
            for change in one.changes:
                if change.kind == kind:
                    found[change.version].append(one)
        return {version: those for version, those in found.items() if those}

    @cached_property
    def regressed(self) -> list[CaseHistory]:
        """Its cases that were right, and are not in the last release in which they are known."""
        return [one for one in self.members if one.regressed]


@dataclass(frozen=True)
class History:
    """All cases of some runs over the releases of one target."""

    series: Series
    cases: Mapping[str, CaseHistory]
    entries: tuple[GroupHistory, ...]

    def by_feature(self, features: Mapping[str, Mapping[str, str | None]]) -> list[GroupHistory]:
        """A group for each value of a feature, ``softcap=given``, that one of the cases has.

        In the order of `conformance.operator.features.FEATURES` and of their values.
        ``features`` has the value of each feature of a case, by its id; cases that it does not
        have are in no group.
        """
        from conformance.operator.features import BY_NAME  # imports pydantic

        found: dict[str, list[CaseHistory]] = {
            f"{name}={value}": [] for name, feature in BY_NAME.items() for value in feature.values
        }
        for id, values in features.items():
            if id in self.cases:
                for name, value in values.items():
                    if value is not None:
                        found[f"{name}={value}"].append(self.cases[id])
        return [GroupHistory(name, tuple(members)) for name, members in found.items() if members]

    @cached_property
    def whole(self) -> GroupHistory:
        """All cases as one group."""
        return GroupHistory(self.series.name, tuple(self.cases.values()))


def histories(joined: Table) -> list[History]:
    """The history of each target that was tried in several releases."""
    several = (series for series in series_of(joined.columns) if len(series.tried) > 1)
    return [history_of(joined, series) for series in several]


def older_labels(found: Iterable[History]) -> set[str]:
    """The labels of all columns that are of no newest release that was tried."""
    return {
        label
        for history in found
        for release in history.series.releases
        if release is not history.series.tried[-1]
        for label in release.labels
    }


def history_of(joined: Table, series: Series) -> History:
    """The history of every case, and of every entry, over the releases of a target."""
    unstable = {
        (record.case, label) for label, records in joined.instability.items() for record in records
    }
    cases = {id: _case_history(joined, series, id, unstable) for id in joined.ids}
    entries: dict[str, list[CaseHistory]] = {}
    for id, one in cases.items():
        case = joined.cases.get(id)
        entries.setdefault(case.entry if case else id, []).append(one)
    groups = tuple(GroupHistory(name, tuple(members)) for name, members in entries.items())
    return History(series, cases, groups)
