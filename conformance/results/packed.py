"""Unpacks ``.xz`` piece by piece, also where it is cut off."""

from __future__ import annotations

import io
import lzma
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PIECE: Final = 1 << 16

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
        piece = self._stream.unused_data or self._packed.read(_PIECE)
        if not piece.startswith(b"\xfd7zXZ"):
            return None  # padding
        self._stream = _stream()
        return piece


def _stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
