"""Work that is done side by side, in a process for each core, for what it leaves in the cache."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from conformance.base import interrupts

_T = TypeVar("_T")

#: A pipe holds so many numbers of two bytes at least.
_MOST_NUMBERS: Final = 1 << 11


def side_by_side(work: Callable[[_T], object], items: Sequence[_T]) -> None:
    """Do ``work`` for each of ``items``, in their order. What it returns and raises is dropped.

    It is not certain that all of it is done: a process that cannot be started, or dies, does
    nothing. Nothing is done where that is no faster or not safe: on one core, for one item, on
    other systems than Linux, and in a process with several threads, since a child could wait for
    the lock of a thread that it does not have.
    """
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) > 1:
        return
    processes = min(len(os.sched_getaffinity(0)), len(items))
    if processes < 2:
        return
    # Each child takes the number of its next part from this pipe, since items take from a
    # millisecond to seconds.
    parts = min(len(items), _MOST_NUMBERS)
    numbers, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(2, "little") for number in range(parts)))
    os.close(writer)
    parent, children = os.getpid(), list[int]()
    try:
        with suppress(OSError):  # there can be no more processes
            for _ in range(processes):
                with interrupts.undisturbed():  # else a child could go on as this process
                    child = os.fork()
                    if not child:
                        _end_after(work, (items[n::parts] for n in _taken(numbers)), parent)
                    children.append(child)
        while children:
            _wait_for(children[-1])
            children.pop()
    finally:
        os.close(numbers)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _wait_for(child)


def _wait_for(child: int) -> None:
    with suppress(ChildProcessError):  # it was waited for, or this process ignores SIGCHLD
        os.waitpid(child, 0)


def _taken(numbers: int) -> Iterator[int]:
    while number := os.read(numbers, 2):
        yield int.from_bytes(number, "little")


def _end_after(work: Callable[[_T], object], parts: Iterator[Sequence[_T]], parent: int) -> None:
    """Do ``work`` for the items of ``parts`` while the ``parent`` lives, and end this process."""
    with suppress(BaseException):
        interrupts.ignore()
        for part in parts:
            for item in part:
                if os.getppid() != parent:
                    os._exit(1)
                with suppress(Exception):
                    work(item)
    os._exit(0)
