"""NVIDIA's driver library, by ctypes: its properties and those of each GPU.

A GPU has the number that CUDA gives it: from 0, among those of CUDA_VISIBLE_DEVICES. Standard
library only.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

LIBRARY = "libcuda.so.1"

SUCCESS = 0
NO_DEVICE = 100

# Values of CUdevice_attribute.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


class Driver:
    """The loaded and initialised library; ``status`` is the result of ``cuInit``, 0 for success.

    Raises OSError if the library cannot be loaded.
    """

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(LIBRARY)
        self.status = int(self._library.cuInit(0))

    def words(self, status: int) -> str:
        """The driver's text for a status."""
        text = ctypes.c_char_p(None)
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"unknown error").decode(errors="replace")

    def cuda(self) -> tuple[int, int]:
        """The newest CUDA that it supports, such as (13, 0); (0, 0) if it does not report it."""
        number = ctypes.c_int(0)
        self._library.cuDriverGetVersion(ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def gpus(self) -> int:
        """The number of GPUs."""
        count = ctypes.c_int(0)
        if self.status == SUCCESS:
            self._library.cuDeviceGetCount(ctypes.byref(count))
        return count.value

    def name(self, number: int) -> str:
        """The name of a GPU, such as "NVIDIA H100 80GB HBM3"; "GPU" if it does not report one."""
        text = ctypes.create_string_buffer(256)
        self._library.cuDeviceGetName(text, len(text), self._handle(number))
        return text.value.decode(errors="replace").strip() or "GPU"

    def capability(self, number: int) -> tuple[int, int]:
        """The compute capability of a GPU, such as (9, 0)."""
        values = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            value = ctypes.c_int(0)
            self._library.cuDeviceGetAttribute(ctypes.byref(value), attribute, self._handle(number))
            values.append(value.value)
        return values[0], values[1]

    def memory(self, number: int) -> int:
        """The size of a GPU's memory in bytes."""
        size = ctypes.c_size_t(0)
        self._library.cuDeviceTotalMem_v2(ctypes.byref(size), self._handle(number))
        return size.value

    def bus_id(self, number: int) -> bytes:
        """The location of a GPU on the PCI bus, by which other libraries identify it."""
        text = ctypes.create_string_buffer(32)
        self._library.cuDeviceGetPCIBusId(text, len(text), self._handle(number))
        return text.value

    def _handle(self, number: int) -> ctypes.c_int:
        handle = ctypes.c_int(0)
        self._library.cuDeviceGet(ctypes.byref(handle), number)
        return handle


def visible() -> str:
    """The setting that hides GPUs from CUDA, as the end of a sentence; empty if there is none."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if named is None else f" (CUDA_VISIBLE_DEVICES is '{named}')"
