"""Finds the programs that targets need, other than Python packages.

``gqa setup`` installs each release of a program into a separate folder, and changes nothing that
the user has installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from conformance.base.processes import ask

#: Environment variable: the folder of the tools; default: the platform's folder for user data.
TOOLS_VARIABLE: Final = "GQA_TOOLS"

#: The release that expectations/tract.yaml was made with.
TRACT_VERSION: Final = "0.23.9"

#: The release of onnxruntime that expectations/cpu.yaml is about, as in pyproject.toml.
ONNXRUNTIME_VERSION: Final = "1.32.0"

#: The release of onnxruntime-gpu that expectations/cuda.yaml is about. Not every release of
#: onnxruntime has one.
ONNXRUNTIME_GPU_VERSION: Final = "1.31.1"

#: A program that exits with 0 if onnxruntime has the library of the CUDA provider. It does not
#: import onnxruntime, which would take long.
_HAS_CUDA: Final = """
import glob, importlib.util, os, sys
found = importlib.util.find_spec("onnxruntime")
folders = found.submodule_search_locations or [] if found else []
libraries = "capi/libonnxruntime_providers_cuda*.so"
sys.exit(not any(glob.glob(os.path.join(glob.escape(folder), libraries)) for folder in folders))
"""

#: The release that expectations/webgpu.yaml was made with, as in the runner's package.json.
ONNXRUNTIME_WEB_VERSION: Final = "1.30.0"

#: The release of onnxruntime-node that the runner's package.json names.
ONNXRUNTIME_NODE_VERSION: Final = "1.30.0"

#: The time limit for that program in seconds; it takes 20 ms.
_TO_ANSWER: Final = 20.0

#: A release of an npm package, such as 1.30.0 or 1.31.0-dev.20261101-0a1b2c3; no range, no tag.
_NPM_RELEASE: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?")


@dataclass(frozen=True)
class RuntimeProgram:
    """A program; ``found_by`` says where its path comes from: an option, PATH …

    ``release`` is the release that the user named, which ``gqa setup`` can install.
    """

    path: Path
    found_by: str
    release: str | None = None


def tools_root() -> Path:
    """The folder of the tools."""
    named = os.environ.get(TOOLS_VARIABLE)
    return Path(named).absolute() if named else platformdirs.user_data_path("gqa-conformance")


def folder_of(tool: str, version: str) -> Path:
    """The folder of a release of a tool; it need not exist."""
    return tools_root() / f"{tool}-{version}"


def find_tract(named: str | None = None) -> RuntimeProgram | None:
    """The tract binary to use, None if there is none.

    It is the first of: ``named`` (``--tract``), the binary that ``gqa setup tract`` built, and
    PATH. A path that the user named is returned even if it does not exist; the runner then reports
    that, instead of testing another binary. The binary of ``gqa setup`` comes before PATH because
    the expectations are about its release.
    """
    if named:
        return RuntimeProgram(as_typed(named), "--tract")
    built = folder_of("tract", TRACT_VERSION) / "bin" / "tract"
    if os.path.isfile(built):  # also False for a path that the system cannot have
        return RuntimeProgram(built, "gqa setup tract")
    on_path = shutil.which("tract")
    return RuntimeProgram(Path(on_path).absolute(), "PATH") if on_path else None


def python_in(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / "bin" / "python"


def find_cuda_python() -> RuntimeProgram | None:
    """The interpreter whose onnxruntime has CUDA, None if there is none.

    It is this one, which may have a build of the user, or else that of ``gqa setup cuda``.
    """
    if has_cuda(sys.executable):
        return RuntimeProgram(Path(sys.executable), "this environment")
    built = python_in(folder_of("onnxruntime-gpu", ONNXRUNTIME_GPU_VERSION))
    return RuntimeProgram(built, "gqa setup cuda") if os.path.isfile(built) else None


def has_cuda(python: str) -> bool:
    """Whether the onnxruntime that ``python`` imports was built with CUDA.

    The interpreter itself is asked, because its PYTHONPATH, .pth files and editable packages
    determine its imports. The current folder is left out, as for a runner.
    """
    try:
        done = ask((python, "-P", "-c", _HAS_CUDA), _TO_ANSWER)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def find_onnxruntime_web(named: str | None = None) -> RuntimeProgram | None:
    """The folder whose ``node_modules`` has the onnxruntime-web to use, None if there is none.

    It is ``named`` (``--onnxruntime-web``), a folder or an installed release, which is returned
    even if it does not exist, or else the release that ``gqa setup webgpu`` installs.
    """
    return _find_packages("onnxruntime-web", named, ONNXRUNTIME_WEB_VERSION, "webgpu")


def find_onnxruntime_node(named: str | None = None) -> RuntimeProgram | None:
    """The same of onnxruntime-node, ``--onnxruntime-node`` and ``gqa setup node``."""
    return _find_packages("onnxruntime-node", named, ONNXRUNTIME_NODE_VERSION, "node")


def _find_packages(
    package: str, named: str | None, pinned: str, setup: str
) -> RuntimeProgram | None:
    option = f"--{package}"
    if named and _NPM_RELEASE.fullmatch(named):
        return RuntimeProgram(folder_of(package, named), option, release=named)
    if named:
        folder = Path(os.path.expanduser(named)).absolute()
        # Node looks packages up in the folder above node_modules.
        folder = folder.parent if folder.name == "node_modules" else folder
        return RuntimeProgram(folder, option)
    built = folder_of(package, pinned)
    there = os.path.isdir(built / "node_modules" / package)
    return RuntimeProgram(built, f"gqa setup {setup}") if there else None


def as_typed(named: str) -> Path:
    """The absolute path of a program; a name without a slash is looked up in PATH."""
    on_path = shutil.which(named) if os.sep not in named else None
    return Path(on_path or os.path.expanduser(named)).absolute()
