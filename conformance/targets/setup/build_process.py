"""Runs an installer, ends it with all its child processes, and shortens what it wrote."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from conformance.base.processes import start

#: Time between SIGTERM and SIGKILL, in seconds.
_GRACE: Final = 5.0

#: Time between two reports of progress while a program prints nothing, in seconds.
_LOOK: Final = 0.5

#: Longer lines, such as a compiler's command line, are shortened in the middle.
_LONGEST: Final = 240


def run_logged(
    command: tuple[str, ...],
    folder: Path | None,
    log: Path,
    environment: Mapping[str, str],
    watch: Callable[[bytes, float], None],
) -> tuple[int, bytes]:
    """Run ``command`` to its end, in ``folder`` if it needs one; its exit status and its output.

    The output is added to ``log``, on a full disk as much as there is room for. ``watch`` is called
    about twice a second with the output so far and the seconds since the start. Raises OSError if
    the command does not start. An exception, such as an interrupt, also ends the command.
    """
    with log.open("ab", buffering=0) as file:
        process = start(
            command,
            environment,
            folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said = _follow(process, file.write, watch)
            return process.wait(), said
        except BaseException:
            end(process)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()


def _follow(
    process: subprocess.Popen[bytes],
    keep: Callable[[bytes], object],
    watch: Callable[[bytes, float], None],
) -> bytes:
    """Everything that the process writes."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    started = time.monotonic()
    said = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], _LOOK)
        watch(said, time.monotonic() - started)
        if ready:
            piece = os.read(pipe, 1 << 16)
            if not piece:
                return said
            said += piece
            with suppress(OSError):
                keep(piece)
        elif process.poll() is not None:
            return said


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process, which leads a session, and its group: SIGTERM first, then SIGKILL."""
    try:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(process.pid, number)


def shortened(line: str) -> str:
    """``line``, without its middle if it is too long for a message."""
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def without_words(text: str, status: int) -> str:
    """Why a program failed that printed no error: its last line, or its exit status."""
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return shortened(said[-1]) if said else f"it ended with status {status} and said nothing"
