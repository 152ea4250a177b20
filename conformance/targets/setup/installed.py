"""Installs releases of targets, each into its own folder below that of the tools.

A release in ``--ep cpu@1.25.1`` is installed when it is first used.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.targets.catalogue import ONNXRUNTIME_GPU, Package, entry_of
from conformance.targets.registry import Target
from conformance.targets.setup.onnxruntime_web import set_up_onnxruntime_web
from conformance.targets.setup.programs import SetupError, Tell
from conformance.targets.setup.python_packages import has_driver, set_up_python_package
from conformance.targets.setup.tract import set_up_tract


def with_release(target: Target, tell: Tell) -> Target:
    """The target, after installing the release to which it is pinned, if it is pinned.

    If that fails, `Target.missing` says why, so that other targets can still run.
    """
    entry = entry_of(target.ep)
    if target.release is None or target.missing or entry is None or entry.package is None:
        return target
    if entry.package.installed_file(target.release).is_file():
        return target
    again = f"gqa setup {target.typed}"
    if entry.package is ONNXRUNTIME_GPU and not has_driver():
        why = f"{target.typed} is not installed, and there is no NVIDIA driver to run it"
        return replace(target, missing=SetupError(why, again))
    try:
        install(entry.package, target.release, tell)
    except SetupError as error:
        return replace(target, missing=SetupError(str(error), error.fix or again))
    return target


def install(package: Package, release: str, tell: Tell) -> bool:
    """Install a release of a package, unless it is installed; whether it did.

    Raises :class:`SetupError`.
    """
    match package.manager:
        case "npm":
            return set_up_onnxruntime_web(release, tell)
        case "cargo":
            return set_up_tract(release, tell)
        case "pip":
            return set_up_python_package(package, release, tell)
