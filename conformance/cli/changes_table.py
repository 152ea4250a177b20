"""The output of ``gqa diff`` in a terminal: the changes as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.text import Text

from conformance.base.text import one_line
from conformance.base.words import plural
from conformance.cli.console import natural_width, plain_table
from conformance.results.compare import Change, Changes
from conformance.results.verdicts import TABLE

#: Of each kind of change, this many groups are shown.
_MOST_GROUPS: Final = 12
#: Narrower terminals get lines in place of tables with sentences.
_FOR_TABLES: Final = 80
#: Longer texts are cut to this many characters.
_LONGEST: Final = 300


def draw_changes(console: Console, changes: Changes) -> None:
    """Print why the new run is worse, the totals, and each kind of change."""
    if changes.worse:
        console.print(Text("Worse than the baseline", style="bold red"))
    else:
        console.print(Text("Not worse than the baseline", style="bold green"))
    for line in (*changes.reasons, *changes.notes):
        console.print(Text(f"  {_line(line)}"))
    console.print()
    _draw_totals(console, changes)
    for heading, found in changes.kinds():
        console.print()
        console.print(Text(f"{heading}: {len(found):,}", style="bold"))
        _draw_groups(console, changes, found)


def _draw_totals(console: Console, changes: Changes) -> None:
    """A row for each target: the number of each verdict, before and now if they differ."""
    table = plain_table()
    table.add_column("target", overflow="fold")
    for verdict in changes.verdicts:
        head = f"{TABLE[verdict].sign} {verdict}"
        table.add_column(head, justify="right", header_style=TABLE[verdict].style)
    table.add_column("results", justify="right")
    lines = []
    for match in changes.targets:
        name, counts = match.title(_line), match.counts(changes.verdicts)
        table.add_row(Text(name), *counts)
        named = zip(counts, (*changes.verdicts, "results"), strict=True)
        lines.append(f"{name}: {', '.join(f'{count} {what}' for count, what in named)}")
    if natural_width(console, table) <= console.width:
        console.print(table)
        return
    for line in lines:
        console.print(Text(line))


def _draw_groups(console: Console, changes: Changes, found: Iterable[Change]) -> None:
    """A row for the cases of one entry that changed from and to the same verdicts."""
    groups = changes.grouped(found)
    table = plain_table()
    table.add_column("cases", overflow="fold", ratio=2)
    table.add_column("target", overflow="fold", ratio=1)
    table.add_column("what changed; of several cases, in the first", overflow="fold", ratio=4)
    for entry, members in groups[:_MOST_GROUPS]:
        first = members[0]
        several = f"{len(members):,} of {entry}, the first {first.case}"
        cases = first.case if len(members) == 1 else several
        cells = [_line(cases), _line(first.target), _line(first.sentence)]
        if console.width >= _FOR_TABLES:
            table.add_row(*map(Text, cells))
        else:
            console.print(Text("- {} on {}: {}".format(*cells)))
    if table.row_count:
        console.print(table)
    if left := groups[_MOST_GROUPS:]:
        number = plural(sum(len(members) for _, members in left), "change")
        console.print(f"  and {number} more; --markdown FILE has them", highlight=False)


def _line(text: str) -> str:
    """Untrusted text on one line."""
    return one_line(text, _LONGEST)
