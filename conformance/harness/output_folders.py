"""The folders that runners write their outputs to."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from typing import Final

from conformance.base.files import TOO_LARGE, open_folder, read_plain
from conformance.harness.protocol import ProtocolError, RanAnswer, excerpt

#: Output files are kept in memory where so much of it is free.
ENOUGH_MEMORY_FOR_OUTPUTS: Final = 2 << 30


def contents_of(
    answer: RanAnswer, out: str, most_bytes: int
) -> tuple[tuple[dict[str, bytes], ...], ...]:
    """The contents of the files in ``answer``, each read once.

    Raises `ProtocolError` if one is not a regular file, and if they have more than ``most_bytes``
    together.
    """
    left = most_bytes
    try:
        folder = open_folder(out)
    except OSError as error:
        raise ProtocolError(f"the folder for its files can no longer be read: {error}") from None
    try:
        runs = []
        for run in answer.runs:
            steps = []
            for step in run:
                read = {}
                for output, name in step.items():
                    try:
                        content = read_plain(name, left, follow_links=False, dir_fd=folder)
                    except OSError as error:
                        what = f"the file {name} of {excerpt(output)}"
                        raise ProtocolError(_why_unread(error, what, most_bytes)) from None
                    left -= len(content)
                    read[output] = content
                steps.append(read)
            runs.append(tuple(steps))
        return tuple(runs)
    finally:
        os.close(folder)


def _why_unread(error: OSError, what: str, most_bytes: int) -> str:
    if error.errno == errno.ENOENT:
        return f"{what} is not there"
    if error.errno == TOO_LARGE:
        return f"the output files have more than {most_bytes} bytes, which this case never needs"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE):
        return f"{what} cannot be read: {error.strerror}"
    return f"{what} is not a regular file"  # a link, a FIFO, a socket, a folder, a device


def place_for_outputs() -> str:
    """The folder in which output files are written.

    In memory if there is room and TMPDIR is not set: a case writes and removes a few small files,
    which on a disk takes as long as everything else that the harness does for it.
    """
    in_memory = "/dev/shm"
    if not os.environ.get("TMPDIR") and os.access(in_memory, os.W_OK | os.X_OK):
        room = os.statvfs(in_memory)
        if room.f_bavail * room.f_frsize >= ENOUGH_MEMORY_FOR_OUTPUTS:
            return in_memory
    return tempfile.gettempdir()


def remove(folder: str) -> None:
    """Remove ``folder`` and everything in it, whatever a runner has left there."""
    try:
        shutil.rmtree(folder)
    except OSError:  # a runner has replaced it by a file, or has locked a folder in it
        with suppress(OSError):
            os.unlink(folder)
        for path, folders, _ in os.walk(folder):
            for name in folders:
                inner = os.path.join(path, name)
                if not os.path.islink(inner):
                    with suppress(OSError):
                        os.chmod(inner, 0o700)
        shutil.rmtree(folder, ignore_errors=True)
