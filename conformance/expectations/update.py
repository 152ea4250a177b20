"""What an expectations file needs so that it says what was observed.

The lines that people wrote stay, with their order, reasons and links. Only their ranges of versions
move. What they leave unexpected gets new lines: before the line that says something else of the
same case, or else at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

from conformance.expectations.causes import Cause, cause_of, fields_of
from conformance.expectations.known import TODO, TODO_WHY, Known
from conformance.expectations.match import Expectation, known_result
from conformance.expectations.observed import At, Observed
from conformance.expectations.releases import Releases


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

    def lines(self, before: Sequence[Known]) -> list[Known]:
        """The lines of the file afterwards."""
        made: list[Known] = []
        for place in range(len(before) + 1):
            made += [known for at, known in self.new if at == place]
            for known in before[place : place + 1]:
                versions = self.ranges.get(place, known.versions)
                made.append(known.model_copy(update={"versions": versions}))
        return made


def unexpected_in(observed: Observed, lines: Sequence[Expectation]) -> list[At]:
    """The results that are unexpected with ``lines``, as a run judges it."""

    def is_unexpected(at: At) -> bool:
        for one in observed.at[at]:
            found = known_result(observed.cases[at.case], one, at[1:], lines)
            if one.red if found is None else found[1] is not None:
                return True
        return False

    return [*filter(is_unexpected, observed.at)]


def update_for(
    observed: Observed, own: Sequence[Expectation], others: Sequence[Expectation], file: Path
) -> Update:
    """The changes of ``file``, which has the lines ``own``, that leave nothing unexpected.

    ``others`` are the lines of the files that come after it.
    """
    unexpected = {*unexpected_in(observed, (*own, *others))}
    update = Update(len(unexpected))
    if not unexpected:
        return update
    releases = Releases.of(at.version for at in observed.at)
    of_case: dict[str, list[At]] = defaultdict(list)
    for at in sorted(observed.at, key=lambda at: (releases.place(at.version), at.adapter or "")):
        of_case[at.case].append(at)
    decided: set[At] = set()
    missing: dict[At, int] = {}  # the place of the line before which each needs a new one
    for place, line in enumerate((*own, *others)):
        good, bad = [], []
        for at in _covered(line, observed, of_case):
            if at in decided:
                continue
            if all(line.differs(one) is None for one in observed.at[at]):
                good.append(at)
            elif line.is_certain_for(observed.cases[at.case]):
                bad.append(at)
        if place < len(own):
            shows, fails = ({releases.place(at.version) for at in some} for some in (good, bad))
            needs = {releases.place(at.version) for at in good if at in unexpected}
            line = _moved(update, releases, place, line, shows, fails, needs)
        decided.update(at for at in (*good, *bad) if line.known.holds_for(*at[1:]))
        missing |= {at: min(place, len(own)) for at in bad if at in decided}
    for at, results in observed.at.items():
        if at not in decided and any(one.red for one in results):
            missing[at] = len(own)
    _add_lines(update, observed, file, releases, of_case, missing)
    return update


def _covered(
    line: Expectation, observed: Observed, of_case: Mapping[str, Sequence[At]]
) -> Iterator[At]:
    """The results of a line's cases and adapters, on any release."""
    for case in of_case:
        if line.covers(observed.cases[case]):
            yield from (at for at in of_case[case] if line.known.on(at.adapter))


def _moved(
    update: Update,
    releases: Releases,
    place: int,
    line: Expectation,
    shows: Set[int],
    fails: Set[int],
    needs: Set[int],
) -> Expectation:
    """The line with the ends of its range moved to where it holds.

    That is on the releases of ``shows`` and not on those of ``fails``; those of ``needs`` need it.
    """
    versions = line.known.versions
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
        older, newer = range(inside[0])[::-1], range(inside[-1] + 1, len(releases.versions))
        if lower is None and (reached := _reach(older, needs, fails)):
            lower = reached[-1]
        if upper is None and (reached := _reach(newer, needs, fails)):
            upper = reached[-1] + 1
    if lower is None and upper is None:
        return line
    moved = releases.moved(versions, lower, upper)
    where = f"{line.file}:{line.line}"
    update.ranges[place] = moved
    update.told.append(f"{where}: the range of versions is {moved} now, not {versions}.")
    if not shown and known:
        update.told.append(
            f"{where}: no tried release shows this any more, from {releases.versions[known[0]]} on;"
            " remove the line if no other one does."
        )
    return replace(line, known=line.known.model_copy(update={"versions": moved}))


def _reach(outward: Iterable[int], needs: Set[int], fails: Set[int]) -> list[int]:
    """The releases that need a line, before one of another behaviour."""
    return [one for one in takewhile(lambda one: one not in fails, outward) if one in needs]


def _add_lines(
    update: Update,
    observed: Observed,
    file: Path,
    releases: Releases,
    of_case: Mapping[str, Sequence[At]],
    missing: Mapping[At, int],
) -> None:
    """Add lines for all results that are ``missing``, cause by cause.

    Causes that ended come first, and of those the one with the most results. The lines of a cause
    come before the first of the lines that say something else of one of its results.
    """
    causes: dict[Cause, list[At]] = defaultdict(list)
    for at in missing:
        causes[cause_of(observed.at[at])].append(at)

    def order(cause: Cause) -> tuple[int, int, str]:
        newest = max(releases.place(at.version) for at in causes[cause])
        return newest, -len(causes[cause]), repr(cause)

    adapters = sorted({at.adapter for at in observed.at if at.adapter})
    for cause in sorted(causes, key=order):
        place = min(missing[at] for at in causes[cause])
        left = {*causes[cause]}
        for adapter in (None, *adapters):  # of all adapters, and of each where those do not suffice
            alike: dict[tuple[int, int], list[At]] = defaultdict(list)
            for case in of_case:
                there = [at for at in of_case[case] if adapter in (None, at.adapter)]
                for run in _runs(there, left):
                    ends = releases.place(run[0].version), releases.place(run[-1].version)
                    alike[ends] += run
            for first, last in sorted(alike, key=lambda ends: (-len(alike[ends]), ends)):
                fields = fields_of(cause, [observed.at[at] for at in alike[first, last]])
                fields["versions"] = releases.moved("", first, last + 1)
                fields["adapters"] = (adapter,) if adapter else ()
                known = _line(observed, file, fields, {at.case for at in alike[first, last]})
                if known is not None:
                    update.new.append((place, known))
                left.difference_update(alike[first, last])


def _runs(there: Sequence[At], wanted: set[At]) -> Iterator[list[At]]:
    """The ``wanted`` results of a case, each time those without another result between."""
    of_release = [[*some] for _, some in groupby(there, key=lambda at: at.version)]
    for is_wanted, some in groupby(of_release, key=wanted.issuperset):
        if is_wanted:
            yield [at for ats in some for at in ats]


def _line(observed: Observed, file: Path, fields: dict[str, Any], wanted: set[str]) -> Known | None:
    """A line with ``fields`` for the ``wanted`` cases, by entries of which no other case can have
    the verdict, and ids; None if no such line covers one."""
    said = {name: value for name, value in fields.items() if value}
    known = Known.model_validate({"cases": "*", **said, "link": TODO, "why": TODO_WHY})
    line = Expectation(known, file, 0, observed.execution_provider, observed.target)
    entries: dict[str, list[str]] = defaultdict(list)
    for case in filter(line.covers, observed.cases.values()):
        entries[f"{case.theme}/{case.name}[*" if case.axes else case.id].append(case.id)
    patterns: list[str] = []
    for entry, ids in entries.items():
        patterns += [entry] if wanted.issuperset(ids) else filter(wanted.__contains__, ids)
    return known.model_copy(update={"cases": tuple(patterns)}) if patterns else None
