"""What an expectations file needs so that it says what was observed.

The lines that people wrote stay, with their order, reasons and links. Only their ranges of versions
move. What they leave unexpected gets new lines: before the line that says something else of the
same case, or else at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from conformance.judge.expectations import Expectation, Known, known_result
from conformance.maintain.known.causes import Cause, Causes, fields_of, flaky_share
from conformance.maintain.known.descriptions import LINE, CaseTable, Mask
from conformance.maintain.known.observed import Observation, Observed
from conformance.results.verdicts import TABLE, VERDICTS

#: What a new line has until a person has written its reason and its link.
TODO: Final = "TODO"
TODO_WHY: Final = f"{TODO}: why"

_Floats = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.intp]

#: Of `_Updater._kinds`: a case that has no result in a column, and one that was not tried there.
_UNSEEN: Final = -1
_SKIPPED: Final = -2


@dataclass
class Update:
    """Changes of an expectations file: ``ranges`` of lines by their places, and ``new`` lines, each
    with the place of the line that it comes before (the number of lines: at the end).

    ``told`` has a sentence for each line whose range ends or that covers nothing any more.
    """

    ranges: dict[int, str] = field(default_factory=dict)
    new: list[tuple[int, Known]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.ranges or self.new)


def unexpected_in(observed: Observed, lines: Sequence[Expectation]) -> list[tuple[int, int]]:
    """The results (case and column) that are unexpected with ``lines``, as a run judges it."""
    return [
        point
        for point, results in observed.at.items()
        if any(_is_unexpected(observed, point, one, lines) for one in results)
    ]


def _is_unexpected(
    observed: Observed, point: tuple[int, int], one: Observation, lines: Iterable[Expectation]
) -> bool:
    case, column = point
    on = observed.version(column), observed.columns[column].adapter
    found = known_result(observed.subjects[case], one, one.outcome, on, lines)
    return one.red if found is None else found[1] is not None


def update_for(
    observed: Observed, own: Sequence[Expectation], others: Sequence[Expectation], file: Path
) -> Update:
    """The changes of ``file``, which has the lines ``own``, that leave nothing unexpected.

    ``others`` are the lines of the files that come after it.
    """
    return _Updater(observed, own, others, file).update()


class _State(NamedTuple):
    """What a line says of the cases that it covers on a release: whether any is so, whether any is
    not, and whether any needs the line."""

    good: bool
    bad: bool
    needed: bool


class _Run(NamedTuple):
    """Releases in which a line may cover a case: the first and the last that need a line, and the
    first and the last that it may cover."""

    case: int
    first: int
    last: int
    start: int
    end: int


class _Updater:
    def __init__(
        self,
        observed: Observed,
        own: Sequence[Expectation],
        others: Sequence[Expectation],
        file: Path,
    ) -> None:
        self._observed = observed
        self._own = own
        self._others = others
        self._file = file
        self._table = CaseTable(observed.subjects)
        self._columns = range(len(observed.columns))
        self._points: list[tuple[Observation, ...]] = []
        shape = len(observed.subjects), len(observed.columns)
        self._kinds: _Numbers = np.full(shape, _UNSEEN, np.intp)
        self._fill()
        red = [any(one.red for one in point) for point in self._points]
        self._red = self._of_points(red)
        #: The place in the file of the line that decides about a result and holds; inf: none.
        self._decided = np.full(shape, np.inf)
        self._verdict = np.full(shape, len(VERDICTS), np.intp)
        self._update = Update()
        #: The results that need new lines, by the place in the file before which they come.
        self._missing: dict[int, Mask] = {}

    def _fill(self) -> None:
        numbers: dict[tuple[Observation, ...], int] = {}
        for point in self._observed.seen:
            self._kinds[point] = _SKIPPED
        for point, results in self._observed.at.items():
            each = tuple(dict.fromkeys(results)) if len(set(results)) == 1 else results
            number = numbers.setdefault(each, len(numbers))
            if number == len(self._points):
                self._points.append(each)
            self._kinds[point] = number

    def _of_points(self, values: Sequence[bool]) -> Mask:
        """A mask of results from a value of each different result."""
        table = np.array([*values, False, False], bool)  # the last two: skipped, unseen
        mask: Mask = table[self._kinds]
        return mask

    def _agreeing(self, line: Expectation) -> Mask:
        """The results that are as a line says, of whatever case and version."""
        return self._of_points(
            [
                all(line.differs(one, *one.outcome) is None for one in point)
                for point in self._points
            ]
        )

    def _covered(self, line: Expectation) -> Mask:
        """The cases that a line covers, as a column."""
        covered = [line.covers(subject) for subject in self._observed.subjects]
        return np.array(covered, bool)[:, None]

    def _on(self, line: Expectation) -> Mask:
        """The columns of a line's adapters."""
        return np.array([line.on(column.adapter) for column in self._observed.columns], bool)

    def update(self) -> Update:
        """See `update_for`."""
        wrong = np.zeros(self._kinds.shape, bool)
        for point in unexpected_in(self._observed, (*self._own, *self._others)):
            wrong[point] = True
        if not wrong.any():
            return self._update
        claimed = np.zeros(self._kinds.shape, bool)
        for place, line in enumerate(self._own):
            self._fit(place, line, claimed, wrong)
        for place, line in enumerate(self._others, len(self._own)):
            good, bad = self._matches(line, claimed)
            holds = self._holding(line)
            self._decide(place, line, good & holds)
            self._miss(len(self._own), bad & holds)
            claimed |= (good | bad) & holds
        self._miss(len(self._own), self._red & ~claimed)
        causes = Causes(one for point in self._points for one in point)
        self._describe(causes)
        return self._update

    # The lines that are there

    def _fit(self, place: int, line: Expectation, claimed: Mask, wrong: Mask) -> None:
        """Move the ends of a line's range, and note the results that it does not hold for."""
        good, bad = self._matches(line, claimed)
        on = self._on(line)
        states = {
            release: _State(
                bool(good[:, here].any()),
                bool(bad[:, here].any()),
                bool((good & wrong)[:, here].any()),
            )
            for release in range(len(self._observed.releases.versions))
            if (here := on & self._in_release(release)).any()
        }
        versions = self._moved(place, line, states)
        holds = self._holding(line, versions)
        self._decide(place, line, good & holds)
        self._miss(place, bad & holds)
        claimed |= (good | bad) & holds

    def _moved(self, place: int, line: Expectation, states: dict[int, _State]) -> str:
        """The range of a line with its ends moved to where it holds."""
        releases, versions = self._observed.releases, line.known.versions
        inside = [release for release in releases.inside(versions) if release in states]
        lower, upper = None, None
        kept = list(inside)
        while kept and _fails(states[kept[-1]]):
            upper = kept.pop()
        if upper is not None and any(states[release].good for release in kept):
            while not states[kept[-1]].good:  # nothing shows it there either
                upper = kept.pop()
        while kept and _fails(states[kept[0]]):
            kept.pop(0)
            lower = kept[0] if kept else None
        if kept and line.known.verdict != "pass":
            older = [r for r in reversed(list(states)) if r < kept[0]] if lower is None else []
            newer = [r for r in states if r > kept[-1]] if upper is None else []
            if (first := _reach(older, states)) is not None:
                lower, kept = first, [first, *kept]
            if (last := _reach(newer, states)) is not None:
                upper, kept = last + 1, [*kept, last]
        if lower is None and upper is None:
            return versions
        moved = releases.moved(versions, lower, upper)
        if moved is None and upper is not None and lower is None and upper in inside:
            moved = f"{versions},<{releases.before(upper)}"
        if moved is None or moved == versions:
            return versions
        self._update.ranges[place] = moved
        if not kept:
            where = f"{releases.versions[inside[0]]}"
            self._update.told.append(
                f"{line.file}:{line.line}: no release that was tried shows this any more, from "
                f"{where} on; remove the line if no other release does."
            )
        return moved

    def _matches(self, line: Expectation, claimed: Mask) -> tuple[Mask, Mask]:
        """The results of covered cases that are as the line says, and those that are not, of
        whatever version; without those of which an earlier line decides."""
        agrees = self._agreeing(line)
        there = self._covered(line) & self._on(line) & (self._kinds >= 0) & ~claimed
        certain = [line.is_certain_for(subject) for subject in self._observed.subjects]
        return there & agrees, there & ~agrees & np.array(certain, bool)[:, None]

    def _holding(self, line: Expectation, versions: str | None = None) -> Mask:
        """The columns for which a line is, or would be with other ``versions``."""
        known = line.known.model_copy(update={"versions": versions or line.known.versions})
        moved = replace(line, known=known)
        return np.array(
            [
                moved.holds_for(self._observed.version(n), self._observed.columns[n].adapter)
                for n in self._columns
            ],
            bool,
        )

    def _in_release(self, release: int) -> Mask:
        return self._between(release, release)

    def _decide(self, place: int, line: Expectation, good: Mask) -> None:
        self._decided[good] = place
        self._verdict[good] = VERDICTS.index(line.known.verdict)

    def _miss(self, place: int, results: Mask) -> None:
        if results.any():
            before = self._missing.get(place)
            self._missing[place] = results if before is None else before | results

    # New lines

    def _describe(self, causes: Causes) -> None:
        """New lines for all results that are missing, cause by cause."""
        groups: dict[Cause, dict[int, Mask]] = {}
        for place, missing in sorted(self._missing.items()):
            for kind in np.unique(self._kinds[missing]):
                at = groups.setdefault(causes.of(self._points[int(kind)]), {})
                these = missing & (self._kinds == kind)
                at[place] = at[place] | these if place in at else these
        ordered = [
            (cause, at, np.logical_or.reduce(list(at.values()))) for cause, at in groups.items()
        ]
        ordered.sort(key=lambda one: self._order(one[0], one[2]))
        for cause, at, results in ordered:
            kinds = np.unique(self._kinds[results])
            fields = fields_of(cause, [self._points[int(kind)] for kind in kinds])
            # All before the first of the lines that say something else, or before each its own.
            plans = [{min(at): results}, *([at] if len(at) > 1 else [])]
            self._take_shortest([partial(self._carry_out, fields, plan) for plan in plans])

    def _take_shortest(self, ways: Sequence[Callable[[], None]]) -> None:
        """Add lines in one of several ways: in that with the fewest lines and patterns."""
        before = self._decided, self._verdict, self._update.new
        best: tuple[float, tuple[_Floats, _Numbers, list[tuple[int, Known]]]] | None = None
        for way in ways:
            self._decided, self._verdict, self._update.new = (
                before[0].copy(),
                before[1].copy(),
                [*before[2]],
            )
            way()
            added = self._update.new[len(before[2]) :]
            length = sum(LINE + len(known.cases) + len(known.features) for _, known in added)
            if best is None or length < best[0]:
                best = length, (self._decided, self._verdict, self._update.new)
        if best is not None:
            self._decided, self._verdict, self._update.new = best[1]

    def _carry_out(self, fields: dict[str, Any], plan: dict[int, Mask]) -> None:
        """Lines with ``fields`` for the results that are missing at each place."""
        adapters = {one.adapter for one in self._observed.columns}
        scopes: list[tuple[str, ...]] = [()]
        if len(adapters) > 1:
            scopes += [(one,) for one in sorted(filter(None, adapters))]
        for place, results in plan.items():
            for scope in scopes:
                of_scope = fields | ({"adapters": scope} if scope else {})
                self._lines(place, of_scope, results, results & np.isinf(self._decided))

    def _order(self, cause: Cause, results: Mask) -> tuple[int, int, str]:
        """Causes that ended come first, and of those the one with the most results."""
        columns = np.flatnonzero(results.any(axis=0))
        release = self._observed.columns[int(columns[-1])].release
        return release, -int(results.sum()), repr(cause)

    def _lines(self, place: int, fields: dict[str, Any], results: Mask, left: Mask) -> None:
        """Add lines with ``fields`` until they cover all results that are ``left``, and may be
        covered on each adapter of the lines."""
        line = self._line(fields, ("*",), {}, "")
        allowed = self._allowed(place, line, results)
        on = self._on(line)
        while True:
            runs = self._runs(allowed, left & on, on)
            if not runs:
                return
            sizes = Counter((run.first, run.last) for run in runs)
            first, final = max(sizes, key=lambda one: (sizes[one], one[1] - one[0], -one[0]))
            here = on & self._between(first, final)
            wanted = np.zeros(len(self._observed.subjects), bool)
            for run in runs:
                if run.start <= first <= run.first and run.last <= final <= run.end:
                    wanted[run.case] = True
            seen = self._kinds[:, here] != _UNSEEN
            refused = ~(allowed[:, here].all(axis=1) & seen.any(axis=1))
            refused &= self._possible(line) & ~wanted
            before = int(left.sum())
            for description in self._table.describe(wanted, refused):
                self._add(place, fields, description.patterns, description.features, here, left)
            if int(left.sum()) == before:
                return  # no line of these fields can be: the check of the file says so

    def _add(
        self,
        place: int,
        fields: dict[str, Any],
        patterns: tuple[str, ...],
        features: Any,
        here: Mask,
        left: Mask,
    ) -> None:
        """Add a line, for the releases in which it covers a result."""
        line = self._line(fields, patterns, features, "")
        agrees = self._agreeing(line)
        good = self._covered(line) & here & agrees & np.isinf(self._decided)
        if not good.any():
            return
        releases = [
            self._observed.columns[int(column)].release
            for column in np.flatnonzero(good.any(axis=0))
        ]
        if "flaky" in fields:
            share = flaky_share([self._points[int(kind)] for kind in self._kinds[good]])
            fields = fields | {"flaky": fields["flaky"] | share}
        versions = self._observed.releases.range_of(min(releases), max(releases))
        known = self._line(fields, patterns, features, versions)
        self._update.new.append((place, known.known))
        self._decide(place, known, good)  # before what is at this place
        self._decided[good] = place - 0.5
        left &= ~good

    def _allowed(self, place: int, line: Expectation, results: Mask) -> Mask:
        """The results that a line with these fields may cover, before the line at ``place``.

        Those that it agrees with, unless a later line has a reason for them; and those that are not
        `pass` and of which an earlier line decides.
        """
        agrees = self._agreeing(line)
        if line.known.flaky is not None:
            flaky: Mask = np.any(results, axis=1, keepdims=True)  # on some release
            agrees &= flaky
        undecided: Mask = np.isinf(self._decided)
        earlier = self._decided < place
        failing = self._verdict != VERDICTS.index("pass")
        unknown = self._kinds < 0
        allowed: Mask = unknown | (undecided & agrees) | (earlier & failing) | results
        return allowed

    def _possible(self, line: Expectation) -> Mask:
        """The cases whose contract allows the line's verdict."""
        demands = TABLE[line.known.verdict].demands
        provider = self._observed.execution_provider
        contracts = (one.case.contract.on(provider) for one in self._observed.subjects)
        possible: Mask = np.array([each.demands in demands for each in contracts], bool)
        return possible

    def _runs(self, allowed: Mask, left: Mask, on: Mask) -> list[_Run]:
        """Of each case, the runs of releases with results that are ``left``."""
        runs = []
        releases = sorted({self._observed.columns[int(n)].release for n in np.flatnonzero(on)})
        here = {release: on & self._in_release(release) for release in releases}
        may: Mask = np.array([allowed[:, here[r]].all(axis=1) for r in releases], bool).T
        must: Mask = np.array([left[:, here[r]].any(axis=1) for r in releases], bool).T
        for case in np.flatnonzero((may & must).any(axis=1)):
            numbers = range(len(releases))
            for possible, members in groupby(numbers, key=may[case].__getitem__):
                run = list(members)
                needed = [n for n in run if must[case, n]]
                if possible and needed:
                    ends = (releases[n] for n in (needed[0], needed[-1], run[0], run[-1]))
                    runs.append(_Run(int(case), *ends))
        return runs

    def _between(self, first: int, last: int) -> Mask:
        inside = [first <= one.release <= last for one in self._observed.columns]
        return np.array(inside, bool)

    def _line(
        self, fields: dict[str, Any], patterns: tuple[str, ...], features: Any, versions: str
    ) -> Expectation:
        made = {
            "cases": patterns,
            "versions": versions,
            "features": dict(features),
            **fields,
            "link": TODO,
            "why": TODO_WHY,
        }
        known = Known.model_validate(made)
        provider = self._observed.execution_provider
        return Expectation(known, self._file, 0, provider, self._observed.target)


def _fails(state: _State) -> bool:
    return state.bad and not state.good


def _reach(outward: Sequence[int], states: dict[int, _State]) -> int | None:
    """How far a range may be extended: to the last release that needs it, before one of another
    behaviour."""
    reached = None
    for release in outward:
        if states[release].bad:
            break
        if states[release].needed:
            reached = release
    return reached
