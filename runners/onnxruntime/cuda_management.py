"""The driver and a GPU's settings from NVIDIA's management library (NVML), by ctypes.

It reads only settings, which are the same for two processes: no load, temperature or current clock,
and nothing that distinguishes GPUs of the same model. Standard library only.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LIBRARY = "libnvidia-ml.so.1"

# Values of nvmlClockType_t.
_CLOCKS = {"sm": 1, "memory": 2}

_OFF_ON = ("off", "on")


def driver_release() -> str | None:
    """The release of the driver, such as 580.65.06; None if it is unknown."""
    with _library() as library:
        text = ctypes.create_string_buffer(96)
        if library is not None and not library.nvmlSystemGetDriverVersion(text, len(text)):
            return text.value.decode(errors="replace") or None
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            named = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", file.readline())
    except OSError:
        return None
    return named[1] if named else None


def settings(bus_id: bytes) -> dict[str, str]:
    """The settings of the GPU at this location, by their names, as far as they are known."""
    with _library() as library:
        handle = ctypes.c_void_p(None)
        if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(
            bus_id, ctypes.byref(handle)
        ):
            return {}
        return dict(_settings(library, handle))


def _settings(library: Any, handle: ctypes.c_void_p) -> Iterator[tuple[str, str]]:
    for word, clock in _CLOCKS.items():
        most = _number(library, "nvmlDeviceGetMaxClockInfo", handle, clock)
        if most is not None:
            yield f"clock_{word}_max", f"{most} MHz"
        applied = _number(library, "nvmlDeviceGetApplicationsClock", handle, clock)
        if applied is not None:
            yield f"clock_{word}_application", f"{applied} MHz"
    limit = _number(library, "nvmlDeviceGetPowerManagementLimit", handle)
    if limit is not None:
        yield "power_limit", f"{limit // 1000} W"
    persistence = _number(library, "nvmlDeviceGetPersistenceMode", handle)
    if persistence is not None:
        yield "persistence_mode", _OFF_ON[persistence > 0]
    for word, function in (("ecc", "nvmlDeviceGetEccMode"), ("mig", "nvmlDeviceGetMigMode")):
        current, pending = ctypes.c_uint(0), ctypes.c_uint(0)
        if _said(library, function, handle, ctypes.byref(current), ctypes.byref(pending)):
            yield word, _OFF_ON[current.value > 0]


def _number(library: Any, function: str, handle: ctypes.c_void_p, *more: int) -> int | None:
    value = ctypes.c_uint(0)
    return value.value if _said(library, function, handle, *more, ctypes.byref(value)) else None


def _said(library: Any, function: str, *arguments: Any) -> bool:
    """Whether the call succeeded; a library or a GPU need not support all functions."""
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0


@contextmanager
def _library() -> Iterator[Any]:
    """The initialised library, or None if it is missing or cannot be initialised."""
    try:
        library = ctypes.CDLL(LIBRARY)
        started = not library.nvmlInit_v2()
    except (OSError, AttributeError):
        yield None
        return
    try:
        yield library if started else None
    finally:
        if started:
            library.nvmlShutdown()
