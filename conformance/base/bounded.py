"""Runs library code that cannot be interrupted, on input that may keep it busy for hours."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from conformance.base import interrupts

#: The memory that the work may use in addition to that of this process, in bytes.
_MEMORY: Final = 4 << 30


def bounded(work: Callable[[], bytes], seconds: float) -> bytes:
    """Run ``work`` in a copy of this process for at most ``seconds``, and return its result.

    Raises ValueError: with the message of an exception in ``work``, or if it took too long, used
    too much memory, or ended its process. On systems where a process cannot be copied safely, it
    runs in this process.
    """
    if sys.platform != "linux":
        return work()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender), daemon=True)
    with receiver:
        with sender:
            process.start()
        try:
            if not receiver.poll(seconds):
                raise ValueError(f"it takes longer than {seconds:g} s")
            answer, error = receiver.recv()
        except EOFError:
            raise ValueError("the process in which it runs ended without an answer") from None
        finally:
            process.kill()
            process.join()
    if error:
        raise ValueError(error)
    return bytes(answer)


def _run(work: Callable[[], bytes], sender: Connection) -> None:
    interrupts.ignore()
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    try:
        answer = work(), ""
    except Exception as error:
        answer = b"", str(error).strip() or type(error).__name__
    with suppress(OSError):
        sender.send(answer)
