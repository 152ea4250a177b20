"""How a process of the suite uses the machine: its threads, its memory, its search for garbage."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


@contextmanager
def one_thread() -> Iterator[None]:
    """NumPy, if it is first imported now, uses one thread: processes fill the cores.

    With several, each of them waits busily for the others. What is started later has the
    environment as it was.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]


def collect_seldom() -> None:
    """Look for garbage seldom from now on, in a process that makes very many objects which stay.

    A search would visit all of them again and again: reading 7,000 results takes 1.3 s instead of
    3 s. Arrays and records are freed without one.
    """
    gc.set_threshold(50_000, 50, 100)


@cache
def reuse_memory() -> None:
    """Keep freed memory in this process for its next arrays. Does nothing without glibc.

    By default glibc returns every array of 128 kB to the system, which clears each page again for
    the next one: a quarter of the time in which reference values are computed.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt  # with glibc's numbers of parameters
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: so much freed memory stays with the process
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: larger blocks only are returned at once
