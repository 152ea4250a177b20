"""Consoles and tables of rich, whose texts have no control characters but rich's own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from conformance.base.text import printable
from conformance.cli.streams import PrintableStream


class SafeConsole(Console):
    """A console that writes to the terminal behind a standard stream, and escapes its texts."""

    def __init__(self, stderr: bool = False, **rest: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        terminal = stream.terminal if isinstance(stream, PrintableStream) else None
        super().__init__(file=terminal, stderr=stderr, **rest)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a text that is printed, escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


#: The cell of a table where there is nothing to say.
NOTHING: Final = "·"


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def make_console() -> Console:
    """A console on standard output; without a terminal, lines are not wrapped."""
    return SafeConsole() if sys.stdout.isatty() else SafeConsole(width=1000)


def fits(console: Console, table: Table) -> bool:
    """Whether the console is so wide that no word of ``table`` is cut off."""
    options = console.options.update_width(10_000)
    width = 0 if table.pad_edge else -table.padding[1]
    for column in table.columns:
        sizes = [console.measure(text, options=options) for text in (column.header, *column.cells)]
        needed = (size.maximum if column.no_wrap else size.minimum for size in sizes)
        width += max(column.min_width or 0, *needed) + sum(table.padding[1::2])
    return width <= console.width


def print_table(console: Console, table: Table) -> None:
    """Print a table; where it does not fit, each row as a line that names the columns."""
    if fits(console, table):
        console.print(table, highlight=False)
        return
    columns = table.columns
    for row, *cells in zip(table.rows, *(column.cells for column in columns), strict=True):
        texts = [Text.from_markup(cell) if isinstance(cell, str) else cell for cell in cells]
        named = [
            Text.assemble(f"{column.header} ".lstrip(), text)
            for column, text in zip(columns, texts, strict=True)
            if isinstance(text, Text) and text.plain not in ("", NOTHING)
        ]
        line = Text("  ").join(named)
        line.stylize_before(row.style or "")
        console.print(line, highlight=False)
