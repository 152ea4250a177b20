"""Edits the text of an expectations file, and leaves alone what it does not change.

Comments, order, quotes and line breaks stay as people wrote them: a range of versions is replaced
in its place, and new lines are put between the others. What comes out is read again and compared
with what was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from conformance.base.yaml_source import InputError, Source
from conformance.expectations.known import Known
from conformance.expectations.update import Update

_ITEMS: Final = "expectations"
#: Texts that need no quotes: a value, and a value in brackets or braces.
_PLAIN: Final = re.compile(r"[A-Za-z][\w /.+=\[,*\]-]*(?<! )")
_PLAIN_INSIDE: Final = re.compile(r"[A-Za-z][\w /.+-]*(?<! )")
_NO_TEXT: Final = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def edited(source: Source, update: Update) -> str:
    """The text of ``source`` with the changes of ``update``.

    Raises :class:`InputError` if a range cannot be replaced where it is. What else cannot be
    edited, as a list within brackets, comes out wrong: compare it with `Update.lines`.
    """
    if not (update.ranges or update.new):
        return source.text
    ending = "\r\n" if "\r\n" in source.text else "\n"
    lines = source.text.replace("\r\n", "\n").rstrip("\n").split("\n")
    items = source.data.get(_ITEMS) or []
    for place, versions in update.ranges.items():
        _replace_range(source, lines, place, items[place]["versions"], versions)
    if not items:  # it may be [], which no item can follow
        lines = [line for line in lines if not line.startswith(f"{_ITEMS}:")] + [f"{_ITEMS}:"]
    starts = [source.values[_ITEMS, place] for place in range(len(items))]
    indent = " " * (max(starts[0][1] - 3, 0) if starts else 2)
    inserted: dict[int, list[str]] = {}
    for place, known in update.new:
        block = [*_block(known, indent)]
        if place < len(items):
            at, block = _above(lines, starts[place][0] - 1), [*block, ""]
        else:
            at, block = _end(source, lines), ["", *block]
        inserted.setdefault(at, []).extend(block)
    for at, block in sorted(inserted.items(), reverse=True):
        lines[at:at] = block if items else block[1:]
    return ending.join([*lines, ""])


def _above(lines: list[str], at: int) -> int:
    """The place of an item, or of the comments directly above it."""
    while at > 0 and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _end(source: Source, lines: list[str]) -> int:
    """The place behind the last item: before blank lines and comments, the next key or the end."""
    first = source.keys.get((_ITEMS,), (len(lines), 1))[0]
    later = [line for key, (line, _) in source.keys.items() if len(key) == 1 and line > first]
    at = min(later, default=len(lines) + 1) - 1
    while at > first and (not lines[at - 1].strip() or lines[at - 1].startswith("#")):
        at -= 1
    return at


def _replace_range(source: Source, lines: list[str], place: int, old: str, new: str) -> None:
    """Replace the range of an item where it is. Raises :class:`InputError` if it cannot be."""
    at, column = source.values[_ITEMS, place, "versions"]
    line, start = lines[at - 1], column - 1
    for written in (f'"{old}"', f"'{old}'", old):
        if line.startswith(written, start):
            lines[at - 1] = f'{line[:start]}"{new}"{line[start + len(written) :]}'
            return
    sentence = f"the range of versions cannot be replaced here; write {new!r} by hand"
    raise InputError([source.problem((_ITEMS, place, "versions"), sentence)])


def _block(known: Known, indent: str) -> Iterator[str]:
    """The lines of a new item: its fields that are not as usual, as a person would write them."""
    lead = f"{indent}- "
    for name, value in known.model_dump(mode="json", exclude_defaults=True).items():
        if name in ("cases", "wrong", "varies") and len(value) == 1:
            value = value[0]
        elif name == "fault":
            value = value["kind"]  # no new line has another part
        if name == "cases" and isinstance(value, list):
            yield f"{lead}cases:"
            yield from (f"{indent}    - {_scalar(pattern, _PLAIN)}" for pattern in value)
        else:
            yield f"{lead}{name}: {_flow(value)}"
        lead = f"{indent}  "


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        fields = (f"{name}: {_scalar(each, _PLAIN_INSIDE)}" for name, each in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_scalar(each, _PLAIN_INSIDE) for each in value)}]"
    return _scalar(value, _PLAIN)


def _scalar(value: object, plain: re.Pattern[str]) -> str:
    """A value in quotes, if it needs them."""
    if isinstance(value, str) and plain.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
