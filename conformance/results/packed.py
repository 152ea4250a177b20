"""Opens files for reading and writing, packed where their name ends in ``.xz``."""

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
    """The content of ``path``, a regular file or a pipe of this process.

    Reading raises :class:`EOFError` where packed data ends too early, and
    :class:`lzma.LZMAError` where it is damaged, or no ``.xz`` at all.
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
    """``path`` to write whole, packed if its name says so."""
    with writing(path) as file:
        if path.suffix != ".xz":
            yield file
            return
        with lzma.open(file, "wb", preset=6) as packed:
            yield packed
