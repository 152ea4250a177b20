"""What an expectations file needs so that it says what was observed.

The lines that people wrote stay, with their order, reasons and links. Only their ranges of versions
move. What they leave unexpected gets new lines: before the line that says something else of the
same case, or else at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from conformance.expectations.causes import Cause, Causes, Point, fields_of, rate_of
from conformance.expectations.known import TODO, TODO_WHY, Known
from conformance.expectations.match import Expectation, known_result
from conformance.expectations.observed import Observation, Observed
from conformance.results.verdicts import TABLE

Mask = npt.NDArray[np.bool_]


@dataclass
class Update:
    """Changes of an expectations file: ``ranges`` of lines by their places, and ``new`` lines, each
    with the place of the line that it comes before (the number of lines: at the end).

    ``unexpected`` is the number of results that need it. ``told`` has a sentence for each range
    that changes, and for each line that no release shows.
    """

    unexpected: int
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
        (case, column)
        for (case, column), results in observed.at.items()
        if any(_is_unexpected(observed, case, column, one, lines) for one in results)
    ]


def _is_unexpected(
    observed: Observed, case: int, column: int, one: Observation, lines: Iterable[Expectation]
) -> bool:
    on = observed.columns[column].version, observed.columns[column].adapter
    found = known_result(observed.cases[case], one, on, lines)
    return one.red if found is None else found[1] is not None


def update_for(
    observed: Observed, own: Sequence[Expectation], others: Sequence[Expectation], file: Path
) -> Update:
    """The changes of ``file``, which has the lines ``own``, that leave nothing unexpected.

    ``others`` are the lines of the files that come after it.
    """
    unexpected = unexpected_in(observed, (*own, *others))
    return _Updater(observed, file, unexpected).update(own, others) if unexpected else Update(0)


class _Run(NamedTuple):
    """Releases in which a line may cover a case: the first and the last that need a line, and the
    first and the last that it may cover."""

    case: int
    first: int
    last: int
    start: int
    end: int


class _Updater:
    """Masks have a row for each case, and a column for each release and adapter."""

    def __init__(self, observed: Observed, file: Path, unexpected: list[tuple[int, int]]) -> None:
        self._observed = observed
        self._file = file
        #: The places of the cases of each entry.
        self._entries: dict[str, list[int]] = {}
        for number, case in enumerate(observed.cases):
            self._entries.setdefault(f"{case.theme}/{case.name}", []).append(number)
        shape = len(observed.cases), len(observed.columns)
        #: The number of each result among the different ones, `_points`; the last is that of none.
        self._kinds = np.full(shape, -1, np.intp)
        numbers: dict[Point, int] = {}
        for at, point in observed.at.items():
            self._kinds[at] = numbers.setdefault(point, len(numbers))
        self._points = [*numbers, ()]
        self._tried = self._having(map(bool, self._points))
        self._unexpected = np.zeros(shape, bool)
        self._unexpected[tuple(zip(*unexpected, strict=True))] = True
        #: The release of each column, and the first column of each release.
        self._release = np.array([one.release for one in observed.columns])
        self._starts = np.flatnonzero(np.diff(self._release, prepend=-1))
        #: The place in the file of the line that decides about a result and holds; inf: none.
        self._decided = np.full(shape, np.inf)
        #: The place in the file before which a result needs a new line; inf: it needs none.
        self._missing = np.full(shape, np.inf)
        self._update = Update(len(unexpected))

    def update(self, own: Sequence[Expectation], others: Sequence[Expectation]) -> Update:
        """See `update_for`."""
        claimed = np.zeros(self._kinds.shape, bool)
        for place, line in enumerate((*own, *others)):
            there = self._covered(line) & self._on(line) & self._tried & ~claimed
            good, bad = there & self._agreeing(line), there & ~self._agreeing(line)
            bad &= self._cases(line.is_certain_for(one) for one in self._observed.cases)
            if place < len(own):
                line = self._moved(place, line, good, bad)
            columns = self._observed.columns
            holds = np.array([line.known.holds_for(one.version, one.adapter) for one in columns])
            self._decided[good & holds] = place
            self._missing[bad & holds] = min(place, len(own))
            claimed |= (good | bad) & holds
        red = self._having(any(one.red for one in point) for point in self._points)
        self._missing[red & ~claimed] = len(own)
        self._describe()
        return self._update

    # Masks

    def _having(self, values: Iterable[bool]) -> Mask:
        """The results with a value that is given for each of the different ones."""
        mask: Mask = np.array([*values], bool)[self._kinds]
        return mask

    def _agreeing(self, line: Expectation) -> Mask:
        """The results that are as a line says, of whatever case and version."""
        return self._having(
            all(line.differs(one) is None for one in point) for point in self._points
        )

    @staticmethod
    def _cases(values: Iterable[bool]) -> Mask:
        """A value for each case, as rows."""
        return np.array([*values], bool)[:, None]

    def _covered(self, line: Expectation) -> Mask:
        return self._cases(line.covers(case) for case in self._observed.cases)

    def _on(self, line: Expectation) -> Mask:
        """The columns of a line's adapters."""
        return np.array([line.known.on(column.adapter) for column in self._observed.columns], bool)

    def _releases(self, results: Mask) -> set[int]:
        """The releases with one of these results."""
        return {*self._release[results.any(axis=0)].tolist()}

    # The lines that are there

    def _moved(self, place: int, line: Expectation, good: Mask, bad: Mask) -> Expectation:
        """The line with the ends of its range moved to where it holds."""
        releases, versions = self._observed.releases, line.known.versions
        shows, fails, needs = map(self._releases, (good, bad, good & self._unexpected))
        inside = releases.inside(versions)
        known = [release for release in inside if release in shows | fails]
        shown = [release for release in known if release in shows]
        lower, upper = None, None
        if known and known[-1] not in shows:
            upper = shown[-1] + 1 if shown else known[0]
        if shown and known[0] not in shows:
            lower = max(release for release in known if release < shown[0]) + 1
        only_bounds = all(part.strip()[:1] in "<>" for part in versions.split(","))
        if (shown or not known) and inside and only_bounds and line.known.verdict != "pass":
            older, newer = (
                range(inside[0] - 1, -1, -1),
                range(inside[-1] + 1, len(releases.versions)),
            )
            if lower is None and (reached := _reach(older, needs, fails)):
                lower = reached[-1]
            if upper is None and (reached := _reach(newer, needs, fails)):
                upper = reached[-1] + 1
        if lower is None and upper is None:
            return line
        moved = releases.moved(versions, lower, upper)
        where = f"{line.file}:{line.line}"
        self._update.ranges[place] = moved
        self._update.told.append(f"{where}: the range of versions is {moved} now, not {versions}.")
        if not shown and known:
            self._update.told.append(
                f"{where}: no tried release shows this any more, from "
                f"{releases.versions[known[0]]} on; remove the line if no other one does."
            )
        return replace(line, known=line.known.model_copy(update={"versions": moved}))

    # New lines

    def _describe(self) -> None:
        """New lines for all results that are missing, cause by cause.

        Causes that ended come first, and of those the one with the most results.
        """
        missing = ~np.isinf(self._missing)
        causes = Causes(one for point in self._points for one in point)
        kinds: dict[Cause, list[int]] = {}
        for kind in np.unique(self._kinds[missing]).tolist():
            kinds.setdefault(causes.of(self._points[kind]), []).append(kind)
        results = {cause: missing & np.isin(self._kinds, each) for cause, each in kinds.items()}

        def order(cause: Cause) -> tuple[int, int, str]:
            return max(self._releases(results[cause])), -results[cause].sum(), repr(cause)

        for cause in sorted(results, key=order):
            fields = fields_of(cause, [self._points[kind] for kind in kinds[cause]])
            self._add_all(fields, results[cause])

    def _add_all(self, fields: dict[str, Any], results: Mask) -> None:
        """Add lines with ``fields`` for all ``results``, before the first of the lines that say
        something else of one: of all adapters, and of each where such lines do not suffice."""
        place = int(self._missing[results].min())
        self._add_lines(place, fields, results)
        adapters = {one.adapter for one in self._observed.columns}
        for adapter in sorted(filter(None, adapters)) if len(adapters) > 1 else ():
            self._add_lines(place, fields | {"adapters": (adapter,)}, results)

    def _add_lines(self, place: int, fields: dict[str, Any], results: Mask) -> None:
        """Add lines with ``fields`` before ``place`` until they cover all ``results`` that such
        lines may cover."""
        line = self._line(fields, ("*",), "")
        on, agrees = self._on(line), self._agreeing(line) & self._tried
        allowed = self._allowed(line, place, agrees, results) | ~on
        demands = TABLE[line.known.verdict].demands
        provider = self._observed.execution_provider
        contracts = (one.contract.on(provider) for one in self._observed.cases)
        possible = np.array([contract.demands in demands for contract in contracts])
        while runs := [*self._runs(allowed, results & on & np.isinf(self._decided))]:
            sizes = Counter((run.first, run.last) for run in runs)
            first, last = max(sizes, key=lambda one: (sizes[one], one[1] - one[0], -one[0]))
            here = on & (first <= self._release) & (self._release <= last)
            wanted = np.zeros(len(possible), bool)
            for run in runs:
                if run.start <= first <= run.first and run.last <= last <= run.end:
                    wanted[run.case] = True
            seen = (self._kinds[:, here] >= 0).any(axis=1)
            refused = possible & ~wanted & ~(allowed[:, here].all(axis=1) & seen)
            line = self._line(fields, [*self._patterns(wanted, refused)], "")
            good = self._covered(line) & here & agrees & np.isinf(self._decided)
            if not good.any():
                return  # no line can express this; reading the file back reports it
            self._add(place, fields, line, good)

    def _patterns(self, wanted: Mask, refused: Mask) -> Iterator[str]:
        """The entries of which no case is refused, and the ids of the other wanted cases."""
        for entry, places in self._entries.items():
            cases = [self._observed.cases[number] for number in places]
            if not refused[places].any() and all(case.axes for case in cases):
                yield from (f"{entry}[*",) if wanted[places].any() else ()
            else:
                yield from (
                    case.id for case, mine in zip(cases, wanted[places], strict=True) if mine
                )

    def _add(self, place: int, fields: dict[str, Any], line: Expectation, good: Mask) -> None:
        """Add a line, for the releases in which it covers a result that is as it says."""
        if "rate" in fields:
            points = [self._points[kind] for kind in self._kinds[good]]
            fields = fields | {"rate": rate_of(points)}
        releases = self._releases(good)
        versions = self._observed.releases.range_of(min(releases), max(releases))
        known = self._line(fields, line.known.cases, versions).known
        self._update.new.append((place, known))
        self._decided[good] = place - 0.5  # before what is at this place

    def _allowed(self, line: Expectation, place: int, agrees: Mask, results: Mask) -> Mask:
        """The results that a line may cover, before the line at ``place``.

        Those that it agrees with, unless a later line has a reason for them; and those that are not
        `pass` and of which an earlier line decides.
        """
        if line.known.rate is not None:
            agrees = agrees & results.any(axis=1, keepdims=True)  # on some release
        failing = self._having(
            any(one.verdict != "pass" for one in point) for point in self._points
        )
        earlier = (self._decided < place) & failing
        allowed: Mask = ~self._tried | np.isinf(self._decided) & agrees | earlier | results
        return allowed

    def _runs(self, allowed: Mask, left: Mask) -> Iterator[_Run]:
        """Of each case, the runs of releases with results that are ``left``."""
        may = np.logical_and.reduceat(allowed, self._starts, axis=1)
        must = np.logical_or.reduceat(left, self._starts, axis=1)
        for case in np.flatnonzero(must.any(axis=1)).tolist():
            for possible, members in groupby(range(may.shape[1]), key=may[case].__getitem__):
                run = [*members]
                needed = [release for release in run if must[case, release]]
                if possible and needed:
                    yield _Run(case, needed[0], needed[-1], run[0], run[-1])

    def _line(self, fields: dict[str, Any], patterns: Sequence[str], versions: str) -> Expectation:
        shared = {"versions": versions, "link": TODO, "why": TODO_WHY}
        known = Known.model_validate({"cases": tuple(patterns), **fields, **shared})
        observed = self._observed
        return Expectation(known, self._file, 0, observed.execution_provider, observed.target)


def _reach(outward: Iterable[int], needs: set[int], fails: set[int]) -> list[int]:
    """The releases that need a line, before one of another behaviour."""
    return [one for one in takewhile(lambda one: one not in fails, outward) if one in needs]
