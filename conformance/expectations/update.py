"""What an expectations file needs so that it says what was observed.

The lines that people wrote stay, with their order, reasons and links. Only their ranges of versions
move. What they leave unexpected gets new lines: before the line that says something else of the
same case, or else at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.version import Version

from conformance.expectations.known import TODO, TODO_WHY, Known
from conformance.expectations.match import Expectation, known_result
from conformance.expectations.observed import At, Observed
from conformance.expectations.shared_causes import SharedCause, cause_of, fields_of
from conformance.targets.releases import is_in_range


@dataclass(frozen=True)
class Releases:
    """The releases that were tried, oldest first; a release is named by its place, from 0."""

    versions: tuple[str, ...]
    """Without their local parts, which bounds cannot have."""

    def before(self, place: int) -> str:
        """The shortest version between release ``place - 1`` and release ``place``, or equal to the
        latter: ``1.31`` between 1.30.2 and 1.31.1. For the oldest, that release itself."""
        version = Version(self.versions[place])
        for parts in range(2, len(version.release) + 1):
            bound = ".".join(map(str, version.release[:parts]))
            # Nothing is known of those before the oldest.
            exact = place or Version(bound) == version
            if exact and self.inside(f">={bound}") == [*range(place, len(self.versions))]:
                return bound
        return self.versions[place]

    def inside(self, versions: str) -> list[int]:
        """The releases in a range."""
        return [n for n, each in enumerate(self.versions) if is_in_range(each, versions)]

    def moved(self, versions: str, lower: int | None, upper: int | None) -> str:
        """A range with other ends: it starts with release ``lower`` and ends before ``upper``.

        None leaves an end as it is; an ``upper`` past the newest release leaves it open.
        """
        bounds = [part.strip() for part in versions.split(",") if part.strip()]
        if lower is not None:
            others = (bound for bound in bounds if not bound.startswith(">"))
            bounds = [f">={self.before(lower)}", *others]
        if upper is not None:
            bounds = [bound for bound in bounds if not bound.startswith("<")]
            bounds += [f"<{self.before(upper)}"] if upper < len(self.versions) else []
        return ",".join(bounds)


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

    def lines(self, before: Sequence[Expectation]) -> list[Known]:
        """The lines of the file afterwards."""
        made = [line.known for line in before]
        for place, versions in self.ranges.items():
            made[place] = made[place].model_copy(update={"versions": versions})
        for before_it, (place, known) in enumerate(sorted(self.new, key=lambda one: one[0])):
            made.insert(place + before_it, known)
        return made


def unexpected_in(observed: Observed, lines: Sequence[Expectation]) -> set[At]:
    """The results that are unexpected with ``lines``, as a run judges it."""
    unexpected = set()
    for at, results in observed.at.items():
        for one in results:
            found = known_result(observed.cases[at.case], one, at[1:], lines)
            if one.unexpected if found is None else found[1]:
                unexpected.add(at)
    return unexpected


def update_for(
    observed: Observed, own: Sequence[Expectation], others: Sequence[Expectation], file: Path
) -> Update:
    """The changes of ``file``, which has the lines ``own``, that leave nothing unexpected.

    ``others`` are the lines of the files that come after it.
    """
    unexpected = unexpected_in(observed, (*own, *others))
    updater = _Updater(observed, file, unexpected)
    if unexpected:
        updater.add_lines(updater.missing_after(own, others))
    return updater.update


class _Updater:
    def __init__(self, observed: Observed, file: Path, unexpected: set[At]) -> None:
        self._observed = observed
        self._file = file
        self._unexpected = unexpected
        versions = {at.version for at in observed.at}
        self._releases = Releases(tuple(sorted(versions, key=Version)))
        #: The results of each case by release and adapter.
        self._of_case: dict[str, list[At]] = defaultdict(list)
        for at in sorted(observed.at, key=lambda at: (self._release(at), at.adapter or "")):
            self._of_case[at.case].append(at)
        self.update = Update(len(unexpected))

    def _release(self, at: At) -> int:
        return self._releases.versions.index(at.version)

    # The lines that are there

    def missing_after(
        self, own: Sequence[Expectation], others: Sequence[Expectation]
    ) -> dict[At, int]:
        """Move the ranges of the ``own`` lines.

        Returns the results that need new lines, with the place before which that must be.
        """
        decided: set[At] = set()
        missing: dict[At, int] = {}
        for place, line in enumerate((*own, *others)):
            good, bad = [], []
            for at in self._covered(line):
                if at in decided:
                    continue
                if all(line.differs(one) is None for one in self._observed.at[at]):
                    good.append(at)
                elif line.is_certain_for(self._observed.cases[at.case]):
                    bad.append(at)
            if place < len(own):
                line = self._moved(place, line, good, bad)
            decided.update(at for at in (*good, *bad) if line.known.holds_for(*at[1:]))
            missing |= {at: min(place, len(own)) for at in bad if at in decided}
        for at, results in self._observed.at.items():
            if at not in decided and any(one.unexpected for one in results):
                missing[at] = len(own)
        return missing

    def _covered(self, line: Expectation) -> Iterator[At]:
        """The results of a line's cases and adapters, on any release."""
        for case, there in self._of_case.items():
            if line.covers(self._observed.cases[case]):
                yield from (at for at in there if line.known.on(at.adapter))

    def _moved(
        self, place: int, line: Expectation, good: Sequence[At], bad: Sequence[At]
    ) -> Expectation:
        """The line with the ends of its range moved to where it holds."""
        releases, versions = self._releases, line.known.versions
        shows, fails = {*map(self._release, good)}, {*map(self._release, bad)}
        needs = {self._release(at) for at in good if at in self._unexpected}
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
            start, end = inside[0], inside[-1] + 1
            older = (one for one in needs if one < start and fails.isdisjoint(range(one, start)))
            newer = (one + 1 for one in needs if fails.isdisjoint(range(end, one + 1)))
            lower = min(older, default=None) if lower is None else lower
            if upper is None and (last := max(newer, default=end)) > end:
                upper = last
        if lower is None and upper is None:
            return line
        moved = releases.moved(versions, lower, upper)
        where = f"{line.file}:{line.line}"
        self.update.ranges[place] = moved
        self.update.told.append(f"{where}: the range of versions is {moved} now, not {versions}.")
        if not shown and known:
            self.update.told.append(
                f"{where}: no tried release shows this any more, from "
                f"{releases.versions[known[0]]} on; remove the line if no other one does."
            )
        return replace(line, known=line.known.model_copy(update={"versions": moved}))

    # New lines

    def add_lines(self, missing: dict[At, int]) -> None:
        """Add lines for all results that are ``missing``, cause by cause.

        Causes that ended come first, and of those the one with the most results. The lines of a
        cause come before the first of the lines that say something else of one of its results.
        """
        causes: dict[SharedCause, list[At]] = defaultdict(list)
        for at in missing:
            causes[cause_of(self._observed.at[at])].append(at)
        rare = Counter(part for parts in {cause.parts for cause in causes} for part in {*parts})

        def order(cause: SharedCause) -> tuple[int, int, str]:
            return max(map(self._release, causes[cause])), -len(causes[cause]), repr(cause)

        adapters = sorted({at.adapter for at in missing if at.adapter})
        for cause in sorted(causes, key=order):
            place, left = min(missing[at] for at in causes[cause]), {*causes[cause]}
            for adapter in (None, *adapters):  # of all, and of each where those do not suffice
                for (first, last), run in self._runs(left, adapter):
                    fields = fields_of(cause, [self._observed.at[at] for at in run], rare)
                    fields["versions"] = self._releases.moved("", first, last + 1)
                    if adapter:
                        fields["adapters"] = (adapter,)
                    known = self._line(fields, {at.case for at in run})
                    self.update.new += [(place, known)] if known else []
                    left.difference_update(run)

    def _runs(self, wanted: set[At], adapter: str | None) -> list[tuple[tuple[int, int], list[At]]]:
        """The ``wanted`` results by the first and the last release of a range in which their cases
        have no others on the adapter, or on all; first the range with the most results."""
        runs: dict[tuple[int, int], list[At]] = defaultdict(list)
        for there in self._of_case.values():
            mine = (at for at in there if adapter in (None, at.adapter))
            releases = [[*some] for _, some in groupby(mine, key=self._release)]
            for is_wanted, some in groupby(releases, key=wanted.issuperset):
                if is_wanted:
                    run = [at for each in some for at in each]
                    runs[self._release(run[0]), self._release(run[-1])] += run
        return sorted(runs.items(), key=lambda one: (-len(one[1]), one[0]))

    def _line(self, fields: dict[str, Any], wanted: set[str]) -> Known | None:
        """A line with ``fields`` for the ``wanted`` cases, by ids, and by entries of which no other
        case can have the verdict; None if no such line covers one."""
        observed = self._observed
        known = Known.model_validate({"cases": "*", **fields, "link": TODO, "why": TODO_WHY})
        line = Expectation(known, self._file, 0, observed.execution_provider, observed.target)
        entries: dict[str, list[str]] = defaultdict(list)
        for case in filter(line.covers, observed.cases.values()):
            entries[f"{case.theme}/{case.name}[*" if case.axes else case.id].append(case.id)
        patterns: list[str] = []
        for entry, ids in entries.items():
            patterns += [entry] if wanted.issuperset(ids) else filter(wanted.__contains__, ids)
        return known.model_copy(update={"cases": tuple(patterns)}) if patterns else None
