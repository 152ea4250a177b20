"""Ctrl-C, SIGTERM and a closed terminal end a command once, and in an orderly way."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

#: The exit status of an interrupted command.
INTERRUPTED: Final = 130

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that a command has to end after the first signal. During this time further signals are
#: ignored; after it, a signal ends the process at once.
GRACE_SECONDS: Final = 5.0
#: Seconds after which an interrupt is raised again if Python could not raise it at first.
_AGAIN_SECONDS: Final = 0.02


class _State:
    """The time of the first signal, whether interrupts are held back, and whether one came."""

    first: float | None = None
    held = False
    pending = False


def install() -> None:
    """From now on the first signal raises `KeyboardInterrupt`.

    Signals that are ignored, as under nohup, stay ignored.
    """
    _State.first, _State.held, _State.pending = None, False, False

    def react(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if _State.first is None:
            _State.first = now
            interrupt()
        elif now - _State.first > GRACE_SECONDS:
            os._exit(INTERRUPTED)

    def unraisable(args: UnraisableHookArgs, /) -> None:
        # It came in a destructor or a callback, where Python prints and forgets exceptions.
        if args.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            sys.__unraisablehook__(args)

    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, react)
    signal.signal(signal.SIGALRM, lambda number, frame: interrupt())
    sys.unraisablehook = unraisable


def interrupt() -> None:
    """Raise `KeyboardInterrupt`, now or at the end of the block of `undisturbed`."""
    if _State.held:
        _State.pending = True
    else:
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignore signals from now on: the process is about to exit, and has nothing left to do."""
    for number in (*_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    # Where an interrupt came within `exec`, as imports of dataclasses call it, Python would end
    # itself by SIGINT, handled or not. The next `exec` makes it forget that.
    exec("")


def happened() -> bool:
    """Whether there was a signal."""
    return _State.first is not None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold an interrupt back until the end of the block.

    Blocking the signals would not do that: a thread that a library started can receive them.
    """
    outer, _State.held = _State.held, True
    try:
        yield
    finally:
        _State.held = outer
        if _State.pending and not outer:
            _State.pending = False
            raise KeyboardInterrupt
