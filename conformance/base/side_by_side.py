"""Work that is done side by side, in a process for each core, for what it leaves in the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from conformance.base import interrupts

_T = TypeVar("_T")


def side_by_side(work: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Do ``work`` for each of ``items``, in their order. What it returns and raises is dropped.

    ``work`` is a function of a module. Nothing is done where that is no faster or not safe: on one
    core, for one item, on other systems than Linux, and in a process with several threads, since a
    child could wait for the lock of a thread that it does not have.
    """
    processes = min(os.cpu_count() or 1, len(items))
    if processes < 2 or sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
        return
    import multiprocessing  # these take 20 ms, and most commands do not need them
    from concurrent.futures import ProcessPoolExecutor

    context = multiprocessing.get_context("fork")  # a new interpreter would take half a second
    with ProcessPoolExecutor(processes, context, initializer=interrupts.ignore) as pool:
        try:
            for _ in pool.map(partial(_done, work), items):
                pass
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _done(work: Callable[[_T], object], item: _T) -> None:
    with suppress(Exception):
        work(item)
