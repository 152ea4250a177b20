"""A JSON value in which equal parts stand once: the form of the data of the page.

``{"values": [...], "root": part}``: in an array or object of ``values``, and as ``root``, a string
is the place of a value, in base 36; all else stands for itself. A value comes after its parts.
``decoded`` in ``reports/page/elements.js`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class Place(str):
    """The place of a value that is encoded already."""


class Encoder:
    """Encodes the parts of a value as they come, so that the whole need not be in memory."""

    def __init__(self) -> None:
        self._values: list[object] = []
        self._places: dict[object, Place] = {}

    def add(self, value: object) -> Any:
        """The place of a text, an array or an object; any other value, and a place, as it is."""
        if isinstance(value, Place) or not isinstance(value, str | list | tuple | Mapping):
            return value
        if isinstance(value, str):
            return self._place(value, value)
        if isinstance(value, Mapping):
            fields = {name: self.add(part) for name, part in value.items()}
            return self._place((*fields, *map(_key, fields.values())), fields)
        parts = [self.add(part) for part in value]
        return self._place((None, *map(_key, parts)), parts)

    def _place(self, key: object, value: object) -> Place:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(_in_base_36(len(self._values)))
            self._values.append(value)
        return place

    def whole(self, value: object) -> dict[str, Any]:
        """The encoded value, which may contain places."""
        root = self.add(value)
        return {"values": self._values, "root": root}


def _key(part: object) -> object:
    """The same for parts that are written the same: 1, 1.0 and true are not."""
    return part if isinstance(part, str) else (type(part), repr(part))


def _in_base_36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
