"""Opens and replaces files that come from outside, without trusting what is at their path."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

#: ``errno`` of a file that is larger than its reader accepts.
TOO_LARGE: Final = errno.EFBIG


def open_plain(path: Path | str, *, follow_links: bool = True, dir_fd: int | None = None) -> int:
    """A descriptor for reading ``path``, which must be a regular file.

    Never blocks, as opening a FIFO would. Raises :class:`OSError`; ``strerror`` says what is wrong.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(
    path: Path | str, most_bytes: int, *, follow_links: bool = True, dir_fd: int | None = None
) -> bytes:
    """The content of the regular file ``path``. Raises :class:`OSError`, as `open_plain` does, and
    with ``errno`` `TOO_LARGE` for a file of more than ``most_bytes``."""
    with os.fdopen(open_plain(path, follow_links=follow_links, dir_fd=dir_fd), "rb") as file:
        # The size is not enough: a file can grow.
        content = b""
        if os.fstat(file.fileno()).st_size <= most_bytes:
            content = file.read(most_bytes + 1)
            if len(content) <= most_bytes:
                return content
    raise OSError(TOO_LARGE, f"larger than {most_bytes} bytes", str(path))


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` once it is complete; until then the old one stays.

    A link is followed, and the old file's permissions are kept. Raises :class:`OSError`: where
    writing failed, and for a ``path`` that is there and is not a regular file.
    """
    place = Path(os.path.realpath(path))
    mode = 0o666 & ~_umask()
    with suppress(FileNotFoundError):
        found = place.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        mode = stat.S_IMODE(found.st_mode)
    descriptor, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            os.fchmod(file.fileno(), mode)
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
