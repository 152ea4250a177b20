"""Remembers what was made last."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import numpy as np

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


def of_the_last(make: Callable[[_Of], _Made]) -> Callable[[_Of], _Made]:
    """``make``, but what it made of an object is returned again while the same one is asked for.

    For objects that follow each other and cannot be keys of a dictionary. Nobody may change what
    was made.
    """
    last: list[tuple[_Of, _Made]] = []

    @wraps(make)
    def made(of: _Of) -> _Made:
        if not last or last[0][0] is not of:
            last[:] = [(of, make(of))]
        return last[0][1]

    return made


class LastArrays:
    """The arrays that were made last, as far as they fit into ``most_bytes``. Nobody may change
    them."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._arrays: dict[object, np.ndarray] = {}

    def of(self, key: object, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The array of a key, which is made unless it is there."""
        found = self._arrays.pop(key, None)
        if found is None:
            found = np.asarray(make())
            found.flags.writeable = False
            self._left -= found.nbytes
        self._arrays[key] = found  # the last one
        while self._left < 0:
            self._left += self._arrays.pop(next(iter(self._arrays))).nbytes
        return found
