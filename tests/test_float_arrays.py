"""Float64 arrays come back bit for bit, and copies, zeros and NaN take little room."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from conformance.bundle.float_arrays import Packed, Packer, Unpacker

Array = np.ndarray


def _packed(*arrays: tuple[Array, Array | None]) -> Packed:
    packer = Packer()
    for array, like in arrays:
        packer.add(array, like)
    return packer.packed()


@pytest.mark.parametrize("shape", [(2, 3, 5), (1,), (0, 4), (7, 9)])
def test_arrays_come_back_bit_for_bit(shape: tuple[int, ...]) -> None:
    draw = np.random.RandomState(0)
    like = draw.random_sample(shape).astype(np.float16)
    near = np.where(draw.random_sample(shape) < 0.9, like.astype(np.float64), 0.125)
    mixed = np.where(draw.random_sample(shape) < 0.5, -0.0, np.nan)
    arrays = [(near, like), (draw.random_sample(shape), None), (mixed, None), (near * 0, like)]
    unpacker = Unpacker(_packed(*arrays))
    for array, given in arrays:
        found = unpacker.take(shape, given).dense()
        assert found.shape == shape
        assert found.dtype == np.float64
        assert found.tobytes() == array.tobytes()
    assert unpacker.is_empty


def test_copies_zeros_and_nan_have_no_numbers() -> None:
    like = np.random.RandomState(0).random_sample((64, 64)).astype(np.float32)
    packed = _packed(
        (like.astype(np.float64), like), (np.zeros((64, 64)), None), (np.full((9, 9), np.nan), None)
    )
    assert packed.numbers == b""
    assert len(packed.where) < 100


def test_an_array_cannot_be_like_one_that_is_missing_or_has_another_shape() -> None:
    like = np.random.RandomState(0).random_sample((3, 4))
    packed = _packed((like, like))
    for other in (None, like.reshape(4, 3)):
        with pytest.raises(ValueError, match="no array that it is like"):
            Unpacker(packed).take((3, 4), other)


def test_bytes_that_are_missing_or_left_are_noticed() -> None:
    numbers = np.random.RandomState(0).random_sample(20)
    packed = _packed((numbers, None))
    fewer = packed.numbers[:-8]
    with pytest.raises(ValueError, match="numbers are missing"):
        Unpacker(packed._replace(numbers=fewer)).take((20,))
    with pytest.raises(IndexError):
        Unpacker(packed._replace(where=zlib.compress(b""))).take((20,))
    more = packed.numbers + bytes(8)
    unpacker = Unpacker(packed._replace(numbers=more))
    unpacker.take((20,))
    assert not unpacker.is_empty
