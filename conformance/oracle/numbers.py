"""Types of float64 arrays, and the range and precision of the storage dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from conformance.base.array_types import NUMPY
from conformance.operator.signature import TYPES

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]

#: The NumPy dtypes of the operator's type T.
FLOAT_DTYPES: Final[tuple[np.dtype[Any], ...]] = tuple(NUMPY[word] for word in TYPES["T"])

#: The largest float32. No kernel is required to represent a larger number anywhere.
LARGEST_FLOAT32: Final = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Storage:
    """The range and precision of a floating-point dtype in which tensors are stored.

    Attributes:
        largest: the largest finite number (float16: 65504).
        unit: unit roundoff, the largest relative error of rounding a normal number.
        smallest: the smallest subnormal number, the spacing near 0.
    """

    largest: float
    unit: float
    smallest: float

    @classmethod
    @cache
    def of(cls, dtype: np.dtype[Any]) -> Storage:
        """Return the properties of float32, float16 or bfloat16."""
        info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        return cls(float(info.max), float(info.eps) / 2, float(info.smallest_subnormal))

    def holds(self, values: Float) -> Bool:
        """Return for each value whether it can be stored without overflow."""
        return np.asarray((values <= self.largest) & (values >= -self.largest))
