"""A JSON value in which equal parts stand once: the form of the data of the page.

``{"values": [...], "root": part}``: in an array or object of ``values``, and as ``root``, a string
is the place of a value, in base 36; all else stands for itself. A value comes after its parts.
``decoded`` in ``reports/page/elements.js`` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, product
from typing import Any, Final, cast


class EncodedPlace(str):
    """The place of a value that is encoded already."""


class Repeated:
    """A value of which many others are parts; it is encoded once."""

    __slots__ = ("place", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        self.place: EncodedPlace | None = None


#: Types of what stands for itself: numbers, true, false and null, and a place.
_AS_IT_IS: Final = frozenset({EncodedPlace, int, float, bool, type(None)})


class Encoder:
    """Encodes the parts of a value as they come, so that the whole need not be in memory."""

    def __init__(self) -> None:
        self._values: list[object] = []
        self._places: dict[object, EncodedPlace] = {}
        self._new_places = _base_36()

    def add(self, value: object) -> Any:
        """The place of a text, an array or an object; any other value, and a place, as it is."""
        if type(value) in _AS_IT_IS:
            return value
        if isinstance(value, str):
            return self._place(value, value)
        if isinstance(value, Repeated):
            if value.place is None:
                value.place = self.add(value.value)
            return value.place
        if isinstance(value, dict):
            parts = self._parts(value.values())
            return self._place((*value, *_keys(parts)), dict(zip(value, parts, strict=True)))
        parts = self._parts(cast(Iterable[object], value))
        return self._place((None, *_keys(parts)), parts)

    def _parts(self, values: Iterable[object]) -> list[object]:
        known = self._places
        return [
            part
            if type(part) in _AS_IT_IS
            else (type(part) is str and known.get(part)) or self.add(part)
            for part in values
        ]

    def _place(self, key: object, value: object) -> EncodedPlace:
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = EncodedPlace(next(self._new_places))
            self._values.append(value)
        return place

    def whole(self, value: object) -> dict[str, Any]:
        """The encoded value, which may contain places."""
        root = self.add(value)
        return {"values": self._values, "root": root}


def _keys(parts: Iterable[object]) -> list[object]:
    """The same for parts that are written the same: 1, 1.0 and true are not."""
    return [part if type(part) is EncodedPlace else (type(part), repr(part)) for part in parts]


def _base_36() -> Iterator[str]:
    """The numbers from 0 on, in base 36."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    yield "0"
    for length in count(1):
        yield from map("".join, product(digits[1:], *[digits] * (length - 1)))
