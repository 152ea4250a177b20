"""Which bundles were read and found whole, and the state of their files then.

To read a bundle and compare all digests takes as long as to run a small case. The state of a file
is its inode and the time of its last change (``st_ctime``, which no program can set): where the
states of all files are those that they had when they were compared, so is their content.

The states are kept in the cache, in a file for the bundles whose names begin alike. A file of them
is itself trusted only if it did not change since the process called `guard`
(:mod:`conformance.bundle.cache`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from conformance.base.files import open_plain
from conformance.base.kept import write_kept
from conformance.base.paths import KEPT

#: Two changes within so many nanoseconds may have the same time.
_SAME_TIME: Final = 2_000_000_000
#: More than any of these files has.
_MOST_BYTES: Final = 1 << 24

_FILE: Final = struct.Struct("<QQqq")
_STATES: Final = TypeAdapter(dict[str, str])


def state_of(manifest: bytes, files: Iterable[os.stat_result]) -> str:
    """The state of a bundle: of its manifest's content, and of all ``files`` that this lists."""
    digest = hashlib.blake2b(manifest, digest_size=16)
    for file in files:
        digest.update(_FILE.pack(file.st_dev, file.st_ino, file.st_size, file.st_ctime_ns))
    return digest.hexdigest()


class FoundWhole:
    """The bundles of the cache ``root`` that were found whole."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, dict[str, str]] = {}
        self._new: dict[str, dict[str, str]] = {}

    def has(self, bundle: str, state: str, before: int | None) -> bool:
        """Whether the bundle with this name was found whole in this state.

        ``before`` (``st_ctime_ns``): what was written then or later is not trusted.
        """
        folder = bundle[:2]
        if folder not in self._known:
            self._known[folder] = self._read(folder, before)
        return self._known[folder].get(bundle) == state

    def add(self, bundle: str, state: str, changed: int) -> None:
        """Note that a bundle is whole in this state, unless it has only just ``changed``."""
        if changed < time.time_ns() - _SAME_TIME:
            self._new.setdefault(bundle[:2], {})[bundle] = state

    def save(self) -> None:
        """Keep what was noted since the last time."""
        new, self._new = self._new, {}
        for folder, states in new.items():
            whole = self._read(folder, None) | states
            write_kept(self._place(folder), json.dumps(whole).encode())

    def _place(self, folder: str) -> Path:
        return self._root / KEPT / "whole" / f"{folder}.json"

    def _read(self, folder: str, before: int | None) -> dict[str, str]:
        with (
            suppress(OSError, ValueError),
            os.fdopen(open_plain(self._place(folder)), "rb") as file,
        ):
            if before is None or os.fstat(file.fileno()).st_ctime_ns < before:
                return _STATES.validate_json(file.read(_MOST_BYTES))
        return {}
