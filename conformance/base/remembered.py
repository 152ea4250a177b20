"""Keeps the last results of a function."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar

_Of = TypeVar("_Of")
_Made = TypeVar("_Made")


#: The number of results that `cache_few` keeps.
_FEW: Final = 64


def cache_last(make: Callable[[_Of], _Made]) -> Callable[[_Of], _Made]:
    """Wrap ``make`` so that it returns its last result while it is called with the same object.

    For objects that come one after another and cannot be keys of a dictionary. The result must not
    be changed.
    """
    return _kept(make, 1)


def cache_few(make: Callable[[_Of], _Made]) -> Callable[[_Of], _Made]:
    """The same for a few objects, such as targets, that come again and again."""
    return _kept(make, _FEW)


def _kept(make: Callable[[_Of], _Made], most: int) -> Callable[[_Of], _Made]:
    last: dict[int, tuple[_Of, _Made]] = {}  # an object that is kept does not lose its id

    @wraps(make)
    def made(of: _Of) -> _Made:
        kept = last.get(id(of))
        if kept is None:
            if len(last) >= most:
                del last[next(iter(last))]
            kept = last[id(of)] = (of, make(of))
        return kept[1]

    return made
