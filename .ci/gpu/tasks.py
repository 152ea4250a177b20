"""Runs commands side by side, each with a time limit, and ends what does not end by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, Generic, TypeVar

#: Time for a command to write its end after an interrupt; then it is killed.
GRACE_SECONDS: Final = 8.0
#: Time for a killed command to be gone. One that waits for a driver may never be, and is left.
GONE_SECONDS: Final = 3.0

#: Ends the command that it turns into when the process that started it dies (Linux).
_WITH_US: Final = (
    "import ctypes, os, signal, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "if hasattr(libc, 'prctl'): libc.prctl(1, signal.SIGINT)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``stopped``: its time was over; ``said`` is its output."""

    status: int
    stopped: bool
    seconds: float
    said: str


@dataclass(frozen=True)
class Work(Generic[_T]):
    """A command, what it is ``about``, and when it has to end (`time.monotonic`)."""

    about: _T
    command: Sequence[str]
    until: float


class Started:
    """A command that runs."""

    def __init__(self, command: Sequence[str]) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._since = time.monotonic()
        self._interrupted: float | None = None
        # A session of its own: a Ctrl-C in the terminal comes to us alone, and we pass it on.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WITH_US, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def ended(self, until: float) -> Ended | None:
        """How it ended; None while it runs.

        After ``until`` it is interrupted, then killed, then given up.
        """
        status = self._process.poll()
        now = time.monotonic()
        if status is None:
            since = now - (self._interrupted or now)
            if self._interrupted is None and now >= until:
                self.interrupt()
            elif since >= GRACE_SECONDS:
                self.kill()
            if since < GRACE_SECONDS + GONE_SECONDS:
                return None
            status = -signal.SIGKILL
            self._output.write(f"\nProcess {self._process.pid} cannot be killed.\n".encode())
        self.kill()  # what it may have left behind in its session
        self._output.seek(0)
        said = self._output.read().decode(errors="replace")
        self._output.close()
        return Ended(status, self._interrupted is not None, now - self._since, said)

    def interrupt(self) -> None:
        self._interrupted = time.monotonic()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def run_all(
    draw: Callable[[], Work[_T] | None], workers: int, done: Callable[[_T, Ended], None]
) -> None:
    """Run what ``draw`` gives, ``workers`` at a time, until it gives None and nothing runs.

    ``done`` gets each that has ended. When an exception is raised, all that runs is ended first.
    """
    running: dict[Started, Work[_T]] = {}
    try:
        while True:
            while len(running) < workers and (work := draw()) is not None:
                running[Started(work.command)] = work
            if not running:
                return
            for started, work in list(running.items()):
                if (ended := started.ended(work.until)) is not None:
                    del running[started]
                    done(work.about, ended)
            time.sleep(0.05)
    finally:
        _end(running)


def run_one(command: Sequence[str], until: float) -> Ended:
    """Run a single command."""
    works = [Work(None, command, until)]
    found: list[Ended] = []
    run_all(lambda: works.pop() if works else None, 1, lambda _, ended: found.append(ended))
    return found[0]


def _end(running: Iterable[Started]) -> None:
    left = list(running)
    for started in left:
        started.interrupt()
    limit = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < limit:
        left = [started for started in left if started.ended(limit + 1) is None]
        time.sleep(0.05)
    for started in left:
        started.kill()
