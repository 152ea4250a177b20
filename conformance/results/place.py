"""The file that a run writes its records to, so that no earlier results are lost.

``NAME`` is the file that the user names.

===========  =======================================================================================
NAME         From the first result of the run on, its records; without earlier results from the
             start.
NAME.new     Its records, as long as ``NAME`` has earlier results and the run has none.
NAME.old     The earlier results, from the first result of the run until its complete end. A run
             that does not come to it leaves them there. What is there already stays as it is: then
             they are in ``NAME.old2``, and so on.
NAME.resume  Of a run that goes on with the results in ``NAME``: a copy of these, until it is whole.
             Then it takes the place of ``NAME``.
===========  =======================================================================================

Whoever holds the exclusive lock of ``NAME`` (flock) is the only run that writes any of them.
Over NFS the lock is as good as the server's byte-range locks. On a file system without locks,
there is none.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
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
    it, and ``earlier`` is the file that holds the results that were in ``NAME``, if there is one.
    Once it is settled, ``kept`` has every file of results from before this run. Raises
    `ResultsError` where another run writes there, and where the file cannot be written. With
    ``resume`` the run goes on with the results in ``NAME``.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self._resume = resume
        self.named = self.path = path
        self.earlier: Path | None = None
        self.kept: list[Path] = []
        self._lock = self.descriptor = -1
        self._created = self._complete = self._direct = False
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
        new = self._beside(_RESUME if self._resume else ".new")
        self.descriptor = os.open(new, _FLAGS | os.O_NOFOLLOW, 0o666)
        if not _is_empty_or_of_a_run(self.descriptor):
            raise OSError(errno.EEXIST, f"{new} is there and is no results file", str(new))
        if not _lock(self.descriptor):
            raise _another_run(new)
        if not self._resume and _has_result(self.descriptor):
            raise OSError(errno.EEXIST, f"{new} has results; move it elsewhere first", str(new))
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
            raise _another_run(self.named)
        if not _is_at(self._lock, self.named):
            os.close(self._lock)
            return False
        self._created = not before
        return True

    def _beside(self, suffix: str) -> Path:
        return _beside(self.named, suffix)

    def goes_on(self) -> None:
        """The results in ``NAME`` are all in the file of this run, which takes its place.

        Raises :class:`OSError`.
        """
        if self.earlier is None:
            return
        os.fsync(self.descriptor)
        os.replace(self.path, os.path.realpath(self.named))
        self.path, self.earlier = self.named, None
        os.close(self._lock)
        self._lock = -1

    def has_result(self) -> None:
        """The run has a result now, so ``NAME`` becomes its file. Raises :class:`OSError`."""
        if self.earlier != self.named:
            return
        saved = _saved(self.named)
        os.replace(self.path, os.path.realpath(self.named))
        self.path, self.earlier = self.named, saved
        os.close(self._lock)
        self._lock = -1

    def complete(self) -> None:
        """Every case of the run has a record, so what was in ``NAME`` is no longer needed."""
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
        if self._complete and self.earlier is not None:
            with suppress(FileNotFoundError):
                os.unlink(self.earlier)
        self.kept = _olds(self.named)

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


_RESUME: Final = ".resume"
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


def _another_run(path: Path) -> ResultsError:
    return ResultsError(f"Another run is writing results to {path}; name another file.")


def places_beside(path: Path) -> list[Path]:
    """The files that a run with its results at ``path`` may also write."""
    return [_beside(path, ".new"), _beside(path, _RESUME), *_olds(path), _next_old(path)]


def _beside(path: Path, suffix: str) -> Path:
    return Path(f"{os.path.realpath(path) if path.is_symlink() else path}{suffix}")


def _olds(path: Path) -> list[Path]:
    """The files with results from before that are there, the oldest first."""
    old = _beside(path, ".old")
    pattern = re.compile(re.escape(old.name) + r"(\d*)")
    try:
        found = [match for name in os.listdir(old.parent) if (match := pattern.fullmatch(name))]
    except OSError:
        return []
    return [old.with_name(match[0]) for match in sorted(found, key=lambda m: int(m[1] or 1))]


def _next_old(path: Path) -> Path:
    """The first name for results from before that no file has."""
    old = _beside(path, ".old")
    names = (old if n == 1 else old.with_name(f"{old.name}{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def _has_result(descriptor: int) -> bool:
    """Whether a case was tried, in a file that `Writer` wrote."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(os.dup(descriptor), "rb") as file:
        found = any(
            line.startswith(b'{"kind":"result"') and b'"outcome":"unavailable"' not in line
            for line in file
        )
    os.lseek(descriptor, 0, os.SEEK_SET)
    return found


def _is_empty_or_of_a_run(descriptor: int) -> bool:
    """Whether a file may be overwritten: a killed run left it, before it had a result."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return False
    return os.pread(descriptor, len(_BEGINNING), 0) in (b"", _BEGINNING)


def _saved(path: Path) -> Path | None:
    """Make the file at ``path`` also that at a free name, which is returned.

    None if it has a name for results from before already. Raises :class:`OSError`.
    """
    place = os.path.realpath(path)
    if any(os.path.samefile(place, old) for old in _olds(path) if old.exists()):
        return None
    while True:
        name = _next_old(path)
        try:
            os.link(place, name)
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            os.rename(place, name)
        return name
