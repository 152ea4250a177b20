"""Edits the text of an expectations file, and leaves alone what it does not change.

Comments, order, quotes and line breaks stay as people wrote them: a range of versions is replaced
in its place, and new lines are put between the others. What comes out is read again and compared
with what was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from conformance.base.yaml_source import InputError, Problem, Source
from conformance.judge.expectations import Known
from conformance.maintain.known.update import Update

#: The text of a new file.
HEAD: Final = "target: {target}\nexpectations: []\n"

_ITEMS: Final = "expectations"
#: A value on one line, as it begins: in double quotes, in single ones, or plain in a list of lines
#: or within braces.
_DOUBLE: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SINGLE: Final = re.compile(r"'(?:[^']|'')*'")
_PLAIN: Final = re.compile(r"[^\s#](?:[^\s#]|(?<=\S)#| (?!#))*")
_PLAIN_IN_BRACES: Final = re.compile(r"[^\s#,{}\[\]][^#,{}\[\]]*")

#: In this order, and `why` last, as people write them.
_FIELDS: Final = (
    "cases", "features", "versions", "adapters", "verdict", "stage", "message", "fault", "wrong",
    "placement", "varies", "may_crash", "flaky", "link", "why",
)  # fmt: skip


def edited(source: Source, text: str, update: Update) -> str:
    """``text``, which was read as ``source``, with the changes of ``update``.

    Raises :class:`InputError` if the list of expectations is written within brackets, or a range
    cannot be replaced where it is.
    """
    if update.empty:
        return text
    lines = text.split("\n")
    places = _starts(source)
    ending = "\r" if text.count("\r\n") > text.count("\n") / 2 else ""
    inserted: dict[int, list[str]] = {}
    for place, known in update.new:
        block = [f"{line}{ending}" for line in _block(known, _indent(source, places))]
        at = _above(lines, places[place] - 1) if place < len(places) else _end(source, lines)
        inserted.setdefault(at, []).extend(
            [f"{ending}", *block] if place == len(places) else [*block, f"{ending}"]
        )
    for place, versions in update.ranges.items():
        _replace_range(source, lines, place, versions)
    if not places:
        _open_list(source, lines, ending)
        for block in inserted.values():
            del block[0]  # the blank line between items
    for at in sorted(inserted, reverse=True):
        lines[at:at] = inserted[at]
    made = "\n".join(lines)
    return made if made.endswith("\n") else f"{made}\n"


def new_items(source: Source | None, update: Update) -> list[Any]:
    """The data of the list as it must be after the changes; ``source``: None for a new file."""
    items = [dict(item) for item in (source.data.get(_ITEMS) if source else None) or ()]
    for place, versions in update.ranges.items():
        items[place]["versions"] = versions
    made: list[Any] = []
    for place in range(len(items) + 1):
        made += [_data(known) for at, known in update.new if at == place]
        made += items[place : place + 1]
    return made


def _starts(source: Source) -> list[int]:
    """The line of the file in which each item starts, from 1."""
    number = len((source.data or {}).get(_ITEMS) or ())
    return [source.values[(_ITEMS, place)][0] for place in range(number)]


def _indent(source: Source, places: Sequence[int]) -> str:
    """What the items are indented by."""
    if not places:
        return "  "
    column = source.values[(_ITEMS, 0)][1]
    return " " * max(column - 3, 0)


def _above(lines: Sequence[str], at: int) -> int:
    """The place of an item, or of the comments directly above it."""
    while at > 0 and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _end(source: Source, lines: Sequence[str]) -> int:
    """The place behind the last item: before blank lines and comments, the next key or the end."""
    first = source.keys.get((_ITEMS,), (len(lines), 1))[0]
    later = [line for key, (line, _) in source.keys.items() if len(key) == 1 and line > first]
    at = min(later, default=len(lines) + 1) - 1
    while at > first and (not lines[at - 1].strip() or lines[at - 1].startswith("#")):
        at -= 1
    return at


def _open_list(source: Source, lines: list[str], ending: str) -> None:
    """Make an empty list one that items can follow: ``expectations:`` without ``[]``."""
    if (_ITEMS,) not in source.keys:
        while lines and not lines[-1].strip():
            lines.pop()
        lines += [f"{_ITEMS}:{ending}"]
        return
    at = source.keys[(_ITEMS,)][0] - 1
    lines[at] = re.sub(rf"^({_ITEMS}\s*:)\s*\[\s*\]", r"\1", lines[at])


def _replace_range(source: Source, lines: list[str], place: int, versions: str) -> None:
    """Replace the range of an item where it is. Raises :class:`InputError` if it cannot be."""
    at, column = source.values[(_ITEMS, place, "versions")]
    line = lines[at - 1]
    start = column - 1
    row, key = source.keys[(_ITEMS, place, "versions")]
    braces = "{" in lines[row - 1][: key - 1]
    form = {'"': _DOUBLE, "'": _SINGLE}.get(line[start], _PLAIN_IN_BRACES if braces else _PLAIN)
    found = form.match(line, start)
    if found is None or row != at:
        sentence = f"the range of versions cannot be replaced here; write {versions!r} by hand"
        raise InputError([Problem(source.file, at, column, sentence)])
    lines[at - 1] = f'{line[:start]}"{versions}"{line[start:][len(found[0].rstrip()) :]}'


def _block(known: Known, indent: str) -> Iterator[str]:
    """The lines of a new item."""
    data = _data(known)
    for number, (name, value) in enumerate(data.items()):
        lead = f"{indent}{'- ' if number == 0 else '  '}"
        if name == "cases" and isinstance(value, list):
            yield f"{lead}cases:"
            yield from (f"{indent}    - {_scalar(pattern)}" for pattern in value)
        elif isinstance(value, (dict, list)):
            yield f"{lead}{name}: {_flow(value)}"
        else:
            yield f"{lead}{name}: {_scalar(value)}"


def _data(known: Known) -> dict[str, Any]:
    """The fields of an expectation that are not as usual, as a person would write them."""
    dumped = known.model_dump(mode="json", exclude_defaults=True)
    made: dict[str, Any] = {}
    for name in _FIELDS:
        if name not in dumped:
            continue
        value = dumped[name]
        if name in ("cases", "wrong") and len(value) == 1:
            value = value[0]
        if name == "fault" and list(value) == ["kind"]:
            value = value["kind"]
        made[name] = value
    return made


def _flow(value: Mapping[str, Any] | Sequence[Any]) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value, inside=True)


def _scalar(value: object, *, inside: bool = False) -> str:
    """A value on one line, in quotes only if it needs them."""
    if isinstance(value, (bool, int)):
        return str(value).lower()
    text = str(value)
    plain = re.fullmatch(r"[A-Za-z][\w /.+-]*" if inside else r"[A-Za-z][\w /.+=\[,*\]-]*", text)
    words = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
    if plain and text.lower() not in words and text == text.strip():
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'
