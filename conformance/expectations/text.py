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
_PLAIN: Final = re.compile(r"[A-Za-z][\w /.+=\[,*\]-]*(?<! )")
_PLAIN_IN_BRACES: Final = re.compile(r"[A-Za-z][\w /.+-]*(?<! )")
_NO_TEXT: Final = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}

#: In this order, and `why` last, as people write them.
_FIELDS: Final = (
    "cases", "features", "versions", "adapters", "verdict", "stage", "message", "fault", "wrong",
    "placement", "varies", "rate", "link", "why",
)  # fmt: skip


def edited(source: Source, text: str, update: Update) -> str:
    """``text``, which was read as ``source``, with the changes of ``update``.

    Raises :class:`InputError` if a range cannot be replaced where it is. What else cannot be
    edited, as a list within brackets, comes out wrong: compare it with `new_items`.
    """
    if update.empty:
        return text
    lines = text.split("\n")
    ending = "\r" if text.count("\r\n") > text.count("\n") / 2 else ""
    items = (source.data or {}).get(_ITEMS) or []
    for place, versions in update.ranges.items():
        _replace_range(source, lines, place, items[place]["versions"], versions)
    if not items:
        _open_list(source, lines, ending)
    starts = [source.values[_ITEMS, place] for place in range(len(items))]
    indent = " " * (max(starts[0][1] - 3, 0) if starts else 2)
    inserted: dict[int, list[str]] = {}
    for place, known in update.new:
        block = [f"{line}{ending}" for line in _block(known, indent)]
        if place < len(items):
            at, block = _above(lines, starts[place][0] - 1), [*block, ending]
        else:
            at, block = _end(source, lines), [ending, *block]
        inserted.setdefault(at, []).extend(block)
    for at, block in sorted(inserted.items(), reverse=True):
        lines[at:at] = block if items else block[1:]
    made = "\n".join(lines)
    return made if made.endswith("\n") else f"{made}\n"


def new_items(source: Source, update: Update) -> list[Any]:
    """The data of the list as it must be after the changes."""
    items = [dict(item) for item in (source.data or {}).get(_ITEMS) or ()]
    for place, versions in update.ranges.items():
        items[place]["versions"] = versions
    made: list[Any] = []
    for place in range(len(items) + 1):
        made += [_data(known) for at, known in update.new if at == place]
        made += items[place : place + 1]
    return made


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


def _open_list(source: Source, lines: list[str], ending: str) -> None:
    """Make an empty list one that items can follow: ``expectations:`` without ``[]``."""
    if (_ITEMS,) in source.keys:
        at = source.keys[_ITEMS,][0] - 1
        lines[at] = re.sub(rf"^({_ITEMS}\s*:)\s*\[\s*\]", r"\1", lines[at])
        return
    while lines and not lines[-1].strip():
        lines.pop()
    lines += [f"{_ITEMS}:{ending}"]


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
    """The lines of a new item."""
    lead = f"{indent}- "
    for name, value in _data(known).items():
        if name == "cases" and isinstance(value, list):
            yield f"{lead}cases:"
            yield from (f"{indent}    - {_scalar(pattern, _PLAIN)}" for pattern in value)
        else:
            yield f"{lead}{name}: {_flow(value)}"
        lead = f"{indent}  "


def _data(known: Known) -> dict[str, Any]:
    """The fields of an expectation that are not as usual, as a person would write them."""
    dumped = known.model_dump(mode="json", exclude_defaults=True)
    for name in ("cases", "wrong", "varies"):
        if len(dumped.get(name, ())) == 1:
            (dumped[name],) = dumped[name]
    if list(dumped.get("fault", ())) == ["kind"]:
        dumped["fault"] = dumped["fault"]["kind"]
    return {name: dumped[name] for name in _FIELDS if name in dumped}


def _flow(value: Any, plain: re.Pattern[str] = _PLAIN) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        fields = (f"{name}: {_flow(each, _PLAIN_IN_BRACES)}" for name, each in value.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_flow(each, _PLAIN_IN_BRACES) for each in value)}]"
    return _scalar(value, plain)


def _scalar(value: object, plain: re.Pattern[str]) -> str:
    """A value in quotes, if it needs them."""
    if isinstance(value, str) and plain.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
