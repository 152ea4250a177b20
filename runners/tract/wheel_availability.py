"""Checks whether there is a package ``tract`` here whose engine this runner can use.

`load` returns the module and its runtime, or raises `Unavailable`, which names the first missing
component and the command that installs it. Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from typing import Any

from availability import Unavailable, first_line, is_older, pip

OLDEST = (0, 23)
KNOWN_GOOD = "tract==0.23.9"

# The engine's own runtime on the processor; the others in the wheel are for a GPU.
RUNTIME = "default"

# All names of the package that are used.
CALLED = (
    "TractError",
    "Tensor",
    "version",
    "onnx",
    "Onnx.load",
    "InferenceModel.input_count",
    "InferenceModel.input_name",
    "InferenceModel.set_input_fact",
    "InferenceModel.into_model",
    "Model.input_count",
    "Model.input_name",
    "runtime_for_name",
    "Runtime.name",
    "Runtime.prepare",
    "Runnable.run",
    "bindings.check",
    "bindings.lib.tract_tensor_from_bytes",
    "bindings.lib.tract_tensor_as_bytes",
)


def load() -> tuple[Any, Any]:
    """The module ``tract`` of this interpreter and its runtime for the processor.

    Raises `Unavailable` if the package is missing, broken, too old or not the expected one.
    """
    try:
        tract: Any = importlib.import_module("tract")
    except ModuleNotFoundError as error:
        if error.name == "tract":
            reason = f"The package tract is not installed in {sys.executable}."
            raise Unavailable(reason, pip("install", KNOWN_GOOD)) from error
        raise broken(error) from error
    except Exception as error:  # a broken wheel can raise anything
        raise broken(error) from error
    version = version_of(tract)
    if is_older(version, OLDEST):
        reason = f"tract {version} is too old: this runner needs 0.23 or later."
        raise Unavailable(reason, pip("install", KNOWN_GOOD))
    missing = [name for name in CALLED if not has(tract, name)]
    if missing:
        reason = f"The package tract {version} has no {missing[0]}, which this runner calls."
        raise Unavailable(reason, pip("install", "--force-reinstall", KNOWN_GOOD))
    try:
        runtime = tract.runtime_for_name(RUNTIME)
        runtime.name()
        tract.onnx()
    except tract.TractError as error:
        reason = f"tract {version} does not start its runtime '{RUNTIME}': {first_line(error)}"
        raise Unavailable(reason, pip("install", "--force-reinstall", KNOWN_GOOD)) from error
    return tract, runtime


def broken(error: Exception) -> Unavailable:
    """The answer if the package is installed but cannot be imported."""
    reason = (
        f"Importing the package tract {installed()} failed in {sys.executable}: {first_line(error)}"
    )
    return Unavailable(reason, pip("install", "--force-reinstall", KNOWN_GOOD))


def version_of(tract: Any) -> str:
    """The version that the engine reports, or else the installed one."""
    try:
        return str(tract.version())
    except Exception:  # a package of the same name may have anything there
        return installed()


def installed() -> str:
    """The version that pip installed, if it is known."""
    try:
        return importlib.metadata.version("tract")
    except importlib.metadata.PackageNotFoundError:
        return "(of unknown version)"


def has(tract: Any, dotted: str) -> bool:
    """Whether the package has ``dotted``, a name or a dotted path of names."""
    found = tract
    for name in dotted.split("."):
        found = getattr(found, name, None)
    return found is not None
