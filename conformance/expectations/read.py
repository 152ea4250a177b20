"""Reads expectations files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from conformance.base.explain import list_item_fields, validated
from conformance.base.yaml_source import InputError, Key, Source, read_yaml
from conformance.expectations.known import ExpectationFile, Known, KnownInstability
from conformance.expectations.match import Expectation
from conformance.results.records import ExpectationRecord
from conformance.results.verdicts import Verdict
from conformance.targets.catalogue import entry_of


def load_expectations(files: Iterable[Path]) -> list[Expectation]:
    """The lines of those ``files`` that exist. Raises :class:`InputError`."""
    there = filter(Path.exists, files)
    return [line for file in there for line in _lines(file, of_its_target=True)]


def load_pinned(files: Iterable[Path]) -> list[Expectation]:
    """The lines of a user's files, whose names need not be those of their targets.

    Raises :class:`InputError`.
    """
    return [line for file in files for line in _lines(file, of_its_target=False)]


def _lines(file: Path, *, of_its_target: bool) -> Iterator[Expectation]:
    source, parsed = _read(file, of_its_target=of_its_target)
    entry = entry_of(parsed.target)
    provider = None if entry is None else entry.execution_provider
    for at, known in enumerate(parsed.expectations):
        line, _ = source.values["expectations", at]
        yield Expectation(known, file, line, provider, parsed.target)


def _read(file: Path, *, of_its_target: bool) -> tuple[Source, ExpectationFile]:
    """The content of the file; its name must be ``of_its_target``. Raises :class:`InputError`."""
    source = read_yaml(file)
    parsed = validated(source, ExpectationFile, _fields_at)
    if of_its_target and parsed.target != file.stem:
        sentence = f"the target is '{parsed.target}', but the file is for '{file.stem}'"
        raise InputError([source.problem(("target",), sentence)])
    return source, parsed


def _fields_at(location: Key) -> list[str]:
    """The valid fields at a location in the file."""
    item = KnownInstability if location[:1] == ("instability",) else Known
    return list_item_fields(ExpectationFile, item)(location)


def instability_for(
    verdict: Verdict,
    version: str,
    adapter: str | None,
    files: Iterable[Path],
    names: Collection[str] = (),
) -> ExpectationRecord | None:
    """The first known instability with this verdict, version and adapter.

    With ``names``, those of the target, the files are a user's, and may be for other targets, too.
    """
    for file in filter(Path.exists, files):
        source, parsed = _read(file, of_its_target=not names)
        if names and parsed.target not in names:
            continue
        for at, known in enumerate(parsed.instability):
            if known.verdict == verdict and known.holds_for(version, adapter):
                return known.record(file, source.values["instability", at][0])
    return None
