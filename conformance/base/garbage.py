"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: So many new objects more than deleted ones start a search, where it is to be seldom.
_OBJECTS: Final = 50_000


@contextmanager
def uncollected() -> Iterator[None]:
    """Does not look for garbage meanwhile.

    For code that makes very many objects which stay: the search would visit all of them again and
    again, and find nothing.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def for_good() -> Iterator[None]:
    """As :func:`uncollected`, for objects that stay until the process ends.

    No later search visits them either: each would take a third of a second for the corpus.
    """
    with uncollected():
        yield
        gc.freeze()


def seldom() -> None:
    """Look for garbage seldom from now on: arrays and records are freed without a search.

    For a process that runs cases one after the other.
    """
    gc.set_threshold(_OBJECTS, 10, 10)
