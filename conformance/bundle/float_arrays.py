"""Float64 arrays as bytes, without the elements that are zeros, NaN or copies of a given array.

Most elements of a cache are copies without an error, so a bundle holds few of their numbers.
"""

from __future__ import annotations

import math
import zlib
from typing import Final, NamedTuple

import numpy as np

Array = np.ndarray

#: What an array begins as, by its number in the bytes; the last one is the given array.
_FILLS: Final = (0.0, math.nan, None)


class Packed(NamedTuple):
    """``numbers``: little-endian float64. ``where``: which elements they are.

    ``where`` has for each array a byte that says what it begins as and a bit for each element that
    has a number of its own, and is compressed by zlib. The numbers are not: a third less is not
    worth the time.
    """

    numbers: bytes
    where: bytes


class Packer:
    """Packs arrays one after the other."""

    def __init__(self) -> None:
        self._numbers = bytearray()
        self._where = bytearray()

    def add(self, array: Array, like: Array | None = None) -> None:
        """Adds an array; ``like`` has its shape, and perhaps many of its elements."""
        array = np.ascontiguousarray(array, "<f8")
        differ = {
            number: _bits_of(array) != _bits_of(begun)
            for number in range(len(_FILLS))
            if (begun := _begun(number, array.shape, like)) is not None
        }
        number = min(differ, key=lambda number: int(np.count_nonzero(differ[number])))
        self._where += bytes([number]) + np.packbits(differ[number]).tobytes()
        self._numbers += array.reshape(-1)[differ[number]].tobytes()

    def packed(self) -> Packed:
        """Everything that was added."""
        return Packed(bytes(self._numbers), zlib.compress(self._where, level=1))


class Unpacker:
    """Gives back the arrays in the order in which they were added.

    They are read-only. Raises ValueError, IndexError or zlib.error for bytes that no packer has
    made.
    """

    def __init__(self, packed: Packed) -> None:
        self._numbers = np.frombuffer(packed.numbers, "<f8")
        self._where = np.frombuffer(zlib.decompress(packed.where), np.uint8)

    def take(self, shape: tuple[int, ...], like: Array | None = None) -> Array:
        """The next array, of this shape; ``like`` is what it was added with."""
        begun, size = int(self._where[0]), math.prod(shape)
        end = 1 + -(-size // 8)
        own = np.unpackbits(self._where[1:end], count=size).view(bool)
        count = int(np.count_nonzero(own))
        numbers = self._numbers[:count]
        self._where, self._numbers = self._where[end:], self._numbers[count:]
        if count == size:
            return numbers.reshape(shape)
        array = _begun(begun, shape, like)
        if array is None:
            raise ValueError("there is no array that it is like")
        array.reshape(-1)[own] = numbers
        array.flags.writeable = False
        return array

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not (self._where.size or self._numbers.size)


def _begun(number: int, shape: tuple[int, ...], like: Array | None) -> Array | None:
    """A new array with what one begins as; None if that is ``like`` and there is none."""
    fill = _FILLS[number]
    if fill is not None:
        return np.full(shape, fill)
    if like is None or like.shape != shape:
        return None
    return np.ascontiguousarray(like, "<f8") if like.dtype != "<f8" else like.copy()


def _bits_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint64)
