"""Remembers what was made last."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


def of_the_last(make: Callable[[_Of], _Made]) -> Callable[[_Of], _Made]:
    """Wrap ``make`` to return the same result again while it is asked for the same object.

    For objects that follow each other and cannot be keys of a dictionary. Nobody may change the
    result.
    """
    last: list[tuple[_Of, _Made]] = []

    @wraps(make)
    def made(of: _Of) -> _Made:
        if not last or last[0][0] is not of:
            last[:] = [(of, make(of))]
        return last[0][1]

    return made
