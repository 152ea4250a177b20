"""Runs npm to install packages: progress, interruption, errors.

npm's own configuration says which registry it uses.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from conformance.targets.setup.build_process import run_logged, shortened, without_words

_ERROR: Final = re.compile(r"npm (?:error|ERR!) ?(.*)")
#: Lines that give details of an error, and prefixes of its message.
_FIELD: Final = re.compile(r"(?:code|syscall|errno|path|dest) ")
_ABOUT: Final = re.compile(r"^(?:notarget|network|[A-Za-z]*Error:) ")
#: A file of a package could not be written. npm prints only a warning and exits with 0.
_NOT_WRITTEN: Final = re.compile(r"npm (?:warn|WARN) tar TAR_ENTRY_ERROR (.*)")

#: Scripts of packages do not run: what they download or build is not needed here. Warnings are
#: needed, whatever the user has configured.
_OPTIONS: Final = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=warn")
_PLAIN: Final = {
    "npm_config_color": "false",
    "npm_config_progress": "false",
    "npm_config_update_notifier": "false",
}

#: Called with the seconds since npm's start.
Watch = Callable[[float], None]


class NpmFailed(Exception):
    """Npm did not start or failed; the message says why, mostly in npm's words.

    ``code`` is npm's error code, such as ETARGET, or None.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def find_npm() -> str | None:
    """The path of npm, from PATH or else beside this interpreter; None if there is none."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("npm") or shutil.which("npm", path=beside)
    return os.path.abspath(found) if found else None


def locked_command(npm: str) -> tuple[str, ...]:
    """The command that installs exactly what package-lock.json names."""
    return (npm, "ci", *_OPTIONS)


def install_command(npm: str, package: str, version: str) -> tuple[str, ...]:
    """The command that installs this release and the other packages of package.json."""
    return (npm, "install", *_OPTIONS, "--save-exact", f"{package}@{version}")


def lock_command(npm: str) -> tuple[str, ...]:
    """The command that writes package-lock.json for package.json, without a registry's address."""
    return (npm, "install", *_OPTIONS, "--package-lock-only", "--omit-lockfile-registry-resolved")


def run_npm(command: tuple[str, ...], folder: Path, log: Path, watch: Watch) -> None:
    """Run ``command`` in ``folder`` to its end and write all its output to ``log``.

    Raises :class:`NpmFailed`, also where npm reports success but left out files. An exception, such
    as an interrupt, also ends npm.
    """
    log.write_bytes(b"")
    try:
        status, said = run_logged(command, folder, log, _PLAIN, lambda _, since: watch(since))
    except OSError as error:
        raise NpmFailed(f"{command[0]} does not start: {error.strerror}") from None
    text = said.decode(errors="replace")
    if status or _NOT_WRITTEN.search(text):
        raise why_it_failed(text, status)


def why_it_failed(text: str, status: int) -> NpmFailed:
    """The most informative line of npm's output, with its error code."""
    if lost := _NOT_WRITTEN.search(text):
        return NpmFailed(shortened(lost[1]), lost[1].partition(":")[0])
    errors = [found[1].strip() for line in text.splitlines() if (found := _ERROR.match(line))]
    code = next((line.removeprefix("code ") for line in errors if line.startswith("code ")), None)
    told = [line for line in errors if line and not _FIELD.match(line)]
    if not told:
        return NpmFailed(without_words(text, status), code)
    return NpmFailed(shortened(_ABOUT.sub("", told[0]).rstrip(".")), code)
