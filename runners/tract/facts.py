"""tract's *facts*: an input's shape and type, which it needs before it loads a model.

While loading it decides which kind of call this is, so a fact has numbers, not symbols.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from availability import Unavailable
from tensor_file import Tensor

# TensorProto.DataType → tract's name. It supports neither bfloat16 nor float8.
WORDS = {
    1: "f32",
    2: "u8",
    3: "i8",
    4: "u16",
    5: "i16",
    6: "i32",
    7: "i64",
    9: "bool",
    10: "f16",
    11: "f64",
    12: "u32",
    13: "u64",
}

#: The environment variable that sets the number of tract's threads; by default, one for each core.
THREADS = "RAYON_NUM_THREADS"

# The names in describe of those that an input of the operator may have.
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64")


def knobs() -> dict[str, str]:
    """The environment variables of tract that decide which kernels run."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("TRACT_")}


def threads(environment: Mapping[str, str]) -> int | str:
    """The number of threads that tract uses in ``environment``, in the form of a description."""
    word = environment.get(THREADS, "")
    return int(word) if word.isascii() and word.isdigit() and int(word) else "default"


def fact(tensor: Tensor) -> str:
    """Shape and type of ``tensor``, such as 1,16,f32; f32 alone means a scalar.

    Raises `Unavailable` for a type that tract does not support.
    """
    word = WORDS.get(tensor.data_type)
    if word is None:
        data_type = tensor.data_type
        raise Unavailable(f"tract has no tensors of TensorProto type {data_type} ({tensor.name}).")
    return ",".join([*map(str, tensor.dims), word])
