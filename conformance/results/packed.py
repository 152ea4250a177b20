"""Packs ``.xz``, and unpacks it piece by piece, also where it is cut off."""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from conformance.base.files import writing

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE: Final = 1 << 16

_MAGIC: Final = b"\xfd7zXZ\0"
_MOST_PADDING: Final = 1 << 20

#: Memory for unpacking; ``xz -9`` needs 65 MiB.
_MOST_MEMORY: Final = 1 << 28


class Unpacked(io.RawIOBase):
    """The content of an ``.xz`` file as a file. ``cut``: the packed data ends too early.

    Reading raises :class:`lzma.LZMAError` for data that is damaged, or no ``.xz`` at all.
    """

    def __init__(self, packed: IO[bytes]) -> None:
        self.cut = False
        self._packed = packed
        self._stream = _stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill ``buffer`` as far as possible at once; 0 at the end."""
        into = memoryview(buffer).cast("B")
        while True:
            piece = self._next()
            if piece is None:
                return 0
            content = self._stream.decompress(piece, len(into))
            if content:
                into[: len(content)] = content
                return len(content)

    def _next(self) -> bytes | None:
        """Packed data for the stream; None at the end. One stream may follow another."""
        if not self._stream.eof:
            if not self._stream.needs_input:
                return b""
            piece = self._packed.read(_PIECE)
            self.cut = not piece
            return piece or None
        piece = self._after_padding()
        if not piece:
            return None
        self._stream = _stream()
        return piece

    def _after_padding(self) -> bytes:
        """What follows a stream and its padding, as much of it as a stream begins with or more."""
        piece, zeros = self._stream.unused_data, 0
        while True:
            begun = piece.lstrip(b"\0")
            zeros += len(piece) - len(begun)
            if zeros > _MOST_PADDING:
                raise lzma.LZMAError("Too many zeros after the data")
            more = self._packed.read(_PIECE) if len(begun) < len(_MAGIC) else b""
            if not more:
                break
            piece = begun + more
        if zeros % 4 or not (begun.startswith(_MAGIC) or _MAGIC.startswith(begun)):
            raise lzma.LZMAError("Something else follows the data")
        return begun


def _stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)


@contextmanager
def packing(path: Path) -> Iterator[IO[bytes]]:
    """``path`` to write whole, packed if its name says so."""
    with writing(path) as file:
        if path.suffix != ".xz":
            yield file
            return
        with lzma.open(file, "wb", preset=6) as packed:
            yield packed
