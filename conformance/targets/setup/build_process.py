"""A program that builds or installs: how it is ended with all that it started, and quoted."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Final

#: How long it has to end when it is asked to, in seconds.
_GRACE: Final = 5.0

#: A longer line of its own, such as a whole call of a compiler, is shortened in its middle.
_LONGEST: Final = 240


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process, which leads a session of its own, and all in its group; kindly first."""
    try:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in its group
        os.killpg(process.pid, number)


def shortened(line: str) -> str:
    """``line``, without its middle where it is too long for a sentence."""
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"


def without_words(text: str, status: int) -> str:
    """Why it failed, where it did not say so: by its exit status and the last of all it wrote."""
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return shortened(said[-1]) if said else f"it ended with status {status} and said nothing"
