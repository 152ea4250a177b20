"""The file that a run writes its records to, so that no earlier results are lost.

``NAME`` is the file that the user names.

========  ==========================================================================================
NAME      From the first result of the run on, its records; without earlier results from the start.
NAME.new  Its records, as long as ``NAME`` has earlier results and the run has none.
NAME.old  The earlier results, from the first result of the run until its complete end. A run that
          is stopped or killed leaves it. One that is there already stays as it is.
========  ==========================================================================================

Whoever holds the exclusive lock of ``NAME`` (flock) is the only run that writes any of the three.
Over NFS the lock is as good as the server's byte-range locks. On a file system without locks,
there is none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from conformance.base.files import open_direct
from conformance.results.errors import ResultsError, cause_of

#: Every results file begins with this, see `Header`.
_BEGINNING: Final = b'{"kind":"header"'
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Place:
    """The locked place of a run's records; a context manager that settles what remains there.

    ``path`` is the file that has the records of this run now, ``descriptor`` is open for writing
    it, and ``earlier`` is the file that holds earlier results, if there is one. Raises
    `ResultsError` where another run writes there, and where the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.named = self.path = path
        self.earlier: Path | None = None
        self._lock = self.descriptor = -1
        self._created = self._saved = self._complete = self._direct = False
        try:
            self._open()
        except (OSError, ValueError) as error:
            self._release()
            raise ResultsError(f"Cannot write results to {path}: {cause_of(error)}.") from None
        except BaseException:
            self._release()
            raise

    def _open(self) -> None:
        direct = open_direct(self.named)
        if direct is not None:
            self.descriptor, self._direct = direct, True
            return
        while not self._locked():
            pass  # another run has just replaced the file
        if not os.fstat(self._lock).st_size:
            self.descriptor, self._lock = self._lock, -1
            return
        new = self._beside(".new")
        self.descriptor = os.open(new, _FLAGS | os.O_NOFOLLOW, 0o666)
        if not _is_empty_or_of_a_run(self.descriptor):
            raise OSError(errno.EEXIST, f"{new} is there and is no results file", str(new))
        _lock(self.descriptor)
        os.ftruncate(self.descriptor, 0)
        os.fchmod(self.descriptor, stat.S_IMODE(os.fstat(self._lock).st_mode))
        self.path, self.earlier = new, self.named

    def _locked(self) -> bool:
        """Open and lock ``NAME``; whether it is still that file."""
        before = self.named.exists()
        self._lock = os.open(self.named, _FLAGS, 0o666)
        if not stat.S_ISREG(os.fstat(self._lock).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(self.named))
        if not _lock(self._lock):
            raise ResultsError(
                f"Another run is writing results to {self.named}; name another file."
            )
        if not _is_at(self._lock, self.named):
            os.close(self._lock)
            return False
        self._created = not before
        return True

    def _beside(self, suffix: str) -> Path:
        place = os.path.realpath(self.named)
        return Path(place + suffix) if self.named.is_symlink() else Path(f"{self.named}{suffix}")

    def has_result(self) -> None:
        """The run has a result now, so ``NAME`` becomes its file. Raises :class:`OSError`."""
        if self.earlier != self.named:
            return
        old = self._beside(".old")
        with suppress(FileNotFoundError):  # somebody removed NAME
            self._saved = _also_at(self.named, old)
        os.replace(self.path, os.path.realpath(self.named))
        self.path, self.earlier = self.named, old
        os.close(self._lock)
        self._lock = -1

    def secure(self) -> None:
        """Write the records to a file anew if somebody removed or replaced theirs.

        It is called once, after the last record. Raises :class:`OSError`.
        """
        if self._direct or _is_at(self.descriptor, self.path):
            return
        for path in (self.named, self._beside(".new")):
            with suppress(FileExistsError), path.open("xb") as file:
                os.lseek(self.descriptor, 0, os.SEEK_SET)
                with os.fdopen(os.dup(self.descriptor), "rb") as records:
                    shutil.copyfileobj(records, file)
                self.path = path
                return
        raise OSError(errno.EEXIST, "another program replaced the file")

    def complete(self) -> None:
        """The run has come to its end, so earlier results are no longer needed."""
        self._complete = True

    def settle(self) -> None:
        """Remove what is no longer needed, and release the lock. Raises `ResultsError`."""
        if self.descriptor < 0:
            return
        try:
            if not self._direct:
                self._settle()
        except OSError as error:
            raise ResultsError(
                f"Cannot keep the results in {self.path}: {cause_of(error)}."
            ) from None
        finally:
            self._release()

    def _settle(self) -> None:
        empty = not os.fstat(self.descriptor).st_size
        if self.earlier == self.named or (self._created and empty):
            # No result, and earlier ones in NAME; or nothing at all.
            if _is_at(self.descriptor, self.path):
                os.unlink(self.path)
            return
        old = self._beside(".old")
        if self._complete and self._saved:
            with suppress(FileNotFoundError):
                os.unlink(old)
        self.earlier = old if old.exists() else None

    def _release(self) -> None:
        for descriptor in (self.descriptor, self._lock):
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        self.descriptor = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.settle()
        except ResultsError:
            if error is None:
                raise


_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


def _lock(descriptor: int) -> bool:
    """Whether no other run has the file's lock; it is taken where the file system has locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _is_empty_or_of_a_run(descriptor: int) -> bool:
    """Whether a file may be overwritten: a killed run left it, before it had a result."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    return os.pread(descriptor, len(_BEGINNING), 0) in (b"", _BEGINNING)


def _also_at(path: Path, other: Path) -> bool:
    """Make the file at ``path`` also that at ``other``; False if ``other`` is there already."""
    try:
        os.link(os.path.realpath(path), other)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        if other.exists():
            return False
        os.rename(os.path.realpath(path), other)
    return True
