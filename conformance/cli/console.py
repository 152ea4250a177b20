"""The consoles of rich, whose texts have no control characters but rich's own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from conformance.base.text import printable
from conformance.cli.streams import PrintableStream


class SafeConsole(Console):
    """A console that writes to the terminal behind a standard stream, and escapes texts itself."""

    def __init__(self, stderr: bool = False, **rest: Any) -> None:
        stream = sys.stderr if stderr else sys.stdout
        terminal = stream.terminal if isinstance(stream, PrintableStream) else None
        super().__init__(file=terminal, stderr=stderr, **rest)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is printed; rich builds every line of it here."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def make_console() -> Console:
    """A console on standard output; without a terminal, lines are not wrapped."""
    return SafeConsole() if sys.stdout.isatty() else SafeConsole(width=1000)


def natural_width(console: Console, table: Table) -> int:
    """The width at which nothing of ``table`` is folded or cut."""
    return _widths(console, table).maximum


def least_width(console: Console, table: Table) -> int:
    """The width below which words of ``table`` would be cut or broken."""
    return _widths(console, table).minimum


def _widths(console: Console, table: Table) -> Measurement:
    return console.measure(table, options=console.options.update_width(10_000))
