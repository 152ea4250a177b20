"""What was made of a call, kept in the cache: to make it again takes far longer.

It is a pickle, which is code: so it is used only if no other user can have written it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from conformance.base.files import open_with_stat, replacing
from conformance.base.paths import KEPT, cache_root

_T = TypeVar("_T")

#: More than what is made of any call.
MOST_BYTES: Final = 1 << 28


def kept_for(digest: str, make: Callable[[], _T]) -> _T:
    """What ``make`` returns, which follows from what has this ``digest``: from the cache, if there.

    Raises as ``make`` does.
    """
    before = hashlib.sha256(digest.encode()).digest()
    with suppress(OSError):
        found: _T = _found(digest, before)
        return found
    made = make()
    _keep(digest, before, made)
    return made


def _place(name: str) -> Path:
    return cache_root() / KEPT / f"{name}.pickle"


def _found(name: str, before: bytes) -> Any:
    """What is kept under a name. Raises OSError if nothing is, or what was made of another one."""
    with os.fdopen(_open_own(_place(name)), "rb") as file:
        content = file.read(MOST_BYTES)
    size = len(before)
    seal, pickled = content[size : 2 * size], content[2 * size :]
    if content[:size] != before or hashlib.sha256(pickled).digest() != seal:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
    return pickle.loads(pickled)


def _open_own(place: Path) -> int:
    """A descriptor of the file. Raises OSError unless it and its folder are this user's alone."""
    folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptor, found = open_with_stat(place.name, follow_links=False, dir_fd=folder)
        if _is_own(found) and _is_own(os.fstat(folder)):
            return descriptor
        os.close(descriptor)
    finally:
        os.close(folder)
    raise PermissionError(errno.EPERM, "another user can write it", str(place))


def _is_own(found: os.stat_result) -> bool:
    others = stat.S_IWGRP | stat.S_IWOTH
    return found.st_uid == os.geteuid() and not found.st_mode & others


def _keep(name: str, before: bytes, made: object) -> None:
    pickled = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
    place = _place(name)
    with suppress(OSError):
        place.parent.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_own(place.parent.stat()):
            place.parent.chmod(0o700)  # which fails for the folder of another user
    write_kept(place, before + hashlib.sha256(pickled).digest() + pickled, 0o600)


def write_kept(place: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file of the cache, and make its folder. What cannot be kept is made again."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place, mode) as file:
            file.write(content)
