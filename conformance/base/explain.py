"""Validation errors of YAML files, worded in YAML terms, with the nearest valid name."""

from __future__ import annotations

import difflib
import itertools
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conformance.base.text import one_line
from conformance.base.yaml_source import MAX_PROBLEMS, Key, Problem, Source

#: Replacements, by error type, for pydantic messages that use Python terms.
_MESSAGES: Final = {
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "too_short": "expected {min_length} or more items",
    "string_too_short": "must not be empty",
    "string_type": "expected a string",
    "string_pattern_mismatch": "expected a letter, then lower-case letters, digits and '_'",
    "int_type": "expected an integer",
    "float_type": "expected a number",
    "bool_type": "expected true or false",
}

#: Longer words are not compared with the known names, since that takes quadratic time.
_MOST_SIMILAR: Final = 200


#: The most characters of an unforeseen error.
_MOST_SAID: Final = 300


def reason_of(error: Exception) -> str:
    """The reason of an error, as half a sentence.

    An unforeseen error also says where it was raised: it may be a fault of this program.
    """
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))} {first['input']!s:.40}: {first['msg']}"
    said = one_line(str(error), _MOST_SAID)
    if type(error).__module__.startswith("conformance."):
        return said
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"
    return f"{said} ({where})" if said else where


def did_you_mean(
    word: str, known: Iterable[object], others: Mapping[str, Iterable[str]] | None = None
) -> str:
    """The end of a sentence: the known name most similar to ``word``; empty if none is similar.

    ``others`` has further names for each of some known ones.
    """
    if len(word) > _MOST_SIMILAR:
        return ""
    own = {str(name): str(name) for name in known}
    pairs = ((name, other) for name, those in (others or {}).items() for other in those)
    names = {other: name for name, other in pairs if name.partition(":")[0] in own} | own
    if others and word not in names:
        word = word.replace("-", "_").lower()
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def explained(
    source: Source,
    details: Iterable[ErrorDetails],
    fields_at: Callable[[Key], Sequence[str]],
    others: Mapping[str, Iterable[str]] | None = None,
) -> list[Problem]:
    """The first of pydantic's errors: one more than :class:`InputError` lists."""
    listed = itertools.islice(details, MAX_PROBLEMS + 1)
    return [explain(source, detail, fields_at, others=others) for detail in listed]


def explain(
    source: Source,
    detail: ErrorDetails,
    fields_at: Callable[[Key], Sequence[str]],
    path: Key | None = None,
    others: Mapping[str, Iterable[str]] | None = None,
) -> Problem:
    """One pydantic error as a problem in YAML terms, with the allowed values and a suggestion.

    ``fields_at`` returns the known fields at the location of an unknown one. ``path`` is the place
    in the file, if it differs from the error's own location. ``others`` has other names of fields
    and of values (``field: value``).
    """
    steps = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    location = path if path is not None else steps
    kind, found = detail["type"], detail["input"]
    word = steps[-1] if steps else ""
    name = next((part for part in reversed(steps) if isinstance(part, str)), "")
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        fields = fields_at(location)
        listed = f"; known: {', '.join(fields)}" if len(fields) <= 12 else ""
        sentence = f"unknown field '{word}'{did_you_mean(str(word), fields, others) or listed}"
        return source.problem(location, sentence, at_key=True)
    if kind == "missing":
        return source.problem(location, f"the field '{word}' is missing")
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        if word == "[key]":
            name = str(found)
        what = f"'{found}'" if word == "[key]" else f"{name}: found {_found(found)}"
        listed = ", ".join(allowed) or context["expected"]
        named = {each.partition(": ")[::2]: those for each, those in (others or {}).items()}
        values = {value: those for (field, value), those in named.items() if field == name}
        meant = did_you_mean(str(found), allowed, values)
        return source.problem(location, f"{what}, allowed: {listed}{meant}")
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    message = re.sub(r"^input should be ", "expected ", message.removeprefix("value error, "))
    if kind in _MESSAGES:  # only those are templates: others quote the file
        message = _MESSAGES[kind].format_map(context)
    return source.problem(location, f"{name or 'the file'}: {message}, found {_found(found)}")


def _found(value: object) -> str:
    """A value as an error message shows it: short and in YAML terms."""
    if isinstance(value, dict | list):
        word = "mapping" if isinstance(value, dict) else "list"
        return f"a {word}" if value else f"an empty {word}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return one_line(repr(value), 80)
