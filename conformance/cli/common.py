"""What all commands of ``gqa`` share: exit statuses, messages and files to write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from conformance.results.errors import ResultsError, cause_of

ALL_AS_EXPECTED: Final = 0
UNEXPECTED: Final = 1
BAD_INPUT: Final = 2
INFRASTRUCTURE: Final = 3
INTERRUPTED: Final = 130


class BadArgument(ValueError):
    """An argument is invalid or ambiguous; the message says why."""


def say(text: str) -> None:
    """Print a line on standard error."""
    click.echo(text, err=True)


def check_writable(path: Path, what: str) -> None:
    """Raise `ResultsError` if ``what`` cannot be written to ``path``; called before the work.

    Errors that appear only while writing, such as a full disk, are not detected.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ResultsError(f"Cannot write {what} to {path}: there is no folder {folder}.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ResultsError(f"Cannot write {what} to {path}: permission denied.")


def write_text(path: Path, what: str, text: str) -> None:
    """Write a file as UTF-8. Raises `ResultsError` with one sentence."""
    check_writable(path, what)
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write {what} to {path}: {cause_of(error)}.") from None
