"""``gqa expect``: writes known results into an expectations file, from results files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from conformance.base.paths import INSTALLED, data_path, shown
from conformance.base.words import plural
from conformance.cli.common import (
    BadArgument,
    Status,
    check_separate,
    check_writable,
    reading,
    write_file,
)
from conformance.cli.options import FILE
from conformance.targets.catalogue import TARGETS


@click.command()
@click.option(
    "--ep",
    "target",
    required=True,
    metavar="TARGET",
    help="The target as results name it, without its version: cpu.",
)
@click.option(
    "--from",
    "results",
    required=True,
    multiple=True,
    type=FILE,
    metavar="RESULTS",
    help="A results file, of any release; repeat. It may be compressed (.xz).",
)
@click.option(
    "--expectations",
    "file",
    type=FILE,
    metavar="FILE",
    help="The file to write; default: expectations/TARGET.yaml of this checkout.",
)
@click.option("--dry-run", is_flag=True, help="Print the changes, and write nothing.")
def expect(target: str, results: Sequence[Path], file: Path | None, dry_run: bool) -> int:
    """Write down known failures, so that only new ones are red.

    A results file says what fails, and the expectations file gets a line for it.
    What people wrote stays: comments, order, reasons and links. A line that a newer release mended
    ends there. New lines name entries and ids of cases with one cause, and never one that passed.
    Replace their TODO by a reason and a link.

    \b
    Exit status: 0 the file is as the results are   2 bad input
    """
    # Imported here, so that other commands start fast.
    from conformance.case.corpus import find
    from conformance.expectations.expect import expect as updated

    place = file or _shipped(target)
    check_separate(results, [("--expectations", place)])
    if not dry_run:
        check_writable(place, "expectations")
    with reading():
        expected = updated(target, results, place, find(()).loaded)
    for sentence in expected.told:
        click.echo(sentence)
    if expected.changed and not dry_run:
        write_file(place, "expectations", expected.text)
    elif expected.changed:
        for line in _difference(expected.before, expected.text, shown(place)):
            click.echo(line)
    update, noun = expected.update, "result" if expected.results == 1 else "results"
    new = f"{plural(len(update.new), 'new line')} for {update.unexpected:,} unexpected"
    end = "; nothing was written." if dry_run else "."
    click.echo(f"{shown(place)}: {new} of {expected.results:,} {noun}{end}")
    return Status.AS_EXPECTED


def _shipped(target: str) -> Path:
    """The shipped file of ``target``. Raises `BadArgument` where a user's file must be named."""
    if target not in {entry.name for entry in TARGETS}:
        raise BadArgument(f"'{target}' has no file in the suite; name yours with --expectations.")
    if INSTALLED:
        raise BadArgument("The suite is installed; name a file of your own with --expectations.")
    return data_path("expectations") / f"{target}.yaml"


def _difference(before: str, after: str, name: str) -> Sequence[str]:
    import difflib

    lines = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(*lines, name, name, lineterm="", n=2))
