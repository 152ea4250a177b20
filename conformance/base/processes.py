"""Starts every program in a safe folder: the user's current one may be a stranger's download.

Python imports from its current folder. npm, cargo and uv are configured by files in it and above
it. The search for libraries uses it where a variable has an empty entry. So programs start in the
root folder, where nobody but the system's owner can put a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from conformance.base.interrupts import undisturbed

#: The folder in which programs start, unless they need another one.
START: Final = "/"

#: What every program gets, unless the user has set it: ONNX Runtime records nothing about the user.
_PRIVATE: Final = {"ORT_DISABLE_TELEMETRY": "1"}

#: Time between SIGTERM and SIGKILL, in seconds.
_GRACE: Final = 5.0

#: Variables with one path, and with several.
_FOLDERS: Final = ("TMPDIR", "TEMP", "TMP")
_PATHS: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def start(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start ``command``, whose paths are absolute.

    ``environment`` is added to that of this process. ``options`` are those of `subprocess.Popen`.
    Raises OSError.
    """
    return subprocess.Popen(command, env=_env(environment), cwd=folder or START, **options)


def ask(
    command: Sequence[str | Path], seconds: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run ``command`` to its end, without input.

    Raises OSError, and `subprocess.TimeoutExpired` after ``seconds``.
    """
    return subprocess.run(
        command, env=_env(None), cwd=START, input=b"", capture_output=True, timeout=seconds
    )


def run(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
) -> int:
    """Run ``command`` to its end and return its exit status; its output goes to stderr.

    An exception, such as an interrupt, ends the program and all programs that it started. Raises
    OSError.
    """
    process = None
    try:
        with undisturbed():  # or an interrupt while it starts would leave it running
            options = {"stdin": subprocess.DEVNULL, "stdout": 2, "start_new_session": True}
            process = start(command, environment, folder, **options)
        return process.wait()
    except BaseException:
        if process is None:
            raise
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):  # the group is empty
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
        raise


def use_absolute_paths() -> None:
    """Make the folder for temporary files absolute: Python keeps ``TMPDIR=.`` as it is."""
    with suppress(OSError):  # there is no current folder any more
        os.environ.update(_absolute(_FOLDERS))


def _env(more: Mapping[str, str] | None) -> dict[str, str]:
    return {**_PRIVATE, **os.environ, **_absolute(), **(more or {})}


def _absolute(names: Sequence[str] = (*_FOLDERS, *_PATHS)) -> dict[str, str]:
    """Environment variables with relative paths made absolute: they mean the same in any folder.

    An empty entry, usually an oversight, means the current folder.
    """
    made = {}
    for name in filter(os.environ.get, names):
        value = os.environ[name]
        paths = filter(None, value.split(os.pathsep)) if name in _PATHS else [value]
        made[name] = os.pathsep.join(
            path if os.path.isabs(path) else os.path.abspath(path) for path in paths
        )
    return made
