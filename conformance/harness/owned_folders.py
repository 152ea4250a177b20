"""Folders in a shared place that are removed even if the process that made them was killed.

A folder is locked (`flock`) by the process that owns it, which the system undoes however the
process ends. Each process first removes the folders that nobody has locked. A lock, unlike a
process id in a file, holds across containers that share the place, and is never another process's.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from contextlib import suppress
from functools import lru_cache
from typing import Final

from conformance.base.files import open_folder
from conformance.harness.output_folders import remove

_NAME: Final = re.compile(r"gqa-files-[0-9a-f]{32}")


class OwnedFolder:
    """A new folder in ``place``, for this process alone, once it is made."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock: int | None = None
        self._name()

    def _name(self) -> None:
        self.path = f"{self._place}/gqa-files-{uuid.uuid4().hex}"

    def make(self) -> None:
        """Make the folder. Raises `OSError`.

        Whoever owns this object can remove the folder, even if an interrupt comes in here.
        """
        remove_abandoned(self._place)
        while True:
            os.mkdir(self.path, 0o700)
            try:
                self._lock = _locked(self.path)
            except (BlockingIOError, FileNotFoundError):
                self._name()  # another process removes that one at this moment
                continue
            except OSError:
                pass  # a file system without locks: there nobody can remove it
            return

    def remove(self) -> None:
        """Remove the folder and everything in it, if there is one."""
        remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


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
    """A descriptor that locks ``folder``. Raises `OSError`: `BlockingIOError` if another process
    owns it, `FileNotFoundError` if it is gone or not this user's."""
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
