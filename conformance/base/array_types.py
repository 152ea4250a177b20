"""The NumPy and ONNX types that the suite's names of dtypes stand for.

Importing NumPy and ONNX takes as long as all else of a command that lists cases, so the names are
apart (:mod:`conformance.base.dtypes`).
"""

from __future__ import annotations

from typing import Final

import ml_dtypes
import numpy as np
from onnx import TensorProto

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
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}

WORD_OF_ONNX: Final = {number: word for word, number in ONNX.items()}
ONNX_OF_NUMPY: Final = {dtype: ONNX[word] for word, dtype in NUMPY.items()}
