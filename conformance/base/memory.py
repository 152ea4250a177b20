"""How freed memory is used again."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache


@cache
def reuse_memory() -> None:
    """Keep freed memory in this process for its next arrays. Does nothing without glibc.

    By default glibc returns every array of 128 kB to the system, which clears each page anew for
    the next one: a quarter of the time in which reference values are computed.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt  # with glibc's numbers of parameters
        mallopt(-1, 256 << 20)  # M_TRIM_THRESHOLD: so much freed memory stays with the process
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: larger blocks only are returned at once
