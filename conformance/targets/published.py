"""Which releases of a package its registry has, as pip, npm and cargo say.

Their own configuration says which registry that is. The answer is kept for a day in the cache
folder.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
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
from conformance.targets.catalogue import Package, TargetError
from conformance.targets.setup.programs import find_cargo, find_npm, pip_command

#: Time for which an answer is not asked for again, in seconds.
_FRESH: Final = 24 * 3600.0

#: Time limit for a program to answer, in seconds.
_TO_ANSWER: Final = 60.0

#: The Python versions whose wheels count: an interpreter sees only releases with a wheel for it.
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(10, max(14, sys.version_info.minor) + 1))

_AVAILABLE: Final = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def published(package: Package) -> Sequence[str]:
    """All versions in the registry, in no particular order.

    Raises :class:`TargetError` if the registry cannot be asked.
    """
    kept = cache_root() / "releases" / f"{package.manager}-{package.name}"
    with suppress(OSError):
        if 0 <= time.time() - kept.stat().st_mtime < _FRESH:
            return kept.read_text().split()
    try:
        versions = list(dict.fromkeys(_ASK[package.manager](package)))
        if not versions:
            raise NoAnswer("it lists none")
    except NoAnswer as why:
        raise TargetError(
            f"Cannot ask {package.manager} for the releases of {package.name}: {why}. Name one "
            "release instead, such as one that 'gqa setup --releases' lists."
        ) from None
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            file.write("\n".join(versions).encode())
    return versions


class NoAnswer(Exception):
    """The registry cannot be asked; the message says why, as half a sentence."""


def pip_lists(package: Package) -> dict[str, Sequence[str]]:
    """The releases that have a wheel for each version of Python (``3.10``).

    Raises :class:`NoAnswer` if pip lists none for any of them.
    """
    pip = pip_command()
    if pip is None:
        raise NoAnswer(f"neither pip of {sys.executable} nor uv is there")

    def ask_about(python: str) -> Sequence[str] | NoAnswer:
        options = ("--python-version", python, "--only-binary=:all:", "--pre")
        try:
            found = _AVAILABLE.search(_said((*pip, "index", "versions", package.name, *options)))
        except NoAnswer as why:
            return why
        return found[1].split(", ") if found else ()

    with ThreadPoolExecutor(2) as threads:  # pip takes a second for each
        answers = dict(zip(_PYTHONS, threads.map(ask_about, _PYTHONS), strict=True))
    lists = {key: each for key, each in answers.items() if not isinstance(each, NoAnswer)}
    if not lists:
        raise next(each for each in answers.values() if isinstance(each, NoAnswer))
    return lists


def _ask_pip(package: Package) -> Iterator[str]:
    return (each for versions in pip_lists(package).values() for each in versions)


def _ask_npm(package: Package) -> Iterator[str]:
    npm = find_npm()
    if npm is None:
        raise NoAnswer("npm is not installed")
    try:
        found = json.loads(_said((npm, "view", "--global", package.name, "versions", "--json")))
    except ValueError:
        raise NoAnswer("npm's answer is no JSON") from None
    yield from (str(version) for version in (found if isinstance(found, list) else [found]))


def _ask_cargo(package: Package) -> Iterator[str]:
    """The newest release, then the newest before that, and so on, as cargo resolves them.

    Cargo has no command that lists them.
    """
    cargo = find_cargo()
    if cargo is None:
        raise NoAnswer("cargo is not installed")
    names = [name for name in (package.name, package.former_name) if name]
    before = ""
    with tempfile.TemporaryDirectory(prefix="gqa-") as folder:
        while names and before != package.oldest:
            try:
                before = _resolved(cargo, Path(folder), names[0], before)
            except NoAnswer:
                if not before:
                    raise
                names.pop(0)
            else:
                yield before


def _resolved(cargo: str, folder: Path, crate: str, before: str) -> str:
    """The newest release of ``crate``, of those before ``before`` if that is given."""
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "asks"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies]\n{crate} = "{f"<{before}" if before else "*"}"\n'
    )
    _said((cargo, "generate-lockfile", "--quiet", "--manifest-path", f"{folder}/Cargo.toml"))
    lock = tomllib.loads((folder / "Cargo.lock").read_text())
    return next(str(each["version"]) for each in lock["package"] if each["name"] == crate)


def _said(command: Sequence[str]) -> str:
    """What a program prints. Raises `NoAnswer`."""
    try:
        done = ask(command, _TO_ANSWER)
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"no answer within {_TO_ANSWER:.0f} s") from None
    except OSError as error:
        raise NoAnswer(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if "Retrying" in said:  # pip then says that the package has no versions
            raise NoAnswer("its registry does not answer")
        last = said.rpartition("\n")[2].strip().removeprefix("ERROR: ").rstrip(".")
        raise NoAnswer(last or "it failed without a message")
    return done.stdout.decode(errors="replace")


_ASK: Final[Mapping[str, Callable[[Package], Iterable[str]]]] = {
    "pip": _ask_pip,
    "npm": _ask_npm,
    "cargo": _ask_cargo,
}
