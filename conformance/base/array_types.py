"""The NumPy and ONNX types for the suite's names of dtypes.

Importing NumPy and ONNX takes as long as the rest of a command that lists cases, so the names are
in a separate module (:mod:`conformance.base.dtypes`).
"""

from __future__ import annotations

from typing import Final

import ml_dtypes
import numpy as np
from onnx import helper

Array = np.ndarray

NUMPY: Final[dict[str, np.dtype]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
}

ONNX: Final[dict[str, int]] = {
    word: int(helper.np_dtype_to_tensor_dtype(dtype)) for word, dtype in NUMPY.items()
}

WORD_OF_ONNX: Final = {number: word for word, number in ONNX.items()}
ONNX_OF_NUMPY: Final = {dtype: ONNX[word] for word, dtype in NUMPY.items()}
