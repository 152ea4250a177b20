"""The GPU that CUDA runs on, and the versions of all software that a result may depend on.

A run requires that each process describes itself as the first one did. So the description has no
values that can differ between two processes, such as the current clocks. It also has no values that
identify a machine, such as a GPU's serial number. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import re
import site
from typing import NamedTuple

import cuda_management
from cuda_driver import Driver

#: The longest adapter word that the protocol takes.
LONGEST_WORD = 60

# What a name has beside the model: the maker and its brands, the memory, the form, filling words.
_NO_MODEL = re.compile(
    r"nvidia|geforce|tesla|graphics|gpu|generation|edition|server|workstation|with|design"
    r"|\d+gb?|hbm\d*e?|pcie|sxm\d*|nvl\d*"
)

# Libraries whose path is reported: each may change a result.
_LIBRARIES = ("cudart", "cublas", "cublasLt", "cudnn", "curand", "cufft", "nvrtc")


class Gpu(NamedTuple):
    """A GPU: its name, a description, a word for its model, and versions and settings."""

    name: str
    words: str
    adapter: str
    versions: dict[str, str]


def describe(device: int = 0) -> Gpu:
    """GPU ``device``, by CUDA's number.

    The driver must know the GPU, and CUDA's libraries must be loaded.
    """
    driver = Driver()
    name = driver.name(device)
    capability = ".".join(map(str, driver.capability(device)))
    cudnn = cudnn_version()
    words = f"{name}, compute capability {capability}{'' if cudnn else ', without cuDNN'}"
    versions = {
        "driver": cuda_management.driver_release(),
        "cuda_driver": ".".join(map(str, driver.cuda())),
        "cuda_runtime": runtime_version(),
        "cublas": cublas_version(),
        "cudnn": cudnn or "missing",
        **loaded_libraries(),
        "gpu": name,
        "compute_capability": capability,
        "gpu_memory": f"{driver.memory(device) / 2**30:.1f} GiB",
        **cuda_management.settings(driver.bus_id(device)),
    }
    known = {key: value for key, value in versions.items() if value}
    return Gpu(name, words, adapter_word(name), known)


def adapter_word(name: str) -> str:
    """The model as one word of the protocol: "NVIDIA H100 80GB HBM3" → h100.

    Memory, form factor and MIG instance are left out, since kernels differ by architecture: an
    expectation for a model applies to all of them.
    """
    model = re.sub(r"\(.*?\)|\bmig\b.*", " ", name.lower())
    words = re.findall(r"[a-z0-9.]+", model)
    kept = [word for word in words if not _NO_MODEL.fullmatch(word)] or words
    return "-".join(kept)[:LONGEST_WORD].strip("-.") or "gpu"


def runtime_version() -> str | None:
    """The version of CUDA's runtime that is loaded, such as 13.0."""
    number = ctypes.c_int(0)
    for path in loaded_files("cudart"):
        ctypes.CDLL(path).cudaRuntimeGetVersion(ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return None


def cublas_version() -> str | None:
    """The version of cuBLAS that is loaded, such as 13.10.0."""
    for path in loaded_files("cublas"):
        library = ctypes.CDLL(path)
        numbers = [ctypes.c_int(0) for _ in range(3)]
        for part, number in enumerate(numbers):  # major, minor, patch
            library.cublasGetProperty(part, ctypes.byref(number))
        return ".".join(str(number.value) for number in numbers)
    return None


def cudnn_version() -> str | None:
    """The version of cuDNN that is loaded, such as 9.28.1."""
    for path in loaded_files("cudnn"):
        library = ctypes.CDLL(path)
        library.cudnnGetVersion.restype = ctypes.c_size_t
        number = library.cudnnGetVersion()
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return None


def loaded_libraries() -> dict[str, str]:
    """The paths of the libraries that this process has loaded, by their names."""
    return {
        f"lib{stem}": shown(path) for stem in _LIBRARIES for path in sorted(loaded_files(stem))[:1]
    }


def loaded_files(stem: str) -> list[str]:
    """The files of the library ``stem``, such as cudart, that this process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    return sorted(set(re.findall(rf"^\S+ \S+ \S+ \S+ \S+ +(/.*/lib{stem}\.so\S*)$", text, re.M)))


def shown(path: str) -> str:
    """The path relative to the folder of the Python packages or of the user, if it is below one."""
    for packages in site.getsitepackages():
        if path.startswith(f"{packages}{os.sep}"):
            return os.path.relpath(path, packages)
    home = os.path.expanduser("~")
    return f"~{path[len(home) :]}" if path.startswith(f"{home}{os.sep}") else path
