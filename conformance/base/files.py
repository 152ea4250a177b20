"""Opens and replaces files that come from outside, without trusting what is at their path."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

#: ``errno`` of a file that is larger than its reader accepts.
TOO_LARGE: Final = errno.EFBIG


def open_plain(path: Path | str, *, follow_links: bool = True) -> int:
    """A descriptor for reading ``path``, which must be a regular file.

    Never blocks, as opening a FIFO would. Raises :class:`OSError`; ``strerror`` says what is wrong.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:  # of Python: there is a NUL in it, or a lone surrogate
        raise OSError(errno.EINVAL, "no path that a file can have", str(path)) from None
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


def open_folder(path: Path | str) -> int:
    """A descriptor of the folder ``path``, which must not be a link. Raises :class:`OSError`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def read_plain(path: Path | str, most_bytes: int, *, follow_links: bool = True) -> bytes:
    """The content of the regular file ``path``. Raises :class:`OSError`, as `open_plain` does, and
    with ``errno`` `TOO_LARGE` for a file of more than ``most_bytes``.
    """
    descriptor = open_plain(path, follow_links=follow_links)
    with os.fdopen(descriptor, "rb") as file:
        size = min(os.fstat(descriptor).st_size, most_bytes)
        content = file.read(size + 1)
        if size < len(content) <= most_bytes:  # it grows, or its size is not known
            content += file.read(most_bytes + 1 - len(content))
    if len(content) > most_bytes:
        raise OSError(TOO_LARGE, f"larger than {most_bytes} bytes", str(path))
    return content


def write_files(folder: Path | str, files: Mapping[str, bytes]) -> None:
    """Write files by their names below ``folder``, where none of them is yet. Raises OSError."""
    paths = {f"{folder}/{name}": content for name, content in files.items()}
    for parent in dict.fromkeys(map(os.path.dirname, paths)):
        os.makedirs(parent, exist_ok=True)
    for path, content in paths.items():
        with open(path, "xb") as file:
            file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that replaces ``path`` once it is complete; until then the old file stays.

    A link is followed, and the old file's permissions are kept. Raises :class:`OSError` if writing
    fails, or if ``path`` exists and is not a regular file.
    """
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    beside = place.with_name(f".gqa-{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            yield file
        with suppress(FileNotFoundError):
            shutil.copymode(place, beside)
        os.replace(beside, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


@contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file for the whole content of ``path``: `open_direct` if it can open it, or `replacing`."""
    direct = open_direct(path)
    with replacing(path) if direct is None else os.fdopen(direct, "wb") as file:
        yield file


def open_direct(path: Path) -> int | None:
    """A descriptor for writing directly to ``path``; None if it must be replaced as a file.

    A path is written directly if it has no old content to keep: this process's own descriptors
    (``/dev/stdout``, and the path that a shell passes for ``>(…)``) and character devices
    (``/dev/null``). Never blocks. Raises :class:`OSError`.
    """
    own = own_descriptor(path)
    if own is not None:
        return os.dup(own)
    with suppress(FileNotFoundError, ValueError):  # an impossible path fails on open
        if stat.S_ISCHR(os.stat(path).st_mode):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return None


def own_descriptor(path: Path | str) -> int | None:
    """The open descriptor of this process that ``path`` names, as ``/dev/stdin`` does, or None."""
    match = _OWN.fullmatch(os.path.normpath(path))
    return None if match is None else int(match[1] or _STANDARD.index(match[2]))


_OWN: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/(stdin|stdout|stderr)")
_STANDARD: Final = ("stdin", "stdout", "stderr")


def identity(path: Path) -> object:
    """A key that is equal for two paths to one file, whether by links or by spelling.

    None for a path that is not a file. A file that does not exist yet is identified by its path.
    """
    own = own_descriptor(path)
    try:
        about = os.stat(path) if own is None else os.fstat(own)
    except OSError:
        return os.path.realpath(path)
    is_kept = stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)
    return (about.st_dev, about.st_ino) if is_kept else None
