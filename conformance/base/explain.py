"""Errors in YAML files, in the words of YAML, with the nearest valid word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from conformance.base.yaml_source import InputError, Key, Problem, Source

M = TypeVar("M", bound=BaseModel)

#: pydantic's sentences that speak of Python, in the words of YAML.
_WORDED: Final = {
    "dict_type": "wanted a mapping",
    "model_type": "wanted a mapping",
    "list_type": "wanted a list",
    "tuple_type": "wanted a list",
    "too_short": "wanted {min_length} or more in it",
    "string_too_short": "wanted something in it",
    "string_type": "wanted a text",
    "string_pattern_mismatch": "wanted lower-case letters, digits and '_', a letter first",
    "int_type": "wanted an integer",
    "float_type": "wanted a number",
    "bool_type": "wanted true or false",
}


def did_you_mean(word: str, known: Iterable[object]) -> str:
    """The end of a sentence: the valid word nearest to ``word``; empty if none is near."""
    near = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def list_item_fields(outer: type[BaseModel], item: type[BaseModel]) -> Callable[[Key], list[str]]:
    """The valid fields of a file that is a model with one list of models: those of either."""
    return lambda location: list((item if len(location) > 2 else outer).model_fields)


def validated(source: Source, model: type[M], fields_at: Callable[[Key], Sequence[str]]) -> M:
    """The file's data as ``model``; raises :class:`InputError` with every problem in it."""
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise InputError([explain(source, e, fields_at) for e in error.errors()]) from None


def explain(
    source: Source,
    detail: ErrorDetails,
    fields_at: Callable[[Key], Sequence[str]],
    path: Key | None = None,
) -> Problem:
    """pydantic's error in the words of YAML, with what is allowed and the nearest valid word.

    ``fields_at`` gives the fields that are known where a location has an unknown one; ``path`` is
    the place in the file if it is not the finding's own.
    """
    said = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    location = path if path is not None else said
    kind, found = detail["type"], detail["input"]
    word = said[-1] if said else ""
    name = next((part for part in reversed(said) if isinstance(part, str)), "")
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        fields = fields_at(said)
        listed = f"; known: {', '.join(fields)}" if len(fields) <= 12 else ""
        sentence = f"unknown field '{word}'{did_you_mean(str(word), fields) or listed}"
        return source.problem(location, sentence, at_key=True)
    if kind == "missing":
        return source.problem(location, f"the field '{word}' is missing")
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", context["expected"])
        if word == "[key]":
            name = str(found)
        what = f"'{found}'" if word == "[key]" else f"{name}: found {_found(found)}"
        listed = (
            f", allowed: {', '.join(allowed)}" if allowed else f", allowed: {context['expected']}"
        )
        return source.problem(location, f"{what}{listed}{did_you_mean(str(found), allowed)}")
    message = detail["msg"][:1].lower() + detail["msg"][1:]
    message = re.sub(r"^input should be ", "wanted ", message.removeprefix("value error, "))
    message = _WORDED.get(kind, message).format_map(context)
    return source.problem(location, f"{name or 'the file'}: {message}, found {_found(found)}")


def _found(value: object) -> str:
    """A value as a sentence names it: short, and in the words of YAML."""
    if isinstance(value, dict | list):
        word = "mapping" if isinstance(value, dict) else "list"
        return f"a {word}" if value else f"an empty {word}"
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
