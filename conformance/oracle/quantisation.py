"""The storage format of a cache: plain numbers, or codes quantised with scales.

The operator's documentation specifies the types, the scales and that two 4-bit values share a byte,
but not the arithmetic. The oracle uses the arithmetic of all runtimes whose source or results are
known (docs/oracle.md): symmetric, code = round(number / scale), halves to even, clamped to the
range of the type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from conformance.oracle.numbers import Float

INT8: Final = np.dtype(np.int8)
UINT8: Final = np.dtype(np.uint8)
FLOAT8: Final = np.dtype(ml_dtypes.float8_e4m3fn)

#: Range of the codes, by the cache's type.
_RANGES: Final = {INT8: (-128.0, 127.0), UINT8: (-8.0, 7.0), FLOAT8: (-448.0, 448.0)}
#: Added to a 4-bit code before it is stored, so that the stored value is not negative.
_BIAS: Final = 8.0


@dataclass(frozen=True, eq=False)
class Format:
    """The storage format of past and present; ``dtype`` is the dtype of these tensors.

    ``scale`` broadcasts to [B, K, rows, D]; without a scale the numbers are stored unchanged. A
    *code* is a single quantised number, an integer or a float8, represented here in float64.
    """

    dtype: np.dtype[Any]
    scale: Float | None = None

    @property
    def quantised(self) -> bool:
        return self.scale is not None

    @property
    def packed(self) -> bool:
        """Whether two codes share a byte: 4-bit integers."""
        return self.quantised and self.dtype == UINT8

    @property
    def step(self) -> Float:
        """The number that the code 1 represents; 1 if the cache is not quantised."""
        return np.ones((1, 1, 1, 1)) if self.scale is None else self.scale

    def encode(self, numbers: Float) -> Float:
        """Return the codes of numbers [B, K, rows, D]; the numbers themselves without a scale."""
        if self.scale is None:
            return numbers
        quotients: Float = numbers / self.scale
        return self.round(quotients, out=quotients)

    def round(self, quotients: Float, out: Float | None = None) -> Float:
        """Return the codes nearest to quotients, halves to even, clamped to the range.

        ``out`` may be the quotients, if they are not needed any more.
        """
        low, high = _RANGES[self.dtype]
        clamped = np.clip(quotients, low, high, out=out)
        if self.dtype == FLOAT8:
            return clamped.astype(FLOAT8).astype(np.float64)
        return np.rint(clamped, out=clamped)

    def decode(self, codes: Float) -> Float:
        """Return the numbers that codes [B, K, rows, D] represent: code * scale, exact.

        Without a scale these are the codes themselves.
        """
        return codes if self.scale is None else codes * self.scale

    def pack(self, codes: Float) -> Float:
        """Return the content of the tensor: codes, or packed bytes [B, K, rows, (D + 1) / 2].

        The even element of a pair is in the low half of its byte, the odd one in the high half.
        """
        if not self.packed:
            return codes
        low, high = self.pairs(codes)
        return (low + _BIAS) + 16.0 * (high + _BIAS)

    @staticmethod
    def pairs(elements: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the elements in the low and in the high halves of the bytes.

        The last element of an odd number is alone in its byte; a zero stands for its neighbour.
        """
        low, high = elements[..., 0::2], elements[..., 1::2]
        alone = low.shape[-1] - high.shape[-1]
        return low, np.pad(high, [*[(0, 0)] * (high.ndim - 1), (0, alone)])

    def unpack(self, stored: NDArray[Any], head_size: int) -> Float:
        """Return the codes in a tensor; the inverse of :meth:`pack`."""
        if not self.packed:
            return stored.astype(np.float64)
        codes = np.empty((*stored.shape[:-1], 2 * stored.shape[-1]))
        codes[..., 0::2] = (stored & 0x0F) - _BIAS
        codes[..., 1::2] = (stored >> 4) - _BIAS
        return codes[..., :head_size]
