"""Makes each tensor on the device a separate allocation, so that accesses beyond it are detected.

ONNX Runtime takes memory for CUDA in large blocks (an arena), and may plan several tensors into one
of them. For compute-sanitizer's memcheck a block is one allocation: a kernel that reads beyond a
tensor reads the next tensor, and nothing is reported. There is no option to turn the arena off, but
the caller can pass an allocator: here it is ``cudaMalloc``. ``cudaFree`` waits for the device, so
memory is not reused while a kernel runs. CUDA graphs cannot be captured with it, since ONNX Runtime
then computes on the default stream. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

#: Environment variable: 1 asks for it. ``sanitized.py`` sets it.
VARIABLE = "GQA_SEPARATE_ALLOCATIONS"

_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
#: What ONNX Runtime calls must not be collected.
_kept: list[Any] = []


def requested(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment asks for separate allocations."""
    return environment.get(VARIABLE) == "1"


def provider_options(runtime: Any) -> dict[str, str]:
    """The options of the CUDA provider with which ``runtime``, a CUDA runtime library, allocates.

    They apply to a session, and to values that Python puts on the device after it was made.
    """

    def allocate(size: int) -> int | None:
        pointer = ctypes.c_void_p()
        status = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        return None if status else pointer.value

    allocate_c = _Allocate(allocate)
    _kept.append(allocate_c)
    return {
        "gpu_external_alloc": str(_address(allocate_c)),
        # It returns a status that the caller ignores. Without Python: it may be called at the end.
        "gpu_external_free": str(_address(runtime.cudaFree)),
    }


def cuda_runtime(onnxruntime: Any) -> Any:
    """The CUDA runtime that ``onnxruntime`` has loaded; OSError if it cannot be found."""
    major = str(getattr(onnxruntime, "cuda_version", "")).partition(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}" if major else "libcudart.so")


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
