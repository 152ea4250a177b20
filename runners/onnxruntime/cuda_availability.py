"""Why CUDA does not run here: the first cause, in the order in which a user has to fix them.

The list of providers proves nothing (a wheel lists CUDA on a machine without a GPU), so `check`
runs a one-node model, and if that fails it looks for the cause: the wheel, a library, the driver,
the GPU. Standard library only, in addition to the package under test.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import shlex
import site
from typing import Any

import cuda_library
import cuda_management
from availability import Unavailable, first_line, pip
from cuda_driver import LIBRARY, NO_DEVICE, SUCCESS, Driver, visible
from cuda_library import Library
from ort_availability import PROVIDERS, package, repair
from probe import FLOAT, probe_model

PROVIDER = PROVIDERS["cuda"]

#: The oldest driver on Linux for a major version of CUDA, from "CUDA Toolkit and Minimum Required
#: Driver Version for CUDA Minor Version Compatibility" in the release notes of CUDA's toolkit.
OLDEST_DRIVERS = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def check(onnxruntime: Any, device: int = 0) -> None:
    """Raise `Unavailable` with the first cause that keeps CUDA from running on GPU ``device``."""
    if PROVIDER not in onnxruntime.get_available_providers():
        if "cuda-plugin-ep=" in getattr(onnxruntime, "get_build_info", str)():
            plugin = shlex.quote(f"ort-plugin:{cuda_library.path_in(onnxruntime)}")
            reason = f"{build(onnxruntime)} was built with CUDA as a plugin."
            raise Unavailable(reason, f"gqa run --ep {plugin}")
        reason = f"the installed wheel {build(onnxruntime)} was built without {PROVIDER}."
        raise Unavailable(reason, repair(PROVIDER))
    preload(onnxruntime)
    onnxruntime.set_default_logger_severity(4)  # the cause is told once, by this runner
    try:
        run_probe(onnxruntime, PROVIDER, {"device_id": str(device)})
    except Exception as error:  # whatever it is, the cause has to be found and reported
        raise why(onnxruntime, device, error) from error


def build(onnxruntime: Any) -> str:
    """Name and version of the build, such as "onnxruntime-gpu 1.31.1"."""
    return f"{package(onnxruntime)} {onnxruntime.__version__}"


def preload(onnxruntime: Any) -> None:
    """Load the libraries that pip installed where the loader does not search."""
    load = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if load is not None:
        load()


def run_probe(onnxruntime: Any, provider: str, options: dict[str, str]) -> None:
    """Run one Relu of four floats on ``provider`` alone; raises if that fails."""
    import numpy as np

    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 4
    session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(
        probe_model(FLOAT, 4),
        session_options,
        providers=[(provider, options)],
        enable_fallback=0,
    )
    if provider not in session.get_providers():
        raise RuntimeError(f"the session has {session.get_providers()} only")
    session.run(None, {"x": np.zeros(4, np.float32)})


def why(onnxruntime: Any, device: int, error: Exception) -> Unavailable:
    """The cause of ``error``: the library, the driver or the GPU, or else the error itself."""
    path = cuda_library.path_in(onnxruntime)
    library = cuda_library.read(path)
    return (
        missing_libraries(onnxruntime, library)
        or unloadable(onnxruntime, path)
        or driver_or_gpu(onnxruntime, library, device)
        or unknown(error)
    )


def unknown(error: Exception) -> Unavailable:
    """A failed probe of unknown cause: ONNX Runtime's message, without the name of this machine."""
    said = re.sub(r" hostname=\S* ?;", "", first_line(error))
    return Unavailable(f"CUDA does not run a one-node model: {said}", "nvidia-smi")


# Libraries


def missing_libraries(onnxruntime: Any, library: Library) -> Unavailable | None:
    """Missing libraries other than the driver's, and where to get them; None if none is missing."""
    missing = [name for name in library.needed if name != LIBRARY and not is_loadable(name)]
    if not missing:
        return None
    reason = f"{build(onnxruntime)} needs {listed(missing)}, which the loader does not find"
    if folders := folders_with(missing):
        path = os.pathsep.join([*folders, "$LD_LIBRARY_PATH"])
        fix = f'export LD_LIBRARY_PATH="{path}"'
        return Unavailable(f"{reason}: it does not search {listed(folders)}.", fix)
    packages = listed(list(dict.fromkeys(package_of(name, library.cuda) for name in missing)))
    requirement = installed_with_extras(onnxruntime)
    return Unavailable(
        f"{reason}: install {packages}.", pip("install", requirement) if requirement else None
    )


def listed(words: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def is_loadable(name: str) -> bool:
    """Whether the loader finds the library, or has already loaded it."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def folders_with(names: list[str]) -> list[str]:
    """Folders in the usual places that together contain all of these libraries.

    Empty if a library is in none of them.
    """
    places = [
        *(f"{packages}/nvidia/*/lib" for packages in site.getsitepackages()),
        f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/lib64",
        "/usr/local/cuda-*/lib64",
    ]
    found: dict[str, None] = {}
    for name in names:
        files = [file for place in places for file in sorted(glob.glob(f"{place}/{name}"))]
        if not files:
            return []
        found[os.path.dirname(files[0])] = None
    return list(found)


def package_of(name: str, cuda: int | None) -> str:
    """NVIDIA's package on PyPI that has the library, such as nvidia-cublas."""
    stem = name.partition(".so")[0].removeprefix("lib")
    words = {"cublaslt": "cublas", "cudart": "cuda-runtime", "nvrtc": "cuda-nvrtc"}
    word = words.get(stem.lower(), stem.lower().partition("_")[0])
    # Since CUDA 13 only cuDNN's package names the version of CUDA.
    suffix = f"-cu{cuda}" if cuda and (cuda < 13 or word == "cudnn") else ""
    return f"nvidia-{word}{suffix}"


def installed_with_extras(onnxruntime: Any) -> str | None:
    """The requirement that installs the libraries of the wheel; None if pip did not install it."""
    import importlib.metadata  # takes 20 ms, and most runners never need it

    name = package(onnxruntime)
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    extras = [word for word in ("cuda", "cudnn") if word in metadata.get_all("Provides-Extra", [])]
    return f"{name}[{','.join(extras)}]=={metadata['Version']}" if extras else None


def unloadable(onnxruntime: Any, path: str) -> Unavailable | None:
    """A failure to load the provider's library for another reason, with the loader's message."""
    if not os.path.exists(path):
        return None
    try:
        ctypes.CDLL(path)
    except OSError as failure:
        said = first_line(failure)
        if not said.startswith(LIBRARY):  # that one belongs to the driver
            return Unavailable(f"{build(onnxruntime)} cannot load its CUDA provider: {said}")
    return None


# Driver and GPU


def driver_or_gpu(onnxruntime: Any, library: Library, device: int) -> Unavailable | None:
    """An unsuitable driver or GPU, or None if both are suitable."""
    try:
        driver = Driver()
    except OSError as failure:
        return Unavailable(f"there is no NVIDIA driver: {first_line(failure)}")
    gpus = driver.gpus()
    if driver.status == NO_DEVICE or (driver.status == SUCCESS and gpus == 0):
        return Unavailable(f"the NVIDIA driver finds no GPU{visible()}.")
    supported = driver.cuda()
    if library.cuda and (0, 0) < supported < (library.cuda, 0):
        release = " ".join(filter(None, ("the NVIDIA driver", cuda_management.driver_release())))
        oldest = OLDEST_DRIVERS.get(library.cuda)
        wanted = f"driver {oldest} or later" if oldest else "a newer driver"
        return Unavailable(
            f"{release} supports CUDA {supported[0]}.{supported[1]} at most, and "
            f"{build(onnxruntime)} needs CUDA {library.cuda}: install {wanted}."
        )
    if driver.status != SUCCESS:
        said = f"{driver.status} ({driver.words(driver.status)})"
        return Unavailable(f"the NVIDIA driver does not start: cuInit says {said}.", "nvidia-smi")
    if device >= gpus:
        there = "is 1 GPU, number 0" if gpus == 1 else f"are {gpus} GPUs, numbers 0 to {gpus - 1}"
        return Unavailable(f"there is no GPU {device}: there {there}{visible()}.")
    return without_code(onnxruntime, library, driver, device)


def without_code(
    onnxruntime: Any, library: Library, driver: Driver, device: int
) -> Unavailable | None:
    """A build without code for this GPU; None if it has code for it."""
    capability = driver.capability(device)
    built_for = library.code.words()
    if not built_for or library.code.runs_on(capability):
        return None
    major, minor = capability
    return Unavailable(
        f"{build(onnxruntime)} has no code for {driver.name(device)} (sm_{major}{minor}): it was "
        f"built for {built_for}; a build with CMAKE_CUDA_ARCHITECTURES={major}{minor} has it."
    )
