"""The output of ``gqa check``."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from conformance.cli.console import print_table
from conformance.cli.terminal import RunSummary, Terminal
from conformance.report.model_table import ModelCause, ModelCell, ModelTable
from conformance.results.verdicts import LOOKS


def print_answers(terminal: Terminal, summary: RunSummary, table: ModelTable) -> None:
    """Print the answers: a table of layer groups and targets, and the failures."""
    if summary.interrupted:
        terminal.line(
            f"\nInterrupted after {len(summary.results)} results; the table has only these."
        )
    terminal.line(f"\n{table.heading}")
    for note in table.notes:
        terminal.line(f"Note: {note}")
    for _, sentence in table.sentences:
        terminal.line(sentence)
    if table.way_round:
        terminal.line(table.way_round)
    if table.ways:
        terminal.line(table.ways)
    terminal.out.print()
    print_table(terminal.out, _grid(table))
    for cause in table.causes:
        _print_cause(terminal, cause)
    for fault in table.faults:
        terminal.line(f"\n{fault}")
    terminal.troubles(summary)


def _print_cause(terminal: Terminal, cause: ModelCause) -> None:
    terminal.line(f"\n{cause.where}: {cause.what}: {cause.said}")
    for label, text in (
        ("for example", cause.example),
        ("case", cause.case),
        ("similar to" if cause.similar else "known", cause.similar or cause.why),
        ("which is" if cause.similar else "", cause.why if cause.similar else ""),
        ("see", cause.link),
        ("workaround", cause.workaround),
    ):
        if text:
            terminal.line(f"  {label:<12} {text}")


def _grid(table: ModelTable) -> Table:
    """The table, with a row for each group of layers and use, and a column for each target."""
    # Without its padding at the edge, rich cuts letters off the last column.
    grid = Table(box=None, padding=(0, 3, 0, 0))
    grid.add_column("layers", overflow="fold", min_width=8)
    grid.add_column("attention", overflow="fold", min_width=24)
    by_use = any(line.use for row in table.rows for line in row.lines)
    if by_use:
        grid.add_column("calls", no_wrap=True)
    for target in table.targets:
        grid.add_column(escape(target), overflow="fold", min_width=20)
    for row in table.rows:
        first = [escape(row.layers), escape(row.what)]
        for line in row.lines:
            use = [line.use or "all"] if by_use else []
            grid.add_row(*first, *use, *map(_cell, line.cells))
            first = ["", ""]
    return grid


def _cell(cell: ModelCell) -> str:
    sign, style = LOOKS[cell.verdict]
    return f"[{style}]{sign} {escape(cell.sentence)}[/]"
