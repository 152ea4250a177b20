"""The folders in which runners find the files of a case and write their outputs.

The process that owns a folder locks it (`flock`); the system removes the lock however the process
ends. Each process first removes the folders that no process has locked. A lock, unlike a process id
in a file, also works across containers that share the place, and never belongs to another process.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from conformance.base.files import TOO_LARGE, open_folder, read_plain
from conformance.base.interrupts import undisturbed
from conformance.base.text import exact_line
from conformance.harness.protocol import ProtocolError, RanAnswer

#: The free memory, in bytes, from which on files are kept in memory.
ENOUGH_MEMORY: Final = 2 << 30


def contents_of(
    answer: RanAnswer, out: str, limit: int
) -> tuple[tuple[dict[str, bytes], ...], ...]:
    """The contents of the files in ``answer``, each read once; none for a step that was rejected.

    Raises `ProtocolError` if one is not a regular file, or if together they have more than
    ``limit`` bytes.
    """
    left = limit
    if os.path.islink(out):
        raise ProtocolError("the folder for its files has become a link")

    def content(output: str, name: str) -> bytes:
        nonlocal left
        try:
            read = read_plain(f"{out}/{name}", left, follow_links=False)
        except OSError as error:
            what = f"the file {name} of {exact_line(output)} cannot be read: {error.strerror}"
            if error.errno == TOO_LARGE:
                what = f"the output files have more than {limit} bytes, which this case never needs"
            raise ProtocolError(what) from None
        left -= len(read)
        return read

    return tuple(
        tuple(
            {}
            if isinstance(step, str)
            else {output: content(output, name) for output, name in step.items()}
            for step in run
        )
        for run in answer.runs
    )


def place_for_files() -> str:
    """The folder in which the files of cases are.

    It is in memory if there is room and TMPDIR is not set: a case writes and removes a few small
    files, which on a disk takes as long as everything else that the harness does for it.
    """
    in_memory = "/dev/shm"
    if not os.environ.get("TMPDIR") and os.access(in_memory, os.W_OK | os.X_OK):
        room = os.statvfs(in_memory)
        if room.f_bavail * room.f_frsize >= ENOUGH_MEMORY:
            return in_memory
    return tempfile.gettempdir()


def remove(folder: str) -> None:
    """Remove ``folder`` and its content, even if a runner has left links or read-only folders."""
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


_NAME: Final = re.compile(r"gqa-files-[0-9a-f]{32}")


class OwnedFolder:
    """A new folder in ``place`` that only this process uses; `make` creates it."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock: int | None = None
        self.path = ""

    def make(self) -> None:
        """Make the folder. Raises `OSError`.

        This object can remove the folder even if an interrupt comes during this method.
        """
        remove_abandoned(self._place)
        while True:
            self.path = f"{self._place}/gqa-files-{uuid.uuid4().hex}"
            os.mkdir(self.path, 0o700)
            try:
                self._lock = _locked(self.path)
            except (BlockingIOError, FileNotFoundError):
                continue  # another process removes that one at this moment
            except OSError:
                pass  # a file system without locks: there nobody can remove it
            return

    def remove(self) -> None:
        """Remove the folder and everything in it, if it exists."""
        remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[Path]:
    """A new folder, removed in the end; that of a killed process, by the next process that has one.

    It is in ``place``, by default the system's folder for temporary files. Raises `OSError`.
    """
    folder = OwnedFolder(str(place or tempfile.gettempdir()))
    try:
        folder.make()
        yield Path(folder.path)
    finally:
        with undisturbed():
            folder.remove()


@lru_cache(maxsize=16)
def remove_abandoned(place: str) -> None:
    """Remove this user's folders in ``place`` that no process owns; once for each process."""
    with suppress(OSError):
        for name in filter(_NAME.fullmatch, os.listdir(place)):
            with suppress(OSError):
                lock = _locked(f"{place}/{name}")
                remove(f"{place}/{name}")
                os.close(lock)


def _locked(folder: str) -> int:
    """A descriptor that locks ``folder``.

    Raises `OSError`: `BlockingIOError` if another process owns the folder, `FileNotFoundError` if
    it does not exist any more or belongs to another user.
    """
    descriptor = open_folder(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened = os.fstat(descriptor)
        if opened.st_uid != os.geteuid() or not os.path.samestat(opened, os.lstat(folder)):
            raise FileNotFoundError
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
