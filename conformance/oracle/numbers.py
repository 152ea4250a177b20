"""Arrays in float64, and what the storage dtypes can hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from conformance.base.dtypes import NUMPY
from conformance.base.signature import TYPES

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]

#: The NumPy dtypes of the operator's type T.
FLOAT_DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(NUMPY[word] for word in TYPES["T"])

#: The largest float32: no kernel is asked to hold a larger number anywhere.
LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Storage:
    """A floating dtype in which tensors are stored, and what it can hold.

    Attributes:
        largest: the largest finite number (float16: 65504).
        unit: unit roundoff, the largest relative error of rounding a normal number.
        smallest: the smallest subnormal number, the spacing near 0.
    """

    largest: float
    unit: float
    smallest: float

    @classmethod
    def of(cls, dtype: np.dtype[Any]) -> Storage:
        """Return the numbers of float32, float16 or bfloat16."""
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return cls(float(info.max), float(info.eps) / 2, float(info.smallest_subnormal))

    def holds(self, values: Float) -> Bool:
        """Tell for each value whether it is stored without overflow."""
        return np.asarray(np.abs(values) <= self.largest)
