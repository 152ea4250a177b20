"""Keeps the last result of a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


def cache_last(make: Callable[[_Of], _Made]) -> Callable[[_Of], _Made]:
    """Wrap ``make`` so that it returns its last result while it is called with the same object.

    For objects that come one after another and cannot be keys of a dictionary. The result must not
    be changed.
    """
    last: list[tuple[_Of, _Made]] = []

    @wraps(make)
    def made(of: _Of) -> _Made:
        if not last or last[0][0] is not of:
            last[:] = [(of, make(of))]
        return last[0][1]

    return made
