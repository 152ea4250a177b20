"""Ends a build or an installer with all its child processes, and shortens what it wrote."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Final

#: Time between SIGTERM and SIGKILL, in seconds.
_GRACE: Final = 5.0

#: Longer lines, such as a compiler's command line, are shortened in the middle.
_LONGEST: Final = 240


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
