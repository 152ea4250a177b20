"""Older formats of case files: which keys have been renamed since, and how they are read today."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from conformance.base.yaml_source import Key, Problem, Source

#: The current format, and the one before it, which is still read.
FORMAT: Final = "gqa-cases/2"
PREVIOUS_FORMAT: Final = "gqa-cases/1"

#: Keys that gqa-cases/2 renamed, by the kind of mapping that has them: old name to new name.
_RENAMED_FIELDS: Final = {"indifferent": "insensitive_to"}
_RENAMED_IN_INPUTS: Final = {"but": "elements"}


def read_as_current(source: Source) -> list[Problem]:
    """Renames the keys of a gqa-cases/1 file in ``source``; positions stay those of the file.

    Returns the problems: keys of the one format in a file of the other. The keys are then read as
    what they are meant to be, so that the rest of the file is checked too.
    """
    if not isinstance(source.data, dict):
        return []
    previous = source.data.get("format") == PREVIOUS_FORMAT
    problems: list[Problem] = []
    renamed: dict[Key, str] = {}
    for path, mapping, names in _mappings(source.data):
        for old, new in names.items():
            wrong = new if previous else old
            if wrong in mapping:
                is_called = old if previous else new
                sentence = f"the field '{wrong}' is called '{is_called}' in {source.data['format']}"
                problems.append(source.problem((*path, wrong), sentence, at_key=True))
            if old in mapping:
                renamed[(*path, old)] = new
    if previous:
        source.data["format"] = FORMAT
    if renamed:
        source.data = _rename(source.data, (), renamed)
        source.keys = {_new_path(path, renamed): place for path, place in source.keys.items()}
        source.values = {_new_path(path, renamed): place for path, place in source.values.items()}
    return problems


def _mappings(data: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any], dict[str, str]]]:
    """The mappings that may have renamed keys: path, content, and old names to new ones."""
    for path, fields in _fields(data):
        yield path, fields, _RENAMED_FIELDS
        for name, override in _items(fields.get("inputs")):
            if isinstance(override, dict):
                yield (*path, "inputs", name), override, _RENAMED_IN_INPUTS
        for axis, values in _items(fields.get("matrix")):
            if axis.startswith("inputs.") and isinstance(values, list):
                for index, override in enumerate(values):
                    if isinstance(override, dict):
                        yield (*path, "matrix", axis, index), override, _RENAMED_IN_INPUTS


def _fields(data: dict[str, Any]) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Each mapping of a case's fields: of the defaults, the entries and the values of an axis."""
    if isinstance(data.get("defaults"), dict):
        yield ("defaults",), data["defaults"]
    cases = data.get("cases")
    for index, entry in enumerate(cases if isinstance(cases, list) else ()):
        if not isinstance(entry, dict):
            continue
        yield ("cases", index), entry
        for axis, values in _items(entry.get("matrix")):
            for label, fields in _items(values):
                if isinstance(fields, dict):
                    yield ("cases", index, "matrix", axis, label), fields


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _rename(value: Any, path: Key, renamed: dict[Key, str]) -> Any:
    """A copy of ``value`` with the keys at the paths in ``renamed`` renamed."""
    if isinstance(value, list):
        return [_rename(item, (*path, i), renamed) for i, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    return {
        renamed.get((*path, key), key): _rename(item, (*path, key), renamed)
        for key, item in value.items()
    }


def _new_path(path: Key, renamed: dict[Key, str]) -> Key:
    return tuple(renamed.get(path[: i + 1], part) for i, part in enumerate(path))
