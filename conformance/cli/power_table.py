"""The table of the mutants, for the terminal and for ``docs/power.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.table import Table

from conformance.base.paths import ROOT
from conformance.maintain.power import Power, Score

PAGE: Final = ROOT / "docs" / "power.md"
#: The largest number of problems that are listed.
MOST: Final = 10
_BEGIN: Final = "<!-- written by: gqa power --record -->"
_END: Final = "<!-- end -->"


def share(number: float | None) -> str:
    """A share of the error budget, rounded for reading."""
    if number is None:
        return "–"
    if number == float("inf"):
        return "∞"
    return f"{number:.2g}" if number < 1000 else f"{number:.0e}".replace("e+0", "e")


def table(scores: Sequence[Score]) -> Table:
    """A table with a row for each mutant: its fault, and the cases that detect it."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column("mutant", no_wrap=True)
    made.add_column("what is wrong", max_width=60)
    made.add_column("kills", justify="right", no_wrap=True)
    made.add_column("themes", justify="right", no_wrap=True)
    made.add_column("margin", justify="right", no_wrap=True)
    made.add_column("first killer", overflow="fold")
    for area, members in groupby(scores, key=lambda score: score.mutant.area):
        made.add_section()
        made.add_row(f"[bold]{escape(area)}[/]")
        for score in members:
            made.add_row(*_row(score))
    return made


def _row(score: Score) -> list[str]:
    kills = f"{len(score.kills)}{'+' if score.given_up else ''}"
    alone = score.of_one_theme()
    return [
        escape(score.mutant.name),
        f"[dim]{escape(score.mutant.what)}[/]",
        kills if score.kills else "[bold red]0[/]",
        f"[yellow]{len(score.themes)}[/]" if alone else str(len(score.themes)),
        _margin(score),
        escape(score.kills[0].case.id) if score.kills else "[bold red]survives[/]",
    ]


def _margin(score: Score) -> str:
    """The smallest and the largest error of its killers, as shares of the budget."""
    if not score.shares:
        return "–"
    return f"{share(min(score.shares))} … {share(max(score.shares))}"


def correct_line(power: Power) -> str:
    """One sentence on the correct kernel."""
    largest = ", ".join(
        f"{dtype} {share(number)}" for dtype, number in sorted(power.correct.largest.items())
    )
    failed = len(power.correct.kills)
    verdict = f"fails {failed} of" if failed else "passes all"
    return (
        f"The correct kernel {verdict} {power.correct.tried} cases;"
        f" its largest shares of the error budget: {largest}."
    )


def closing(power: Power) -> str:
    """One sentence on all mutants."""
    killed = sum(bool(score.kills) for score in power.scores)
    pairs = sum(score.tried for score in power.scores)
    return f"{killed} of {len(power.scores)} mutants killed, {pairs} runs."


def summary(power: Power) -> str:
    """A Markdown table with a row for each area."""
    lines = [
        "| area | mutants | killed | detected by one theme | least visible (largest error) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for area, members in groupby(power.scores, key=lambda score: score.mutant.area):
        scores = list(members)
        least = min(scores, key=_visible)
        error = share(max(least.shares)) if least.shares else "not in numbers"
        cells = (
            area.replace("_", " "),
            len(scores),
            sum(bool(score.kills) for score in scores),
            sum(len(score.themes) == 1 for score in scores),
            f"`{least.mutant.name}`: {least.mutant.what.rstrip('.')} ({error})",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", f"{closing(power)} {correct_line(power)}"])


def _visible(score: Score) -> tuple[float, int, str]:
    """The visibility of a mutant: its largest error, then the themes that detect it."""
    return max(score.shares, default=float("inf")), len(score.themes), score.mutant.name


def write_page(power: Power, page: Path = PAGE) -> None:
    """Write the summary to its place in ``docs/power.md``."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), summary(power)), encoding="utf-8")


def replaced(text: str, summary: str, mark: str = _BEGIN) -> str:
    """``text`` with ``summary`` after its ``mark``. Raises ValueError if there is no place."""
    before, begin, rest = text.partition(mark)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"there is no place between {mark} and {_END}")
    return f"{before}{begin}\n\n{summary}\n\n{end}{after}"


def told(power: Power, whole: bool) -> Iterator[str]:
    """One sentence for each problem. Single themes count only if the corpus was ``whole``."""
    yield from power.troubles[:MOST]
    if len(power.troubles) > MOST:
        yield f"{len(power.troubles) - MOST} more runs have no result for any mutant."
    yield from power.faults()
    if whole:
        yield from power.of_one_theme()
