"""The suite's names of dtypes."""

from __future__ import annotations

from typing import Final, Literal

FloatType = Literal["float32", "float16", "bfloat16"]
DType = Literal["float32", "float16", "bfloat16", "int8", "uint8", "float8e4m3fn", "int32", "int64"]

#: The smallest and the largest number of each integer type.
INTEGER_RANGE: Final = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
