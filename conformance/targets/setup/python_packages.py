"""Installs releases of Python packages (``gqa setup cuda``), each in a separate environment.

They are separate because all wheels of ONNX Runtime install into the same folder.
"""

from __future__ import annotations

import ctypes
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conformance.base.processes import run
from conformance.targets.catalogue import ONNXRUNTIME_GPU, Package
from conformance.targets.published import RegistryError, pip_lists
from conformance.targets.setup.programs import (
    SetupError,
    Tell,
    pip_command,
    put_in_place,
    run_installer,
)
from conformance.targets.tools import python_in

#: A library of NVIDIA's driver, which pip never installs.
_DRIVER: Final = "libcuda.so.1"

#: Environment variables that make pip and uv install only into the environment.
_ISOLATED: Final = {"PIP_USER": "0", "PYTHONPATH": ""}


def has_driver() -> bool:
    """Whether NVIDIA's driver can be loaded, as the runner will do."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def set_up_python_package(package: Package, release: str, tell: Tell) -> bool:
    """Install a release in a separate virtual environment, unless it is installed; whether it did.

    If it has no wheel for this Python, another Python of this machine is used. Raises
    :class:`SetupError`.
    """
    requirement = f"{package.name}=={release}"
    cuda = package is ONNXRUNTIME_GPU
    if cuda and sys.platform == "darwin":
        raise SetupError("There is no CUDA for macOS; use a machine with Linux and an NVIDIA GPU.")

    def make(folder: Path) -> None:
        size = " (1.6 GB to download, 2.5 GB on the disk)" if cuda else ""
        tell(f"Installing {requirement} in an environment of its own{size}.")
        if cuda and not has_driver():
            tell(f"There is no NVIDIA driver here: {_DRIVER} cannot be loaded.")
        # The dependencies of other packages would take most of the time, and are not needed.
        words = (f"{package.name}[cuda,cudnn]=={release}",) if cuda else ("--no-deps", requirement)
        packages = (*words, *package.dependencies)
        try:
            _make_environment(folder, sys.executable, packages)
        except SetupError as error:
            python = _other_python(package, release, error)
            tell(f"{requirement} has no wheel for this Python; using {python}.")
            _make_environment(folder, python, packages)

    return put_in_place(package.folder(release), what_is_wrong, make, tell)


def what_is_wrong(environment: Path) -> str:
    """The fault of an environment as the end of a sentence; empty if there is none."""
    return "" if python_in(environment).exists() else "has no Python"


def _make_environment(folder: Path, python: str, packages: Sequence[str]) -> None:
    """Create an environment for ``python`` with uv; with pip if uv is missing or fails."""
    shutil.rmtree(folder, ignore_errors=True)
    into = ("--python", str(python_in(folder)))
    if shutil.which("uv") is not None:
        try:
            run_installer(("uv", "venv", "--no-project", "--python", python, str(folder)))
            run_installer(("uv", "pip", "install", *into, *packages), None, _ISOLATED)
            return
        except SetupError:
            pass  # pip may be configured for another registry
    pip = pip_command()
    if pip is None:
        raise SetupError(f"neither pip of {sys.executable} nor uv is installed")
    run_installer((python, "-m", "venv", "--clear", "--without-pip", str(folder)))
    run_installer((*pip, *into, "install", *packages), None, _ISOLATED)


def _other_python(package: Package, release: str, error: SetupError) -> str:
    """Another Python on this machine that has a wheel of the release.

    Raises :class:`SetupError` if there is none, or if the failure has another reason.
    """
    requirement = f"{package.name}=={release}"
    try:
        lists = pip_lists(package)
    except RegistryError:
        lists = {}
    versions = [python for python, releases in lists.items() if release in releases]
    listing = f"{shlex.quote(sys.executable)} -m pip index versions {package.name}"
    if not versions or f"{sys.version_info.major}.{sys.version_info.minor}" in versions:
        raise SetupError(
            f"{requirement} could not be installed: {error}.\n  list all releases  {listing}",
            None if versions else listing,
        )
    for version in reversed(versions):
        program = shutil.which(f"python{version}")
        if program and run((program, "-I", "-c", "import venv")) == 0:  # pyenv's may not start
            return program
    raise SetupError(
        f"{requirement} has wheels for Python {', '.join(versions)}, and none of these is on the "
        f"PATH.\n  install one  uv python install {versions[-1]}"
    )
