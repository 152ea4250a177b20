"""Reads and writes files that are compressed if their name ends in ``.xz``."""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from conformance.base.files import open_plain, own_descriptor, writing


@contextmanager
def unpacking(path: Path) -> Iterator[IO[bytes]]:
    """The decompressed content of ``path``, a regular file or a pipe of this process.

    Reading raises :class:`EOFError` if compressed data ends too early, and :class:`lzma.LZMAError`
    if it is damaged or not in the format of ``.xz``.
    """
    own = own_descriptor(path)
    with os.fdopen(open_plain(path) if own is None else os.dup(own), "rb") as file:
        if path.suffix != ".xz":
            yield file
            return
        with lzma.open(file, format=lzma.FORMAT_XZ) as packed:
            yield packed


@contextmanager
def packing(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` once it is complete, compressed if the name ends in ``.xz``."""
    with writing(path) as file:
        if path.suffix != ".xz":
            yield file
            return
        with lzma.open(file, "wb", preset=6) as packed:
            yield packed
