"""``gqa setup cuda``: installs onnxruntime-gpu with CUDA and cuDNN, and says what runs on it.

They get a virtual environment of their own, since an environment can have one wheel of ONNX Runtime
only. It is made in its final folder, as its programs hold that path; the file COMPLETE is written
last, and without it nothing takes the environment for installed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from conformance.base.processes import ask
from conformance.harness.protocol import DescribedAnswer
from conformance.targets.catalogue import Programs
from conformance.targets.registry import target_for
from conformance.targets.setup.described import described, with_fix
from conformance.targets.setup.pip import (
    PipFailed,
    Watch,
    can_make_environments,
    make_environment,
)
from conformance.targets.setup.tract import (
    NoRelease,
    Ready,
    SetupError,
    Tell,
    put_in_place,
    working_folder,
)
from conformance.targets.tools import (
    COMPLETE,
    ONNXRUNTIME_GPU_VERSION,
    TOOLS_VARIABLE,
    built_onnxruntime_gpu,
    find_cuda_python,
    python_in,
    tools_root,
)

PACKAGE: Final = "onnxruntime-gpu"

#: What the environment of 1.31.1 takes, in GB: on the disk, and of that over the network.
_ON_DISK: Final = 2.5
_DOWNLOADED: Final = 1.6

#: The library that is installed with NVIDIA's driver, and never by pip.
_DRIVER: Final = "libcuda.so.1"

#: Time limit for the new interpreter to say what it has, in seconds.
_TO_START: Final = 60.0

_RELEASE: Final = (
    f"import importlib.metadata, numpy; print(importlib.metadata.version('{PACKAGE}'))"
)


def set_up_cuda(version: str, tell: Tell, watch: Watch) -> Ready:
    """Install this release of onnxruntime-gpu with CUDA, cuDNN and NumPy, unless it is installed.

    ``tell`` is called with messages, ``watch`` with what pip does. Raises :class:`SetupError`, and
    :class:`NoRelease` for a ``version`` that is not like 1.2.3.
    """
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        raise NoRelease(
            f"'{version}' is not a release of {PACKAGE}; expected three numbers, such as "
            f"{ONNXRUNTIME_GPU_VERSION}."
        )
    folder = built_onnxruntime_gpu(version)
    working = working_folder(folder.name)
    return put_in_place(
        folder,
        working,
        wrong=lambda: why_it_does_not_work(folder, version),
        without=lambda: _without(version),
        make=lambda: _install(version, folder, working, tell, watch),
        made="installed",
        tell=tell,
    )


def how_to_use_cuda(version: str) -> list[str]:
    """Lines that name the GPU, or say what CUDA lacks here, and the command that runs cases.

    Starts the runner. Raises :class:`SetupError` if it does not start.
    """
    python = python_in(built_onnxruntime_gpu(version))
    found = find_cuda_python()
    taken = found is not None and found.path == python
    target = target_for("cuda", None if taken else Programs(ort_python=str(python)))
    use = shlex.join(("gqa", "run", *target.arguments))
    answer = described(target)
    if isinstance(answer, DescribedAnswer):
        return [f"GPU: {answer.device}", f"use it with: {use}"]
    reason = with_fix(answer.reason, answer.fix)
    return [f"cuda cannot be used yet: {reason}", f"Once that is fixed: {use}"]


def why_it_does_not_work(folder: Path, version: str) -> str:
    """What is wrong with the environment, as the end of a sentence; empty if nothing is."""
    if not os.path.isfile(folder / COMPLETE):  # also False for a path that no system has
        return "is not complete"
    try:
        done = ask((python_in(folder), "-I", "-c", _RELEASE), _TO_START)
    except subprocess.TimeoutExpired:
        return f"has a Python that did not answer within {_TO_START:.0f} s"
    except OSError as error:
        return f"has a Python that does not start ({error.strerror})"
    there = done.stdout.decode(errors="replace").strip()
    return "" if there == version and not done.returncode else f"has no {PACKAGE} {version}"


def _install(version: str, folder: Path, working: Path, tell: Tell, watch: Watch) -> None:
    """Make the environment in ``folder``; what is not complete is removed."""
    log = working / "pip.log"
    working.mkdir(exist_ok=True)
    log.write_bytes(b"")
    _remove(folder)
    requirement = f"{PACKAGE}[cuda,cudnn]=={version}"
    if not has_driver():
        tell(
            f"There is no NVIDIA driver here: {_DRIVER} cannot be loaded. What is installed now "
            "runs once there is one."
        )
    tell(
        f"Installing {requirement} with pip in an environment of its own: {_DOWNLOADED} GB to "
        f"download, {_ON_DISK} GB on the disk."
    )
    try:
        make_environment(folder, (requirement, "numpy"), log, watch)
        (folder / COMPLETE).touch()
        if why := why_it_does_not_work(folder, version):
            raise PipFailed(f"it reported success, but {folder} {why}")
    except PipFailed as error:
        raise SetupError(
            f"pip could not install {requirement}: {error}.\n"
            f"  full output        {log}\n"
            f"  {_what_to_try(f'{error}', version)}"
        ) from None
    finally:
        if why_it_does_not_work(folder, version):
            _remove(folder)


def has_driver() -> bool:
    """Whether the loader finds NVIDIA's driver, as it will for the runner."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def _remove(folder: Path) -> None:
    """Remove the folder with its contents, if it exists; first what says that it is complete."""
    (folder / COMPLETE).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _what_to_try(said: str, version: str) -> str:
    """The next command to try after an error with these words, with its purpose."""
    again = "gqa setup cuda"
    if version != ONNXRUNTIME_GPU_VERSION:
        again = f"{again} --version {version}"
    if f"No matching distribution found for {PACKAGE}" in said:
        python = shlex.quote(sys.executable)
        return f"list all releases  {python} -m pip index versions {PACKAGE}"
    if "No space left" in said:
        return f"use another disk   {TOOLS_VARIABLE}=/another/folder TMPDIR=/another/folder {again}"
    return f"try again          {again}"


def _without(version: str) -> str:
    """Why the environment cannot be made here; empty if it can."""
    if sys.platform == "darwin":
        return "There is no CUDA for macOS; use a machine with Linux and an NVIDIA GPU."
    if not can_make_environments():
        return (
            f"Installing {PACKAGE} {version} needs venv, which {sys.executable} does not have.\n"
            "  install it  apt-get install python3-venv, or uv: https://docs.astral.sh/uv"
        )
    place = next(filter(os.path.exists, (tools_root(), *tools_root().parents)))
    free = shutil.disk_usage(place).free / 1e9
    if free < _ON_DISK:
        return (
            f"Installing {PACKAGE} {version} needs {_ON_DISK} GB, and {place} has {free:.1f} GB "
            f"free.\n  use another disk  {TOOLS_VARIABLE}=/another/folder gqa setup cuda"
        )
    return ""
