"""The releases that are installed: each in a folder of its own below that of the tools.

A release that `--ep cpu@1.25.1` names is installed when it is first used. Only what is complete
counts: what an interrupt or an error leaves is removed, and of two processes that want the same
release the second waits for the first. ``gqa env`` lists and removes them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.targets.catalogue import TARGETS, Package, entry_of
from conformance.targets.published import pythons_with_a_wheel
from conformance.targets.registry import NotInstalled, Target
from conformance.targets.setup import pythons
from conformance.targets.setup.cuda import PACKAGE as CUDA_PACKAGE
from conformance.targets.setup.cuda import has_driver, set_up_cuda
from conformance.targets.setup.onnxruntime_web import set_up_onnxruntime_web
from conformance.targets.setup.pip import PipFailed, Watch, make_small_environment
from conformance.targets.setup.tract import (
    NoRelease,
    Ready,
    SetupError,
    Tell,
    put_in_place,
    set_up_tract,
    working_folder,
)
from conformance.targets.tools import COMPLETE, python_in, tools_root


@dataclass(frozen=True)
class Installed:
    """A release that is installed in ``folder``, and the targets that can run it."""

    package: Package
    release: str
    folder: Path

    @property
    def targets(self) -> tuple[str, ...]:
        """What ``--ep`` takes to run it: ``cpu@1.25.1``, ``cpu-noflash@1.25.1``."""
        names = (entry.name for entry in TARGETS if entry.package == self.package)
        return tuple(f"{name}@{self.release}" for name in names)

    @property
    def size(self) -> int:
        """What its files take on the disk, in bytes; those that other releases share included."""
        found = (path.lstat() for path in self.folder.rglob("*"))
        return sum(each.st_blocks * 512 for each in found)


def installed() -> list[Installed]:
    """All releases that are installed, by package and version as text."""
    return sorted(_installed(), key=lambda each: each.folder.name)


def _installed() -> Iterator[Installed]:
    packages = list(dict.fromkeys(e.package for e in TARGETS if e.package))
    for package in packages:
        pattern = re.compile(re.escape(_folder(package, "")) + r"(\d.*)")
        for folder in tools_root().glob(f"{_folder(package, '')}*"):
            found = pattern.fullmatch(folder.name)
            if found and is_installed(package, found[1]):
                yield Installed(package, found[1], folder)


def _folder(package: Package, release: str) -> str:
    """The name of the folder of a release below that of the tools."""
    return package.place(release).relative_to(tools_root()).parts[0]


def is_installed(package: Package, release: str) -> bool:
    """Whether the release is there and complete; no program is started."""
    place = package.place(release)
    match package.manager:
        case "pip":
            return (place / COMPLETE).is_file() and python_in(place).exists()
        case "npm":
            return (place / "node_modules" / package.name / "package.json").is_file()
        case "cargo":
            return place.is_file()


def remove(one: Installed) -> None:
    """Remove a release; until it is gone as a whole, nothing takes it for installed.

    Raises :class:`SetupError`.
    """
    gone = working_folder(f"{one.folder.name}.removed-{os.getpid()}")
    try:
        gone.parent.mkdir(parents=True, exist_ok=True)
        one.folder.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        raise SetupError(f"Cannot remove {one.folder}: {error.strerror}.") from None


def with_release(target: Target, tell: Tell, watch: Watch) -> Target:
    """The target, after the release that it is pinned to is installed, if it is pinned.

    ``tell`` is called with messages, ``watch`` with progress. Where the release cannot be
    installed, the target says why (`Target.missing`), so that others can run.
    """
    entry = entry_of(target.ep)
    if target.release is None or target.missing or entry is None or entry.package is None:
        return target
    if is_installed(entry.package, target.release):
        return target
    if entry.package.name == CUDA_PACKAGE and not has_driver():
        why = f"{target.typed} is not installed, and there is no NVIDIA driver to run it"
        return replace(target, missing=NotInstalled(why, f"gqa env install {target.typed}"))
    try:
        install(entry.package, target.release, tell, watch)
    except (SetupError, NoRelease) as error:
        fix = error.fix if isinstance(error, SetupError) else None
        again = f"gqa env install {target.typed}"
        return replace(target, missing=NotInstalled(str(error), fix or again))
    return target


def install(package: Package, release: str, tell: Tell, watch: Watch) -> Ready:
    """Install the release of the package, unless it is installed.

    Raises :class:`SetupError`, and :class:`NoRelease` for one that the package cannot have.
    """
    match package.manager:
        case "npm":
            return set_up_onnxruntime_web(
                release, tell, lambda since: watch(f"npm: {package.name} {release}", since)
            )
        case "cargo":
            return set_up_tract(
                release, tell, lambda at: watch(f"cargo: {at.doing or 'starting'}", at.seconds)
            )
        case "pip" if package.name == CUDA_PACKAGE:
            return set_up_cuda(release, tell, watch)
        case "pip":
            return _set_up_python_package(package, release, tell, watch)


def _set_up_python_package(package: Package, release: str, tell: Tell, watch: Watch) -> Ready:
    folder = package.place(release)
    working = working_folder(folder.name)
    return put_in_place(
        folder,
        working,
        wrong=lambda: "" if is_installed(package, release) else "is not complete",
        without=lambda: "",
        make=lambda: _make(package, release, folder, working, tell, watch),
        made="installed",
        tell=tell,
    )


def _make(
    package: Package, release: str, folder: Path, working: Path, tell: Tell, watch: Watch
) -> None:
    """Make the environment in ``folder``; what is not complete is removed."""
    log = working / "pip.log"
    working.mkdir(exist_ok=True)
    requirement = f"{package.name}=={release}"
    tell(f"Installing {requirement} in an environment of its own.")
    try:
        python = sys.executable
        try:
            _try(package, release, folder, python, log, watch)
        except PipFailed as error:
            python = _other_python(package, release, error, log)
            tell(f"{requirement} has no wheel for this Python; using {python}.")
            _try(package, release, folder, python, log, watch)
        (folder / COMPLETE).touch()
    except PipFailed as error:
        raise SetupError(
            f"{requirement} could not be installed: {error}.\n  full output  {log}"
        ) from None
    finally:
        if not (folder / COMPLETE).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def _try(
    package: Package, release: str, folder: Path, python: str, log: Path, watch: Watch
) -> None:
    log.write_bytes(b"")
    shutil.rmtree(folder, ignore_errors=True)
    packages = (f"{package.name}=={release}", *package.dependencies)
    make_small_environment(folder, python, packages, log, watch)


def _other_python(package: Package, release: str, error: PipFailed, log: Path) -> str:
    """Another Python on this machine that has a wheel of the release.

    Raises :class:`SetupError` if there is none, or if the failure has another reason.
    """
    versions = pythons_with_a_wheel(package, release, pythons.VERSIONS)
    requirement = f"{package.name}=={release}"
    if not versions:
        listing = f"{shlex.quote(sys.executable)} -m pip index versions {package.name}"
        raise SetupError(
            f"{requirement} could not be installed: {error}.\n"
            f"  full output        {log}\n"
            f"  list all releases  {listing}",
            listing,
        )
    if f"{sys.version_info.major}.{sys.version_info.minor}" in versions:
        raise error
    found = next(pythons.pythons_for(versions), None)
    if found is None:
        raise SetupError(
            f"{requirement} has wheels for Python {', '.join(versions)}, and none of these is on "
            f"this machine.\n  install one  uv python install {versions[-1]}"
        )
    return found
