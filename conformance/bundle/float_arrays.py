"""Float64 arrays as bytes, without the elements that are zeros, NaN or copies of a given array.

Most elements of a cache are copies without an error, so a bundle holds few of their numbers.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

Array = np.ndarray

#: What an array begins as, by its number in the bytes; the last one is the given array.
_FILLS: Final = (0.0, math.nan, None)
#: The bits of those that are numbers.
_BITS_OF_FILLS: Final = tuple(np.array(_FILLS[:2], "<f8").view("<u8").tolist())


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
        """Adds an array; ``like`` has its shape, and many of its elements."""
        bits = _bits_of(np.ascontiguousarray(array, "<f8"))
        if like is not None and like.shape == array.shape:
            number, own = _FILLS.index(None), bits != _bits_of(like.astype("<f8"))
        else:
            number, own = 0, bits != _BITS_OF_FILLS[0]
            count = np.count_nonzero(own)
            if 2 * count > own.size:  # else no other number is more frequent
                other = bits != _BITS_OF_FILLS[1]
                if np.count_nonzero(other) < count:
                    number, own = 1, other
        self._where += bytes([number]) + np.packbits(own).tobytes()
        self._numbers += bits[own].tobytes()

    def packed(self) -> Packed:
        """Everything that was added."""
        return Packed(bytes(self._numbers), zlib.compress(self._where, level=1))


@dataclass(frozen=True, eq=False)
class SparseArray:
    """A float64 array of which only the elements are held that are not what it begins as.

    ``own`` is a mask of these elements, of rank 1, and ``numbers`` are their values, in order. All
    others are ``fill``, or those of ``like`` in its stead.
    """

    shape: tuple[int, ...]
    own: Array
    numbers: Array
    fill: float = 0.0
    like: Array | None = None

    def dense(self) -> Array:
        """The whole array; it is read-only."""
        array = self.elements(np.ones(self.own.size, bool)).reshape(self.shape)
        array.flags.writeable = False
        return array

    def elements(self, mask: Array) -> Array:
        """Its elements in a mask of rank 1 that includes ``own``."""
        if self.numbers.size == self.own.size:
            return self.numbers
        if self.like is None:
            found = np.full(np.count_nonzero(mask), self.fill)
        else:
            found = self.like.reshape(-1)[mask].astype(np.float64)
        found[self.own[mask]] = self.numbers
        return found

    def element(self, place: int) -> float:
        """The element at a place of the flat array."""
        if self.own[place]:
            return float(self.numbers[np.count_nonzero(self.own[:place])])
        return self.fill if self.like is None else float(self.like.reshape(-1)[place])

    def unlike(self, array: Array) -> Array:
        """A mask of rank 1 that has all elements in which ``array`` has other bits than this, and
        ``own``."""
        found: Array = np.ones(self.own.size, bool)
        if self.like is not None and self.like.dtype == array.dtype:
            found = self.own | (_bits_of(array) != _bits_of(self.like))
        elif self.like is None and self.fill == 0.0:
            found = self.own | (_bits_of(array) != 0)
        return found

    def is_nan(self) -> Array:
        """A mask of rank 1 of the elements that are NaN; ``like`` has none."""
        found = np.full(self.own.size, self.like is None and math.isnan(self.fill))
        found[self.own] = np.isnan(self.numbers)
        return found


class Unpacker:
    """Gives back the arrays in the order in which they were added.

    Raises ValueError, IndexError or zlib.error for bytes that no packer has made.
    """

    def __init__(self, packed: Packed) -> None:
        self._numbers = np.frombuffer(packed.numbers, "<f8")
        self._where = np.frombuffer(zlib.decompress(packed.where), np.uint8)

    def take(self, shape: tuple[int, ...], like: Array | None = None) -> SparseArray:
        """The next array, of this shape; ``like`` is what it was added with."""
        fill, size = _FILLS[self._where[0]], math.prod(shape)
        end = 1 + -(-size // 8)
        own = np.unpackbits(self._where[1:end], count=size).view(bool)
        count = int(np.count_nonzero(own))
        numbers = self._numbers[:count]
        self._where, self._numbers = self._where[end:], self._numbers[count:]
        if numbers.size != count:
            raise ValueError("numbers are missing")
        if fill is not None:
            return SparseArray(shape, own, numbers, fill)
        if like is None or like.shape != shape:
            raise ValueError("there is no array that it is like")
        return SparseArray(shape, own, numbers, like=like)

    @property
    def is_empty(self) -> bool:
        """Whether everything was taken."""
        return not (self._where.size or self._numbers.size)


def _bits_of(array: Array) -> Array:
    """Its elements as unsigned integers, in an array of rank 1."""
    return array.reshape(-1).view(f"u{array.itemsize}")
