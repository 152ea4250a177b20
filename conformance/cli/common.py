"""Exit statuses, messages and files to write, for all commands of ``gqa``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.base.files import identity, own_descriptor, writing
from conformance.base.interrupts import INTERRUPTED
from conformance.base.text import printable
from conformance.results.results_error import ResultsError, cause_of

if TYPE_CHECKING:
    from conformance.model.calls.subject import Subject
    from conformance.results.reader import Run


class Status(IntEnum):
    """The exit status of a command."""

    AS_EXPECTED = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    INFRASTRUCTURE = 3
    INTERRUPTED = INTERRUPTED


class BadArgument(ValueError):
    """An argument is invalid or ambiguous; the message says why."""


@contextmanager
def reading() -> Iterator[None]:
    """Within the block, a `ResultsError` becomes a `BadArgument`."""
    try:
        yield
    except ResultsError as error:
        raise BadArgument(str(error)) from None


def read_runs(files: Iterable[Path]) -> list[Run]:
    """The runs of results files, which share the records of cases. Raises `BadArgument`."""
    from conformance.results.in_memory import StoreInMemory
    from conformance.results.reader import read  # imports pydantic
    from conformance.results.table import with_shared_cases

    with reading():
        runs = with_shared_cases(read(file, StoreInMemory()) for file in files)
    return runs


def say(text: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(text), err=True)  # beside a progress bar, rich would obey colours


def check_separate(inputs: Iterable[Path], outputs: Sequence[tuple[str, Path]]) -> None:
    """Raise `BadArgument` if an output is an input or another output, also through a link.

    ``outputs`` are options with their paths.
    """
    read = {file: path for path in inputs if (file := identity(path)) is not None}
    written: dict[object, str] = {}
    for option, path in outputs:
        file = identity(path)
        if file is None:
            continue
        if file in read:
            raise BadArgument(
                f"{option} would overwrite {read[file]}, which this command reads; "
                "name another file."
            )
        if file in written:
            raise BadArgument(f"{written[file]} and {option} name one file, {path}; name two.")
        written[file] = option


def check_writable(path: Path, what: str) -> None:
    """Raise `ResultsError` if ``what`` cannot be written to ``path``; called before a long run.

    Errors that appear only while writing, such as a full disk, are not detected.
    """
    if own_descriptor(path) is not None:
        return
    begin = f"Cannot write {what} to {path}:"
    if not path.parent.is_dir():
        raise ResultsError(f"{begin} there is no folder {path.parent}.")
    place = Path(os.path.realpath(path))
    if not place.parent.is_dir():
        raise ResultsError(f"{begin} it is a link to {place}, and there is no such folder.")
    if place.is_char_device():
        needed = [place]
    elif place.exists() and not place.is_file():
        raise ResultsError(f"{begin} not a regular file.")
    else:
        # A file is replaced by a new one, so its folder is written, too.
        needed = [place, place.parent] if place.exists() else [place.parent]
    if not all(os.access(each, os.W_OK) for each in needed):
        raise ResultsError(f"{begin} permission denied.")


def write_file(path: Path, what: str, content: str | bytes) -> None:
    """Write a whole file or nothing; text as UTF-8. Raises `ResultsError` with one sentence."""
    check_writable(path, what)
    try:
        with writing(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write {what} to {path}: {cause_of(error)}.") from None


def write_cases(subject: Subject, file: Path) -> None:
    """Write the case file of a model, and the graphs of its cases beside it."""
    write_file(file, "cases", subject.cases)
    for name, content in subject.graphs:
        write_file(file.parent / name, "a graph", content)
