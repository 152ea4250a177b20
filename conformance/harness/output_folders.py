"""The folders that runners write their outputs to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from conformance.harness.protocol import ProtocolError, RanAnswer, excerpt

#: Output files are kept in memory where so much of it is free.
ENOUGH_MEMORY_FOR_OUTPUTS: Final = 2 << 30


def files_of(answer: RanAnswer, out: str) -> tuple[tuple[dict[str, str], ...], ...]:
    """The paths of the files in ``answer``; `ProtocolError` if one is not a regular file."""
    try:
        with _listed(out) as (_, entries):
            plain = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except OSError as error:
        raise ProtocolError(f"the folder for its files can no longer be read: {error}") from None
    for run in answer.runs:
        for step in run:
            for output, name in step.items():
                if name not in plain:
                    there = os.path.lexists(f"{out}/{name}")
                    what = "is not a regular file" if there else "is not there"
                    raise ProtocolError(f"the file {name} of {excerpt(output)} {what}")
    return tuple(
        tuple({output: f"{out}/{name}" for output, name in step.items()} for step in run)
        for run in answer.runs
    )


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


def empty(folder: str) -> None:
    """Remove the files in ``folder``. `OSError` if it contains anything else."""
    with _listed(folder) as (descriptor, entries):
        for entry in entries:
            os.unlink(entry.name, dir_fd=descriptor)


@contextmanager
def _listed(folder: str) -> Iterator[tuple[int, Iterator[os.DirEntry[str]]]]:
    """``folder``, opened, and its entries. `OSError` if a runner has replaced it by a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            yield descriptor, entries
    finally:
        os.close(descriptor)


def remove(folder: str) -> None:
    """Remove ``folder`` and everything in it, whatever a runner has left there."""
    if os.path.islink(folder):
        os.unlink(folder)
        return
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(path, name)
            if not os.path.islink(inner):
                with suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
