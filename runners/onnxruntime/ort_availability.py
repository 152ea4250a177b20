"""Checks whether ONNX Runtime can run here on the requested execution provider.

`load` returns the module or raises `Unavailable`, which names the first missing component and the
command that installs it. Standard library only.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from typing import Any

from availability import Unavailable, first_line, is_older, pip

OLDEST = (1, 20)

# The argument of --ep, and ONNX Runtime's name for it.
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

#: Installs a wheel for CUDA in a separate environment. All wheels of ONNX Runtime install into the
#: folder ``onnxruntime``, so an environment can have only one of them.
SETUP_CUDA = "gqa setup cuda"


def load(provider: str, device: int = 0) -> Any:
    """The module ``onnxruntime`` of this interpreter, able to run on ``provider``.

    ``device`` is the number of the GPU for CUDA. Raises `Unavailable` if the module is missing,
    broken or too old, or has no such device.
    """
    onnxruntime = load_any(provider)
    if provider == PROVIDERS["cuda"]:
        import cuda_availability  # not at the start of every other target

        cuda_availability.check(onnxruntime, device)
    elif provider not in onnxruntime.get_available_providers():
        name = package(onnxruntime)
        reason = f"{name} {onnxruntime.__version__} was built without {provider}."
        raise Unavailable(reason, repair(provider))
    return onnxruntime


def load_any(provider: str = PROVIDERS["cpu"]) -> Any:
    """The module ``onnxruntime`` of this interpreter; ``provider`` is the one it is needed for.

    It is told to record nothing about the user (docs/findings/ort-cpu-telemetry.md), unless the
    user has told it something. Raises `Unavailable` if it is missing, broken or too old.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        if error.name == "onnxruntime":
            reason = f"onnxruntime is not installed in {sys.executable}."
            raise Unavailable(reason, repair(provider)) from error
        raise broken(error, provider) from error
    except Exception as error:  # a broken wheel can raise anything
        raise broken(error, provider) from error
    version = getattr(onnxruntime, "__version__", None)
    if version is None:
        # The folder that remains after one of two wheels that share it was uninstalled.
        left = ImportError("the package has no __version__, only leftovers of a wheel")
        raise broken(left, provider)
    if is_older(version, OLDEST):
        oldest = ".".join(map(str, OLDEST))
        reason = f"onnxruntime {version} is too old: this runner needs {oldest} or later."
        raise Unavailable(reason, repair(provider, release=f">={oldest}"))
    return onnxruntime


def broken(error: Exception, provider: str) -> Unavailable:
    """The answer if onnxruntime is installed but cannot be imported."""
    reason = f"importing onnxruntime failed in {sys.executable}: {first_line(error)}"
    return Unavailable(reason, repair(provider, "--force-reinstall"))


def repair(provider: str, *options: str, release: str = "") -> str:
    """The command that installs ONNX Runtime for ``provider``, without a second wheel of it.

    An installed wheel is repaired or updated; the wheel for CUDA gets a separate environment.
    """
    if provider == PROVIDERS["cuda"]:
        return SETUP_CUDA
    import importlib.metadata  # takes 20 ms, and most runners never need it

    there = importlib.metadata.packages_distributions().get("onnxruntime", ["onnxruntime"])
    return pip("install", *options, f"{sorted(there)[0]}{release}")


def package(onnxruntime: Any) -> str:
    """The name of the installed wheel, such as onnxruntime-gpu."""
    return str(getattr(onnxruntime, "package_name", None) or "onnxruntime")


# Content of the answer to describe


def operator_schema(onnxruntime: Any) -> dict[str, Any] | None:
    """The schema of GroupQueryAttention in this release; None if the build cannot report it."""
    try:
        every = onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
        operator = ("com.microsoft", "GroupQueryAttention")
        found = [schema for schema in every if (schema.domain, schema.name) == operator]
        schema = max(found, key=lambda one: one.since_version)
        attributes = {name: each.type.name.lower() for name, each in schema.attributes.items()}
        return {
            "declared_by": f"onnxruntime {onnxruntime.__version__}",
            "inputs": {one.name: type_words(one.types) for one in schema.inputs},
            "outputs": {one.name: type_words(one.types) for one in schema.outputs},
            "attributes": dict(sorted(attributes.items())),
        }
    except (AttributeError, ValueError):  # no such function, another form of schema, no operator
        return None


def type_words(types: Iterable[str]) -> list[str]:
    """ONNX's types by their names in the protocol: ``tensor(float)`` is float32."""
    words = (re.sub(r"^tensor\((\w+)\)$", r"\1", name) for name in types)
    return sorted({"float": "float32", "double": "float64"}.get(word, word) for word in words)


def versions(onnxruntime: Any, provider: str) -> dict[str, str]:
    """Versions of all software that may affect a result."""
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
        import cuda_library  # not at the start of every other target

        found["cuda_build"] = str(getattr(onnxruntime, "cuda_version", None) or "unknown")
        library = cuda_library.read(cuda_library.path_in(onnxruntime))
        found["cuda_architectures"] = library.code.words() or "unknown"
    return found
