"""Commands on results files: they convert, compare and join them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from conformance.base.interrupts import undisturbed
from conformance.base.tuning import one_thread, uncollected
from conformance.base.words import plural
from conformance.cli.common import (
    BadArgument,
    Status,
    check_separate,
    check_writable,
    read_runs,
    reading,
    say,
    write_file,
)
from conformance.cli.console import make_console
from conformance.cli.options import FILE
from conformance.report.cells import csv_text, json_text
from conformance.report.junit import junit
from conformance.report.markdown import changes_markdown, report_markdown
from conformance.results.compare import RunDifferences, changes
from conformance.results.packed import packing
from conformance.results.reader import Run, read
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.table import Table, tabulate

#: The approximate number of bytes of changes that a terminal shows.
_SCREENS: Final = 12_000


@dataclass(frozen=True)
class Material:
    """The input of a report."""

    runs: Sequence[Run]
    table: Table
    changes: RunDifferences | None = None
    """The changes from the baseline, if one was given."""
    stale_after: int | None = None
    """The number of days after which the page says that its results are old."""
    address: str = ""
    """The URL at which the site will be published."""


#: The files of a form, as path and text.
_Files = Iterator[tuple[Path, str]]


def _html(material: Material, path: Path, on_site: bool = False) -> _Files:
    with one_thread(), undisturbed():  # NumPy, ONNX and jinja2
        from conformance.report.html import render

    yield (
        path,
        render(
            material.table,
            material.changes,
            stale_after=material.stale_after,
            address=material.address if on_site else None,
        ),
    )


def _markdown(material: Material, path: Path) -> _Files:
    yield path, report_markdown(material.table, material.changes)


def _text(make: Callable[[Table], str]) -> Callable[[Material, Path], _Files]:
    """The function for a form that is one text, made from the table alone."""
    return lambda material, path: iter([(path, make(material.table))])


def _site(material: Material, folder: Path) -> _Files:
    """The pages of the site, and the report.

    The site's feed lists the changes in ``changes.jsonl``, which is in the folder before.
    """
    with one_thread(), undisturbed():  # what the page imports, too
        from conformance.report.model_pages import load_models
        from conformance.report.site import Site, read_changes

    yield from _html(material, folder / "report.html", on_site=True)
    models = load_models().beside([column.target for column in material.table.columns])
    site = Site(models, material.address, read_changes(folder / "changes.jsonl"))
    yield from ((folder / place, text) for place, text in site.files())


@dataclass(frozen=True)
class _Form:
    """A form of a report: its option, its name in messages, and the function that makes it."""

    option: str
    noun: str
    help: str
    files: Callable[[Material, Path], _Files]
    folder: bool = False

    def write(self, path: Path, files: Iterable[tuple[Path, str]]) -> None:
        """Write the files, and make their folders below ``path``. Raises `ResultsError`."""
        for file, text in files:
            if self.folder:
                with suppress(OSError):  # writing the file says why
                    path.mkdir(exist_ok=True)
                    file.parent.mkdir(exist_ok=True)
            write_file(file, f"the {self.noun}", text)


#: The forms of a report. CONTRIBUTING.md says what else changes with a new one.
FORMS: Final = (
    _Form("html", "report", "HTML page, self-contained.", _html),
    _Form("markdown", "Markdown", "Summary for a CI job.", _markdown),
    _Form("junit", "JUnit XML", "JUnit XML, a suite for each target.", _text(junit)),
    _Form("csv", "CSV", "A row for each case on each target.", _text(csv_text)),
    _Form("json", "JSON", "The same, with targets and problems.", _text(json_text)),
    _Form(
        "site",
        "site",
        "A site: which model runs where, the report, findings, data, a feed.",
        _site,
        folder=True,
    ),
)


def _add_forms(command: click.Command) -> click.Command:
    """Adds an option for each form to ``command``, after its arguments."""
    command.params[1:1] = [
        click.Option(
            [f"--{form.option}"],
            type=click.Path(path_type=Path, dir_okay=form.folder, file_okay=not form.folder),
            metavar="DIR" if form.folder else "FILE",
            help=form.help,
        )
        for form in FORMS
    ]
    return command


@_add_forms
@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
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
@uncollected()
def report(
    results: Sequence[Path],
    against: Sequence[Path],
    stale_after: int | None,
    address: str,
    **paths: Path | None,
) -> int:
    """Write results as a page, Markdown, JUnit, CSV, JSON or a site.

    There is a column for each target of each results file. Give at least one form of a report.

    \b
    Exit status: 0 written   2 bad input   3 a file could not be written
    """
    requested = [(form, path) for form in FORMS if (path := paths[form.option]) is not None]
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
    check_separate([*results, *against], [(f"--{form.option}", path) for form, path in requested])
    before = tabulate(read_runs(against)) if against else None
    runs = read_runs(results)
    table = tabulate(runs)
    changed = changes(table, before) if before else None
    material = Material(runs, table, changed, stale_after, address.rstrip("/"))
    return _write(material, requested)


def _write(material: Material, requested: Sequence[tuple[_Form, Path]]) -> int:
    """Write the requested forms; the exit status."""
    status = Status.AS_EXPECTED
    for form, path in requested:
        # If one cannot be written, the others still are.
        try:
            form.write(path, [*form.files(material, path)])
        except ResultsError as error:
            say(str(error))
            status = Status.INFRASTRUCTURE
        else:
            label = form.noun.split()[0]
            click.echo(f"{label[0].upper() + label[1:] + ':':<8} {path}")
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
@uncollected()
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
    return Status.UNEXPECTED if changed.worse else Status.AS_EXPECTED


def _compared(old: Path, new: Path) -> RunDifferences:
    """The changes from ``old`` to ``new``, files of any size; all changes are in memory."""
    try:
        with reading():
            before, after = (
                tabulate([read(file, bounded=False)], in_memory=False) for file in (old, new)
            )
            return changes(after, before)
    except OSError as error:
        raise ResultsError(f"Cannot compare {old} and {new}: {error}.") from None


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; packed if its name ends in .xz. For campaigns, a new folder.",
)
@click.option("--compact", is_flag=True, help="Leave out times, and the figures of what passes.")
@click.option("--incomplete", is_flag=True, help="Join although something is missing.")
def merge(results: Sequence[Path], output: Path, compact: bool, incomplete: bool) -> int:
    """Join results files, or the shards of a campaign, into one.

    The shards of a campaign are folders of gqa fuzz. Results are shards of one run, or runs on
    several targets or releases, of one suite and one corpus; each case is in them once on each
    target.

    \b
    Exit status: 0 written        2 the files cannot be joined
                 3 the output cannot be written, or is incomplete
    """
    folders = [path for path in results if path.is_dir()]
    if folders:
        if others := [path for path in results if path not in folders]:
            raise BadArgument(
                f"{folders[0]} is the folder of a campaign, and {others[0]} is no folder; "
                "join results and campaigns apart."
            )
        if compact:
            raise BadArgument("--compact is for results files; leave it out for campaigns.")
        from conformance.cli.campaigns import merge_campaigns

        return merge_campaigns(folders, output, incomplete=incomplete)
    from conformance.results.merge import merge as merge_files

    check_separate(results, [("--output", output)])
    check_writable(output, "the results")
    try:
        with packing(output) as file:
            merged = merge_files(results, file, compact=compact, incomplete=incomplete)
    except ResultsError as error:
        raise BadArgument(str(error)) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write results to {output}: {cause_of(error)}.") from None
    click.echo(
        f"Results: {output}, {plural(merged.results, 'result')} of "
        f"{plural(merged.cases, 'case')} on {plural(len(merged.targets), 'target')}"
    )
    for problem in merged.problems:
        say(problem)
    return Status.INFRASTRUCTURE if merged.problems else Status.AS_EXPECTED
