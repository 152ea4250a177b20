"""Checks whether ONNX Runtime can run here on the requested execution provider.

`load` returns the module or raises `Unavailable`, which names the one thing that is missing
and the command that fixes it. For CUDA it does not trust the list of providers (a wheel lists CUDA
on a machine without a GPU): it runs a one-node model there and, if that fails, searches for the
cause in the order in which a user would have to fix it: wheel, libraries, driver, GPU.
Standard library only.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import re
import shlex
import sys
from typing import Any

from availability import Unavailable, first_line, is_older, pip, processor_name
from probe import probe_model

OLDEST = (1, 20)

# The argument of --ep, and ONNX Runtime's name for it.
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

FLOAT = 1  # a TensorProto.DataType

CUDA_SUCCESS = 0
CUDA_ERROR_NO_DEVICE = 100


def load(provider: str) -> Any:
    """The module ``onnxruntime`` of this interpreter, able to run on ``provider``.

    Raises `Unavailable` if it is missing, broken or too old, or has no such device.
    """
    wheel = "onnxruntime" if provider == PROVIDERS["cpu"] else "onnxruntime-gpu[cuda,cudnn]"
    onnxruntime = load_any(wheel)
    if provider == PROVIDERS["cuda"]:
        check_cuda(onnxruntime)
    elif provider not in onnxruntime.get_available_providers():
        name = package(onnxruntime)
        reason = f"{name} {onnxruntime.__version__} was built without {provider}."
        raise Unavailable(reason, pip("install", wheel))
    return onnxruntime


def load_any(wheel: str = "onnxruntime") -> Any:
    """The module ``onnxruntime`` of this interpreter; ``wheel`` is the one to install otherwise.

    Raises `Unavailable` if it is missing, broken or too old.
    """
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name == "onnxruntime":
            reason = f"onnxruntime is not installed in {sys.executable}."
            raise Unavailable(reason, pip("install", wheel)) from error
        raise broken(error, wheel) from error
    except Exception as error:  # a broken wheel can raise anything
        raise broken(error, wheel) from error
    version = getattr(onnxruntime, "__version__", None)
    if version is None:
        # The folder that remains after one of two wheels that share it was uninstalled.
        left = ImportError("the package has no __version__, only leftovers of a wheel")
        raise broken(left, wheel)
    if is_older(version, OLDEST):
        oldest = ".".join(map(str, OLDEST))
        reason = f"onnxruntime {version} is too old: this runner needs {oldest} or later."
        raise Unavailable(reason, pip("install", f"{wheel}>={oldest}"))
    return onnxruntime


def broken(error: Exception, wheel: str) -> Unavailable:
    """onnxruntime is installed, but importing it fails."""
    reason = f"importing onnxruntime failed in {sys.executable}: {first_line(error)}"
    return Unavailable(reason, pip("install", "--force-reinstall", wheel))


def package(onnxruntime: Any) -> str:
    """The name of the installed wheel, such as onnxruntime-gpu."""
    return str(getattr(onnxruntime, "package_name", None) or "onnxruntime")


# CUDA


def check_cuda(onnxruntime: Any) -> None:
    """Raise `Unavailable` with the first cause that keeps CUDA from running here."""
    provider = PROVIDERS["cuda"]
    wheel = "onnxruntime-gpu[cuda,cudnn]"
    if provider not in onnxruntime.get_available_providers():
        name = package(onnxruntime)
        reason = (
            f"the installed wheel {name} {onnxruntime.__version__} was built without {provider}."
        )
        raise Unavailable(reason, beside(wheel))
    preload = getattr(onnxruntime, "preload_dlls", None)
    try:
        if preload is not None:
            preload()  # libraries that pip installed where the loader does not search
        run_probe(onnxruntime, provider)
    except Exception as error:  # whatever it is, the cause has to be found and reported
        raise why_no_cuda(onnxruntime, error) from error


def beside(wheel: str) -> str:
    """The commands that install ``wheel`` in an environment of its own and use it.

    Both wheels of ONNX Runtime install into the same folder, so one environment has one of them.
    """
    new = "gqa-cuda/bin/python"
    return " && ".join(
        (
            shlex.join([sys.executable, "-m", "venv", "gqa-cuda"]),
            shlex.join([new, "-m", "pip", "install", wheel]),
            shlex.join(["gqa", "run", "--ep", "cuda", "--ort-python", new]),
        )
    )


def run_probe(onnxruntime: Any, provider: str) -> None:
    """Run one Relu of four floats on ``provider`` alone; raises if that fails."""
    import numpy as np

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = onnxruntime.InferenceSession(
        probe_model(FLOAT, 1), options, providers=[provider], enable_fallback=0
    )
    if provider not in session.get_providers():
        raise RuntimeError(f"the session has {session.get_providers()} only")
    session.run(None, {"x": np.zeros(4, np.float32)})


def why_no_cuda(onnxruntime: Any, error: Exception) -> Unavailable:
    """The cause of ``error``: a library, the driver, the GPU, or else the error itself."""
    folder = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
    library = os.path.join(folder, "libonnxruntime_providers_cuda.so")
    if os.path.exists(library):
        try:
            ctypes.CDLL(library)
        except OSError as failure:
            if not str(failure).startswith("libcuda.so"):  # that one belongs to the driver
                name, version = package(onnxruntime), onnxruntime.__version__
                reason = f"{name} {version} cannot load CUDA's libraries: {first_line(failure)}"
                return Unavailable(reason, pip("install", f"{name}[cuda,cudnn]=={version}"))
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as failure:
        return Unavailable(f"there is no NVIDIA driver: {first_line(failure)}")
    status = driver.cuInit(0)
    if status == CUDA_ERROR_NO_DEVICE or (status == CUDA_SUCCESS and count_gpus(driver) == 0):
        return Unavailable("the NVIDIA driver finds no GPU.")
    if status != CUDA_SUCCESS:
        return Unavailable(f"the NVIDIA driver does not start: cuInit says {status}.", "nvidia-smi")
    return Unavailable(f"CUDA does not run a one-node model: {first_line(error)}", "nvidia-smi")


def count_gpus(driver: Any) -> int:
    """The number of GPUs that the driver library sees."""
    count = ctypes.c_int(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


# Content of the answer to describe


def device(provider: str) -> str:
    """A description of the device: the processor and its cores, or the GPU."""
    return gpu_name() if provider == PROVIDERS["cuda"] else processor_name()


def gpu_name() -> str:
    """The first GPU's name and compute capability; "GPU" if the driver does not report them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "GPU"
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    driver.cuInit(0)
    driver.cuDeviceGetName(name, len(name), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(major), 75, 0)  # compute capability, major
    driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, 0)  # and minor
    text = name.value.decode(errors="replace") or "GPU"
    return f"{text}, compute capability {major.value}.{minor.value}"


def versions(onnxruntime: Any, provider: str) -> dict[str, str]:
    """Versions of everything that may affect a result."""
    found = {
        "python": platform.python_version(),
        "numpy": importlib.import_module("numpy").__version__,
        "onnxruntime": onnxruntime.__version__,
        "package": package(onnxruntime),
        "platform": platform.platform(),
    }
    build_info = getattr(onnxruntime, "get_build_info", None)
    if build_info is not None:
        found["build"] = str(build_info()).removeprefix("ORT Build Info: ")
    if provider == PROVIDERS["cuda"]:
        found.update(cuda_versions(onnxruntime))
    return found


def cuda_versions(onnxruntime: Any) -> dict[str, str]:
    """Versions of CUDA (built for, and what the driver can do), cuDNN and driver, where known."""
    found = {}
    built_for = getattr(onnxruntime, "cuda_version", None)
    if built_for:
        found["cuda_build"] = str(built_for)
    number = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
        found["cuda_driver"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
    except OSError:
        pass
    try:
        cudnn = ctypes.CDLL("libcudnn.so.9")
        cudnn.cudnnGetVersion.restype = ctypes.c_size_t
        found["cudnn"] = str(cudnn.cudnnGetVersion())
    except (OSError, AttributeError):
        pass
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            named = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", file.readline())
        if named:
            found["driver"] = named[1]
    except OSError:
        pass
    return found
