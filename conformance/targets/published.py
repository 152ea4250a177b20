"""Asks pip, npm and cargo which releases of a package their registry has.

Their own configuration says which registry that is. Answers are cached for a day.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from conformance.base.files import replacing
from conformance.base.paths import cache_root
from conformance.base.processes import ask
from conformance.harness.folders import temporary_folder
from conformance.targets.catalogue import Package, TargetError
from conformance.targets.setup.programs import find_cargo, find_npm, pip_command
from conformance.targets.tools import tools_root

#: The time for which an answer is cached, in seconds.
_FRESH: Final = 24 * 3600.0

#: The time limit for an answer, in seconds.
_TO_ANSWER: Final = 60.0

#: The Python versions for which pip is asked: it lists only releases with a wheel for the version.
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(10, max(14, sys.version_info.minor) + 1))

_AVAILABLE: Final = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def published(package: Package) -> Sequence[str]:
    """All versions of a package in its registry, in no particular order.

    Raises :class:`TargetError` if the registry cannot be asked.
    """
    kept = cache_root() / "releases" / f"{package.manager}-{package.name}"
    with suppress(OSError):
        if 0 <= time.time() - kept.stat().st_mtime < _FRESH:
            return kept.read_text().split()
    try:
        versions = list(dict.fromkeys(_ASK[package.manager](package)))
        if not versions:
            raise RegistryError("it lists none")
    except RegistryError as why:
        raise TargetError(
            f"Cannot ask {package.manager} for the releases of {package.name}: {why}. Name one "
            f"release instead, such as one that has a folder in {tools_root()}."
        ) from None
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            file.write("\n".join(versions).encode())
    return versions


class RegistryError(Exception):
    """The registry cannot be asked; the message is half a sentence that says why."""


def pip_lists(package: Package) -> dict[str, Sequence[str]]:
    """The releases with a wheel, by version of Python (``3.10``).

    Raises :class:`RegistryError` if pip cannot list them for any version.
    """
    pip = pip_command()
    if pip is None:
        raise RegistryError(f"neither pip of {sys.executable} nor uv is there")

    def ask_about(python: str) -> Sequence[str] | RegistryError:
        options = ("--python-version", python, "--only-binary=:all:", "--pre")
        try:
            match = _AVAILABLE.search(_output((*pip, "index", "versions", package.name, *options)))
        except RegistryError as why:
            return why
        return match[1].split(", ") if match else ()

    with ThreadPoolExecutor(2) as threads:  # pip takes a second for each
        answers = dict(zip(_PYTHONS, threads.map(ask_about, _PYTHONS), strict=True))
    lists = {key: each for key, each in answers.items() if not isinstance(each, RegistryError)}
    if not lists:
        raise next(each for each in answers.values() if isinstance(each, RegistryError))
    return lists


def _ask_pip(package: Package) -> Iterator[str]:
    return (each for versions in pip_lists(package).values() for each in versions)


def _ask_npm(package: Package) -> Iterator[str]:
    npm = find_npm()
    if npm is None:
        raise RegistryError("npm is not installed")
    try:
        answer = json.loads(_output((npm, "view", "--global", package.name, "versions", "--json")))
    except ValueError:
        raise RegistryError("npm's answer is no JSON") from None
    yield from map(str, answer if isinstance(answer, list) else [answer])


def _ask_cargo(package: Package) -> Iterator[str]:
    """The releases from the newest to the oldest. Cargo has no command that lists them, so it is
    asked to resolve the newest release, then the newest before that, and so on.
    """
    cargo = find_cargo()
    if cargo is None:
        raise RegistryError("cargo is not installed")
    names = [name for name in (package.name, package.former_name) if name]
    before = ""
    with temporary_folder() as folder:
        while names and before != package.oldest:
            try:
                before = _resolved(cargo, folder, names[0], before)
            except RegistryError:
                if not before:
                    raise
                names.pop(0)
            else:
                yield before


def _resolved(cargo: str, folder: Path, crate: str, before: str) -> str:
    """The newest release of ``crate`` that is older than ``before``; "": the newest of all."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "asks"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies]\n{crate} = "{f"<{before}" if before else "*"}"\n'
    )
    _output((cargo, "generate-lockfile", "--quiet", "--manifest-path", f"{folder}/Cargo.toml"))
    lock = tomllib.loads((folder / "Cargo.lock").read_text())
    return next(str(each["version"]) for each in lock["package"] if each["name"] == crate)


def _output(command: Sequence[str]) -> str:
    """The output of a command. Raises `RegistryError`."""
    try:
        done = ask(command, _TO_ANSWER)
    except subprocess.TimeoutExpired:
        raise RegistryError(f"no answer within {_TO_ANSWER:.0f} s") from None
    except OSError as error:
        raise RegistryError(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        if "Retrying" in message:  # pip then says that the package has no versions
            raise RegistryError("its registry does not answer")
        last = message.rpartition("\n")[2].strip().removeprefix("ERROR: ").rstrip(".")
        raise RegistryError(last or "it failed without a message")
    return done.stdout.decode(errors="replace")


_ASK: Final[Mapping[str, Callable[[Package], Iterable[str]]]] = {
    "pip": _ask_pip,
    "npm": _ask_npm,
    "cargo": _ask_cargo,
}
