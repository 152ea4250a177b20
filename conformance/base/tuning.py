"""How a process of the suite uses the machine: threads, memory and garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache


@contextmanager
def one_thread() -> Iterator[None]:
    """Within this context, NumPy, if it is first imported here, uses one thread.

    The suite's processes already use all cores, and with several threads each thread waits busily
    for the others. Programs that are started later get the unchanged environment.
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
    """Collect garbage rarely from now on, in a process that makes very many objects which stay.

    Each collection would visit all of them again: reading 7,000 results takes 1.3 s instead of 3 s.
    Arrays and records are freed without a collection.
    """
    gc.set_threshold(50_000, 50, 100)


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage within this context, and never that of it: the process is about to end.

    For commands that use all that they make until their end, where collections and the last one
    take a third of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@cache
def reuse_memory() -> None:
    """Keep freed memory in this process for its next arrays. Does nothing without glibc.

    By default glibc returns every array of 128 kB to the system, which clears each page again for
    the next array: a quarter of the time in which reference values are computed.
    """
    import ctypes  # commands that compute nothing do without

    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt  # with glibc's numbers of parameters
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: so much freed memory stays with the process
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: larger blocks only are returned at once
