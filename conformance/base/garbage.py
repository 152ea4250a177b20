"""When Python looks for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
