"""Which releases of a package its registry has, as pip, npm and cargo say.

Their own configuration says which registry that is. The answer is kept for a day in the cache
folder, and for longer where the registry cannot be asked.
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
from conformance.targets.setup.cargo import find_cargo
from conformance.targets.setup.npm import find_npm
from conformance.targets.setup.pip import pip_command

#: Time for which an answer is not asked for again, in seconds.
_FRESH: Final = 24 * 3600.0

#: Time limit for a program to answer, in seconds.
_TO_ANSWER: Final = 60.0

#: The Python versions whose wheels count: an interpreter sees only releases with a wheel for it.
_PYTHONS: Final = tuple(f"3.{minor}" for minor in range(10, max(14, sys.version_info.minor) + 1))

_AVAILABLE: Final = re.compile(r"^Available versions: (.+)$", re.MULTILINE)


def published(package: Package) -> Sequence[str]:
    """All versions in the registry, in no particular order.

    Raises :class:`TargetError` if the registry cannot be asked and no earlier answer is kept.
    """
    kept = cache_root() / "releases" / f"{package.manager}-{package.name}.json"
    with suppress(OSError, ValueError):
        if 0 <= time.time() - kept.stat().st_mtime < _FRESH:
            return _read(kept)
    try:
        versions = list(dict.fromkeys(_ASK[package.manager](package)))
        if not versions:
            raise _NoAnswer("it lists none")
    except _NoAnswer as why:
        with suppress(OSError, ValueError):
            return _read(kept)
        raise TargetError(
            f"Cannot ask {package.manager} for the releases of {package.name}: {why}. Name one "
            "release instead, such as one that 'gqa env' lists as installed."
        ) from None
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as file:
            file.write(json.dumps(versions).encode())
    return versions


class _NoAnswer(Exception):
    """The registry cannot be asked; the message says why, as half a sentence."""


def _read(kept: Path) -> list[str]:
    found = json.loads(kept.read_bytes())
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("not a list of versions")
    return found


def _ask_pip(package: Package) -> Iterator[str]:
    """What pip lists for each version of Python; releases without a wheel do not count."""
    answers = _of_pythons(package, _PYTHONS)
    lists = [answer for answer in answers if not isinstance(answer, _NoAnswer)]
    if not lists:
        raise next(answer for answer in answers if isinstance(answer, _NoAnswer))
    return (version for versions in lists for version in versions)


def pythons_with_a_wheel(package: Package, release: str, pythons: Sequence[str]) -> list[str]:
    """Those of the ``pythons`` (``3.10``) for which the registry has a wheel of the release.

    None of them if pip, or its registry, does not answer.
    """
    answers = zip(pythons, _of_pythons(package, pythons), strict=True)
    return [
        python
        for python, answer in answers
        if not isinstance(answer, _NoAnswer) and release in answer
    ]


def _of_pythons(package: Package, pythons: Sequence[str]) -> list[Sequence[str] | _NoAnswer]:
    """The answer for each version of Python; pip takes a second for each."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda each: _of_python(package, each), pythons))


def _of_python(package: Package, python: str) -> Sequence[str] | _NoAnswer:
    pip = pip_command()
    if pip is None:
        return _NoAnswer(f"neither pip of {sys.executable} nor uv is there")
    options = ("--python-version", python, "--only-binary=:all:", "--pre")
    try:
        said = _said((*pip, "index", "versions", package.name, *options))
    except _NoAnswer as why:
        return why
    found = _AVAILABLE.search(said)
    return found[1].split(", ") if found else ()


def _ask_npm(package: Package) -> Iterator[str]:
    npm = find_npm()
    if npm is None:
        raise _NoAnswer("npm is not installed")
    try:
        found = json.loads(_said((npm, "view", "--global", package.name, "versions", "--json")))
    except ValueError:
        raise _NoAnswer("npm's answer is no JSON") from None
    yield from (str(version) for version in (found if isinstance(found, list) else [found]))


def _ask_cargo(package: Package) -> Iterator[str]:
    """The newest release, then the newest before that, and so on, as cargo resolves them.

    Cargo has no command that lists them.
    """
    cargo = find_cargo()
    if cargo is None:
        raise _NoAnswer("cargo is not installed")
    names = [name for name in (package.name, package.former_name) if name]
    before = ""
    with tempfile.TemporaryDirectory(prefix="gqa-") as folder:
        while names and before != package.oldest:
            try:
                before = _resolved(cargo, Path(folder), names[0], before)
            except _NoAnswer:
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
    """What a program prints. Raises `_NoAnswer`."""
    try:
        done = ask(command, _TO_ANSWER)
    except subprocess.TimeoutExpired:
        raise _NoAnswer(f"no answer within {_TO_ANSWER:.0f} s") from None
    except OSError as error:
        raise _NoAnswer(f"{command[0]} does not start: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        if "Retrying" in said:  # pip then says that the package has no versions
            raise _NoAnswer("its registry does not answer")
        last = said.rpartition("\n")[2].strip().removeprefix("ERROR: ").rstrip(".")
        raise _NoAnswer(last or "it failed without a message")
    return done.stdout.decode(errors="replace")


_ASK: Final[Mapping[str, Callable[[Package], Iterable[str]]]] = {
    "pip": _ask_pip,
    "npm": _ask_npm,
    "cargo": _ask_cargo,
}
