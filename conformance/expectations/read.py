"""Reads expectations files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from conformance.base.explain import explained
from conformance.base.yaml_source import InputError, Key, Source, read_yaml
from conformance.expectations.known import ExpectationFile, Known
from conformance.expectations.match import Expectation
from conformance.targets.catalogue import entry_of


def load_expectations(files: Iterable[Path]) -> list[Expectation]:
    """The lines of those ``files`` that exist. Raises :class:`InputError`."""
    found = []
    for file in filter(Path.exists, files):
        source, lines = read_lines(file)
        if source.data["target"] != file.stem:
            told = f"the target is '{source.data['target']}', but the file is for '{file.stem}'"
            raise InputError([source.problem(("target",), told)])
        found += lines
    return found


def load_pinned(files: Iterable[Path]) -> list[Expectation]:
    """The lines of a user's files, whose names need not be those of their targets.

    Raises :class:`InputError`.
    """
    return [line for file in files for line in read_lines(file)[1]]


def read_lines(file: Path, text: str | None = None) -> tuple[Source, list[Expectation]]:
    """The content of ``file``, or what it is with this ``text``, and its lines.

    Raises :class:`InputError`.
    """
    source = read_yaml(file, text)
    try:
        parsed = ExpectationFile.model_validate(source.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InputError(explained(source, details, _fields_at)) from None
    entry = entry_of(parsed.target)
    provider = None if entry is None else entry.execution_provider
    return source, [
        Expectation(known, file, source.values["expectations", at][0], provider, parsed.target)
        for at, known in enumerate(parsed.expectations)
    ]


def _fields_at(location: Key) -> list[str]:
    """The valid fields at a location in the file."""
    return list((Known if len(location) > 2 else ExpectationFile).model_fields)
