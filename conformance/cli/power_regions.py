"""``gqa power --regions``: which fault is detected in which region, and the table of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.case.case import Case
from conformance.case.corpus import Corpus
from conformance.cli.common import ALL_AS_EXPECTED, UNEXPECTED, BadArgument
from conformance.cli.console import SafeConsole
from conformance.cli.power_table import PAGE, replaced, share
from conformance.cli.terminal import Terminal, make_console
from conformance.maintain.power import Mutant, can_run, known_mutants, known_regions
from conformance.maintain.region_record import FIX, RECORD, Recorded
from conformance.maintain.region_run import Cells, fill
from conformance.maintain.regions import Region

_BEGIN: Final = f"<!-- written by: {FIX} -->"
#: The largest number of holes that the terminal shows.
MOST: Final = 40


def check_name(name: str) -> None:
    """Raise `BadArgument` unless there is a region ``name``."""
    names = [region.name for region in known_regions()]
    if name not in names:
        near = did_you_mean(name, names)
        raise BadArgument(f"There is no region '{name}'{near or '.'}")


def run(
    corpus: Corpus,
    cases: Sequence[Case],
    mutants: Sequence[Mutant],
    jobs: int,
    reduced: bool,
    record: bool,
) -> int:
    """Fill the cells of ``mutants`` with ``cases``, and print them. Returns the exit status."""
    whole = corpus.whole and len(cases) == sum(map(can_run, corpus.loaded))
    if record and (not whole or reduced):
        raise BadArgument("--regions --record requires the whole corpus.")
    cells, only = Cells(mutants, known_regions()), None
    if reduced:
        recorded = Recorded.read()
        why = recorded.stale(cells, {case.id for case in corpus.loaded})
        if why:
            raise BadArgument(f"{RECORD}: {why}; run {FIX}.")
        names = [mutant.name for mutant in mutants if mutant.name in recorded.mutants]
        only = {name: recorded.mutants[name].cases for name in names}
        wanted = {case for name in only for case in only[name]}
        cases = [case for case in cases if case.id in wanted]
        cells.within = {
            (name, region): number
            for name in only
            for region, number in recorded.mutants[name].within.items()
        }
    terminal = Terminal(make_console(), SafeConsole(stderr=True))
    with terminal.bars() as watch:
        fill(cells, cases, jobs, only, watch)
    holes = list(cells.holes())
    for line in (*_listed(holes), closing(cells)):
        terminal.line(line)
    if record:
        _record(cells)
    return UNEXPECTED if holes else ALL_AS_EXPECTED


def _record(cells: Cells) -> None:
    """Write the record and the tables. Mutants that were not run keep what is recorded of them."""
    recorded, known = Recorded.of(cells), known_mutants()
    if len(cells.mutants) < len(known):
        recorded = Recorded.read().updated(recorded)
        cells = Cells(known, cells.regions)
        why = recorded.stale(cells, recorded.cases)
        if why:
            raise BadArgument(f"{RECORD}: {why}; record all mutants: {FIX}.")
        recorded.restore(cells)
    recorded.write()
    write_page(cells)


def _listed(holes: Sequence[tuple[Mutant, Region]]) -> Iterator[str]:
    """A line for each region with holes."""
    regions = [(r, [m for m, _ in members]) for r, members in groupby(holes, lambda one: one[1])]
    for region, members in regions[:MOST]:
        names = ", ".join(mutant.name for mutant in members[:5])
        more = f" and {len(members) - 5} more" if len(members) > 5 else ""
        yield f"No case detects in {region.name}: {names}{more}."
    if len(regions) > MOST:
        yield f"{len(regions) - MOST} more regions have faults that no case detects."


def closing(cells: Cells) -> str:
    """One sentence on all cells."""
    holes, small = sum(1 for _ in cells.holes()), sum(len(cells.small(m)) for m in cells.mutants)
    possible = len(cells.mutants) * len(cells.regions) - len(cells.excluded)
    filled = possible - holes - small
    return (
        f"{filled:,} of {possible:,} pairs of fault and region detected;"
        f" {small:,} within the error budget,"
        f" {holes:,} not detected; {len(cells.excluded):,} pairs exclude each other."
    )


def summary(cells: Cells) -> str:
    """A Markdown table for each group of regions, and the reasons of the cells that are empty."""
    areas = {
        area: [mutant.name for mutant in members]
        for area, members in groupby(cells.mutants, key=lambda mutant: mutant.area)
    }
    lines = []
    for group, members in groupby(cells.regions, key=lambda region: region.group):
        regions = list(members)
        lines += [f"### {group}", ""]
        lines.append("| area | " + " | ".join(f"`{_short(r)}`" for r in regions) + " |")
        lines.append("| --- |" + " --- |" * len(regions))
        for area, names in areas.items():
            row = [_cell(cells, names, region) for region in regions]
            if set(row) != {"–"}:
                lines.append("| " + " | ".join([area.replace("_", " "), *row]) + " |")
        lines.append("")
    return "\n".join([*lines, *_reasons(cells), closing(cells)])


def _short(region: Region) -> str:
    """The part of a pair's name in which the columns of its group differ."""
    return region.name.rpartition("+")[2]


def _cell(cells: Cells, names: Sequence[str], region: Region) -> str:
    """How many of the mutants are killed in the region, of those that can be on there."""
    possible = [name for name in names if (name, region.name) not in cells.excluded]
    killed = sum(region.name not in cells.open[name] for name in possible)
    if not possible:
        return "–"
    return str(killed) if killed == len(possible) else f"{killed}/{len(possible)}"


def _reasons(cells: Cells) -> Iterator[str]:
    """Why cells are empty: the faults within the budget, and the pairs that exclude each other."""
    yield from ("### Why a cell is empty", "")
    for region, members in groupby(cells.holes(), key=lambda hole: hole[1]):
        areas = Counter(mutant.area.replace("_", " ") for mutant, _ in members)
        listed = ", ".join(f"{area} {number}" for area, number in areas.items())
        yield f"- `{region.name}`: {areas.total()} faults **not detected** ({listed})."
    for mutant in cells.mutants:
        small = sorted(cells.small(mutant))
        if small:
            most = share(max(cells.within[mutant.name, region] for region in small))
            names = ", ".join(f"`{region}`" for region in small)
            yield (
                f"- `{mutant.name}`: within the error budget in {names}; the largest error is"
                f" {most} of the budget."
            )
    yield from ("", "| why a fault cannot be on in a region | pairs |", "| --- | --- |")
    counts = Counter(cells.excluded.values())
    for why, number in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
        yield f"| {why} | {number:,} |"
    yield ""


def write_page(cells: Cells, page: Path = PAGE) -> None:
    """Write the tables to their place in ``docs/power.md``."""
    text = replaced(page.read_text(encoding="utf-8"), summary(cells), _BEGIN)
    page.write_text(text, encoding="utf-8")
