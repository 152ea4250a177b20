"""The releases that are installed: each in a folder of its own below that of the tools.

A release that ``--ep cpu@1.25.1`` names is installed when it is first used. ``gqa setup
--releases`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.targets.catalogue import ONNXRUNTIME_GPU, TARGETS, Package, entry_of
from conformance.targets.registry import NotInstalled, Target
from conformance.targets.setup.onnxruntime_web import set_up_onnxruntime_web
from conformance.targets.setup.programs import NoRelease, Ready, SetupError, Tell
from conformance.targets.setup.python_packages import has_driver, set_up_python_package
from conformance.targets.setup.tract import set_up_tract
from conformance.targets.tools import tools_root


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
        name = package.folder("").name
        for folder in tools_root().glob(f"{name}[0-9]*"):
            release = folder.name.removeprefix(name)
            if is_installed(package, release):
                yield Installed(package, release, folder)


def is_installed(package: Package, release: str) -> bool:
    """Whether the release is there and complete; no program is started."""
    return package.installed_file(release).is_file()


def with_release(target: Target, tell: Tell) -> Target:
    """The target, after the release that it is pinned to is installed, if it is pinned.

    Where the release cannot be installed, the target says why (`Target.missing`), so that others
    can run.
    """
    entry = entry_of(target.ep)
    if target.release is None or target.missing or entry is None or entry.package is None:
        return target
    if is_installed(entry.package, target.release):
        return target
    again = f"gqa setup {target.typed}"
    if entry.package is ONNXRUNTIME_GPU and not has_driver():
        why = f"{target.typed} is not installed, and there is no NVIDIA driver to run it"
        return replace(target, missing=NotInstalled(why, again))
    try:
        install(entry.package, target.release, tell)
    except (SetupError, NoRelease) as error:
        fix = error.fix if isinstance(error, SetupError) else None
        return replace(target, missing=NotInstalled(str(error), fix or again))
    return target


def install(package: Package, release: str, tell: Tell) -> Ready:
    """Install the release of the package, unless it is installed.

    Raises :class:`SetupError`, and :class:`NoRelease` for one that the package cannot have.
    """
    match package.manager:
        case "npm":
            return set_up_onnxruntime_web(release, tell)
        case "cargo":
            return set_up_tract(release, tell)
        case "pip":
            return set_up_python_package(package, release, tell)
