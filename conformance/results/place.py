"""The file to which a run writes its results; earlier results survive until the run is complete.

If ``NAME``, the file that the user names, is new or empty, a run writes to it. Otherwise it writes
to ``NAME.part``, which replaces ``NAME`` once the run is complete, or once it contains everything
in ``NAME`` (``gqa run --resume``). A run that is stopped earlier leaves both files; the next run
into ``NAME`` starts a new ``NAME.part``.

A run locks the files that it writes (flock). On a file system without locks, nothing is locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from conformance.base.files import open_direct
from conformance.results.results_error import ResultsError, cause_of

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


class OutputFile:
    """The locked output file of a run; a context manager that closes and cleans up (`settle`).

    ``path`` is the file that is written, and ``descriptor`` is open for that. ``named`` is the file
    that the user named. ``tried`` says whether the run has a result yet. Raises `ResultsError` if
    another run writes to the file, or if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.named = self.path = path
        self.tried = self._created = False
        self._open_files: list[int] = []
        try:
            self.descriptor = self._open()
        except BaseException as error:
            self.settle()
            if not isinstance(error, OSError | ValueError):
                raise
            raise ResultsError(f"Cannot write results to {path}: {cause_of(error)}.") from None

    def _open(self) -> int:
        direct = open_direct(self.named)
        if direct is not None:
            self._open_files.append(direct)
            return direct
        self._created = not self.named.exists()
        descriptor = self._locked(self.named, 0)
        if os.fstat(descriptor).st_size:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            part = part_file(self.named)
            descriptor = self._locked(part, os.O_NOFOLLOW)
            self.path = part
            os.ftruncate(descriptor, 0)
            os.fchmod(descriptor, mode)
        return descriptor

    def _locked(self, path: Path, flags: int) -> int:
        """Open a file, and lock it if the file system has locks."""
        descriptor = os.open(path, _FLAGS | flags, 0o666)
        self._open_files.append(descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sentence = f"Another run is writing results to {self.named}; name another file."
            raise ResultsError(sentence) from None
        except OSError:
            pass  # the file system has no locks
        return descriptor

    def replace(self) -> None:
        """Replace ``NAME`` by the file of this run. Raises :class:`OSError`."""
        if self.path != self.named:
            os.fsync(self.descriptor)
            os.replace(self.path, os.path.realpath(self.named))
            self.path = self.named

    def settle(self) -> None:
        """Close the files; remove a ``NAME.part`` without results, and an empty new ``NAME``."""
        if self._open_files:
            empty = self._created and not os.fstat(self._open_files[0]).st_size
            if empty or (self.path != self.named and not self.tried):
                with suppress(OSError):
                    os.unlink(self.path)
        while self._open_files:
            os.close(self._open_files.pop())
        self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.settle()


def part_file(path: Path) -> Path:
    """``NAME.part``, to which a run writes if ``path`` has earlier results."""
    return Path(f"{os.path.realpath(path) if path.is_symlink() else path}.part")
