"""Commands on results files: ``gqa report`` converts them, ``gqa diff`` compares two."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from conformance.cli.common import (
    ALL_AS_EXPECTED,
    INFRASTRUCTURE,
    UNEXPECTED,
    BadArgument,
    check_separate,
    reading,
    say,
    write_file,
)
from conformance.cli.console import make_console
from conformance.cli.options import FILE
from conformance.report.badges import badges
from conformance.report.cells import csv_text, json_text
from conformance.report.junit import junit
from conformance.report.markdown import changes_markdown, report_markdown
from conformance.report.support import support_text
from conformance.results.compare import Changes, changes
from conformance.results.errors import ResultsError, cause_of
from conformance.results.place import part_file
from conformance.results.reader import Run, read
from conformance.results.table import Table, tabulate, with_shared_cases

#: How often --watch looks whether results have changed.
_POLL_SECONDS: Final = 2.0
#: About how many bytes of changes a terminal shows.
_SCREENS: Final = 12_000


@dataclass(frozen=True)
class Material:
    """The input of a report."""

    runs: Sequence[Run]
    table: Table
    changes: Changes | None
    """The changes from the baseline, if one was given."""
    stale_after: int | None = None
    """After so many days the page says that its results are old."""
    watched: bool = False
    """Whether the page is rewritten, and reloads itself."""
    address: str = ""
    """Where a site will be."""


# One function writes each form.


def _html(material: Material, path: Path, on_site: bool = False) -> None:
    from conformance.report.html import render

    page = render(
        material.runs,
        material.changes,
        stale_after=material.stale_after,
        watched=material.watched,
        address=material.address if on_site else None,
    )
    write_file(path, "the report", page)


def _markdown(material: Material, path: Path) -> None:
    write_file(path, "the summary", report_markdown(material.table, material.changes))


def _text(what: str, make: Callable[[Table], str]) -> Callable[[Material, Path], None]:
    """Writes a form that is one text; ``what`` it is stands in messages."""
    return lambda material, path: write_file(path, what, make(material.table))


def _badges(material: Material, folder: Path) -> None:
    """Write the badges to ``folder``, which is created if its parent exists."""
    _make_folder(folder, "the badges")
    for badge in badges(material.table):
        write_file(folder / badge.file, "a badge", badge.svg)


def _make_folder(folder: Path, what: str) -> None:
    """Make the folder for ``what``, if its parent exists. Raises `ResultsError`."""
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        raise ResultsError(
            f"Cannot write {what} to {folder}: there is no folder {folder.parent}."
        ) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write {what} to {folder}: {cause_of(error)}.") from None


def _site(material: Material, folder: Path) -> None:
    """Write the site to ``folder``: its pages, the report, support data and badges.

    The feed has what ``changes.jsonl`` in the folder says.
    """
    from conformance.report.models import load_models
    from conformance.report.site import Site, read_changes  # imports jinja2, as the page does

    _make_folder(folder, "the site")
    _html(material, folder / "report.html", on_site=True)
    support = support_text(material.table, indent=None)
    write_file(folder / "support.json", "the support data", support)
    _badges(material, folder / "badges")
    made = sorted(file.name for file in (folder / "badges").glob("*.svg"))
    changes = read_changes(folder / "changes.jsonl")
    models = load_models().beside([column.target for column in material.table.columns])
    for place, text in Site(models, material.address, made, changes).files():
        _make_folder((folder / place).parent, "the site")
        write_file(folder / place, "a page of the site", text)


def _site_files(material: Material, folder: Path) -> Iterable[Path]:
    return [folder / "index.html", folder / "report.html"]


def _badge_files(material: Material, folder: Path) -> Iterable[Path]:
    return [folder / badge.file for badge in badges(material.table)]


@dataclass(frozen=True)
class _Form:
    """A form of a report: its option and the function that writes it."""

    option: str
    word: str
    help: str
    write: Callable[[Material, Path], None]
    folder: bool = False
    files: Callable[[Material, Path], Iterable[Path]] = lambda material, path: [path]


#: The forms of a report. CONTRIBUTING.md says what else changes with a new one.
FORMS: Final = (
    _Form("html", "Report", "HTML page, self-contained.", _html),
    _Form("markdown", "Markdown", "Summary for a CI job.", _markdown),
    _Form("junit", "JUnit", "JUnit XML, a suite for each target.", _text("the JUnit XML", junit)),
    _Form("csv", "CSV", "A row for each case on each target.", _text("the CSV", csv_text)),
    _Form("json", "JSON", "The same, with targets and problems.", _text("the JSON", json_text)),
    _Form("badges", "Badges", "An SVG for each target.", _badges, folder=True, files=_badge_files),
    _Form(
        "support", "Support", "What a version supports.", _text("the support data", support_text)
    ),
    _Form(
        "site",
        "Site",
        "A site: which model runs where, the report, findings, data, a feed.",
        _site,
        folder=True,
        files=_site_files,
    ),
)


def _forms(command: Callable[..., int]) -> Callable[..., int]:
    """Adds an option for each form to ``command``; its argument ``requested`` gets them."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> int:
        named = [(form, options.pop(form.option)) for form in FORMS]
        requested = [(form, path) for form, path in named if path is not None]
        return command(requested=requested, **options)

    for form in reversed(FORMS):
        kind = click.Path(path_type=Path, dir_okay=form.folder, file_okay=not form.folder)
        metavar = "DIR" if form.folder else "FILE"
        add = click.option(f"--{form.option}", type=kind, metavar=metavar, help=form.help)
        wrapped = add(wrapped)
    return wrapped


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@_forms
@click.option(
    "--against",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="OLD",
    help="Baseline results file, to show what changed; repeat.",
)
@click.option(
    "--stale-after",
    type=click.IntRange(1),
    metavar="DAYS",
    help="The HTML page says that its results are old after so many days; for a published page.",
)
@click.option(
    "--address",
    default="",
    metavar="URL",
    help="Where --site will be, for links from chats and search engines.",
)
@click.option(
    "--watch",
    "watched",
    is_flag=True,
    help="Rewrite --html while results come, until Ctrl-C; the page reloads itself.",
)
def report(
    results: Sequence[Path],
    requested: Sequence[tuple[_Form, Path]],
    against: Sequence[Path],
    stale_after: int | None,
    address: str,
    watched: bool,
) -> int:
    """Write results as a page, Markdown, JUnit, CSV, badges or a site.

    There is a column for each target of each results file. Give at least one form of a report.

    \b
    Exit status: 0 written   2 bad input   3 a file could not be written
    """
    options = {form.option for form, _ in requested}
    if not requested:
        *most, last = (f"--{form.option}" for form in FORMS)
        raise BadArgument(f"Give at least one form of a report: {', '.join(most)} or {last}.")
    if against and not options & {"html", "markdown"}:
        raise BadArgument("--against needs --html or --markdown.")
    if stale_after is not None and not options & {"html", "site"}:
        raise BadArgument("--stale-after needs --html or --site.")
    if address and "site" not in options:
        raise BadArgument("--address needs --site.")
    if watched and options != {"html"}:
        raise BadArgument("--watch needs --html, and no other form.")
    named = [(f"--{form.option}", path) for form, path in requested]
    check_separate([*results, *against], named)
    before = tabulate(_read(against)) if against else None
    if watched:
        _watch(results, requested, before, stale_after)
    return _write(results, requested, before, stale_after, address=address.rstrip("/"))


def _watch(
    results: Sequence[Path],
    requested: Sequence[tuple[_Form, Path]],
    before: Table | None,
    stale_after: int | None,
) -> None:
    """Rewrite the page until Ctrl-C, whenever a file has changed. The files need not exist yet.

    While a run writes beside earlier results, the page is of that run.
    """
    told, written = "", None
    with suppress(KeyboardInterrupt):
        while True:
            files = [max(path, part_file(path), key=_changed) for path in results]
            now = [_state(path) for path in files]
            if now != written:
                try:
                    _write(files, requested, before, stale_after, watched=True)
                    written, told = now, ""
                except ResultsError as error:  # perhaps not begun yet
                    if str(error) != told:
                        say(told := str(error))
            time.sleep(_POLL_SECONDS)


def _changed(path: Path) -> int:
    """When a file was written last; 0 if it is not there."""
    return (_state(path) or (0, 0))[1]


def _state(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        about = path.stat()
        return about.st_size, about.st_mtime_ns
    return None


def _write(
    results: Sequence[Path],
    requested: Sequence[tuple[_Form, Path]],
    before: Table | None,
    stale_after: int | None,
    watched: bool = False,
    address: str = "",
) -> int:
    """Write the requested forms, and return the exit status."""
    runs = _read(results)
    table = tabulate(runs)
    changed = changes(table, before) if before else None
    material = Material(runs, table, changed, stale_after, watched, address)
    check_separate(
        (run.path for run in (*runs, *(before.runs if before else ()))),
        [
            (f"--{form.option}", file)
            for form, path in requested
            for file in form.files(material, path)
        ],
    )
    status = ALL_AS_EXPECTED
    for form, path in requested:
        # If one cannot be written, the others still are.
        try:
            form.write(material, path)
        except ResultsError as error:
            say(str(error))
            status = INFRASTRUCTURE
        else:
            click.echo(f"{form.word + ':':<8} {path}")
    return status


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option(
    "--markdown",
    type=FILE,
    metavar="FILE",
    help="Write the changes to FILE, and print the regressions.",
)
def diff(old: Path, new: Path, markdown: Path | None) -> int:
    """Compare two results files: what broke, and what is fixed.

    NEW is compared with the baseline OLD. A terminal shows the most important changes; a pipe or a
    file gets Markdown with all of them.

    \b
    Exit status: 0 not worse                 1 worse
                 2 a file cannot be read     3 the output cannot be written
    """
    if markdown is not None:
        check_separate([old, new], [("--markdown", markdown)])
    changed = _compared(old, new)
    text = changes_markdown(changed)
    if markdown is None and sys.stdout.isatty():
        from rich.markdown import Markdown

        make_console().print(Markdown(changes_markdown(changed, _SCREENS), hyperlinks=False))
    elif markdown is None:
        click.echo(text, nl=False)
    else:
        write_file(markdown, "the changes", text)
        for reason in changed.reasons:
            click.echo(reason)
        click.echo(f"Markdown: {markdown}")
    return UNEXPECTED if changed.worse else ALL_AS_EXPECTED


def _compared(old: Path, new: Path) -> Changes:
    """The changes from ``old`` to ``new``, files of any size; all changes are in memory."""
    from conformance.results.store import stored

    try:
        with reading(), stored(old) as before, stored(new) as after:
            changed = changes(after, before)
    except OSError as error:
        raise ResultsError(f"Cannot compare {old} and {new}: {error}.") from None
    return changed


def _read(files: Sequence[Path]) -> list[Run]:
    with reading():
        runs = with_shared_cases(read(file) for file in files)
    return runs
