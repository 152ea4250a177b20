"""Commands on results files: ``gqa report`` makes something of them, ``gqa diff`` compares two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from conformance.cli_common import (
    ALL_AS_EXPECTED,
    INFRASTRUCTURE,
    UNEXPECTED,
    BadArgument,
    say,
    write_text,
)
from conformance.report.changes import Changes, changes
from conformance.results import Joined, ResultsError, Run, join, read


def write_html(runs: Sequence[Run], html: Path) -> None:
    """Write the HTML report of ``runs``, or raise `ResultsError`."""
    from conformance.report.html import render

    write_text(html, "the report", render(runs))


def _write_markdown(joined: Joined, markdown: Path, changed: Changes | None) -> None:
    from conformance.report.markdown import report_markdown

    write_text(markdown, "the summary", report_markdown(joined, changed))


_FILE: Any = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=_FILE, metavar="FILE", help="One HTML page.")
@click.option("--markdown", type=_FILE, metavar="FILE", help="A CI job's summary.")
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="OLD",
    help="A results file of before, to say what changed since; repeat.",
)
def report(
    results: Sequence[Path], html: Path | None, markdown: Path | None, against: Sequence[Path]
) -> int:
    """Make a report of one or more results files, a column for each target of each.

    At least one form of it must be asked for; several may be.

    \b
    Exit status: 0 written   2 bad input   3 something could not be written
    """
    if html is markdown is None:
        raise BadArgument("Say what to make of the results: --html FILE or --markdown FILE.")
    runs = _read(results)
    joined = join(runs)
    changed = changes(joined, join(_read(against))) if against else None
    outputs: list[tuple[str, Path | None, Callable[[Path], None]]] = [
        ("Report: ", html, lambda path: write_html(runs, path)),
        ("Markdown:", markdown, lambda path: _write_markdown(joined, path, changed)),
    ]
    status = ALL_AS_EXPECTED
    for what, path, write in outputs:
        if path is None:
            continue
        # One that cannot be written is no reason to go without the others.
        try:
            write(path)
        except ResultsError as error:
            say(str(error))
            status = INFRASTRUCTURE
        else:
            click.echo(f"{what} {path}")
    return status


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write it there, and say if worse.")
def diff(old: Path, new: Path, markdown: Path | None) -> int:
    """Say what changed from the results file OLD to NEW: what broke, vanished, was fixed …

    \b
    Exit status: 0 nothing is worse             1 something is
                 2 a file that cannot be read   3 the output cannot be written
    """
    from conformance.report.markdown import changes_markdown

    (before,), (after,) = _read([old]), _read([new])
    changed = changes(join([after]), join([before]))
    text = changes_markdown(changed)
    if markdown is None:
        click.echo(text, nl=False)
    else:
        write_text(markdown, "the changes", text)
        for reason in changed.reasons:
            click.echo(reason)
        click.echo(f"Markdown: {markdown}")
    return UNEXPECTED if changed.worse else ALL_AS_EXPECTED


def _read(files: Sequence[Path]) -> list[Run]:
    try:
        return [read(file) for file in files]
    except ResultsError as error:
        raise BadArgument(str(error)) from None
