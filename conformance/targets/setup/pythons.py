"""Finds other versions of Python on this machine, for releases that have no wheel for this one."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.base.processes import ask

#: Time limit for an interpreter to start, in seconds.
_TO_START: Final = 20.0

#: The versions that are tried, oldest first.
VERSIONS: Final = tuple(f"3.{minor}" for minor in range(8, 16))


def pythons_for(versions: Sequence[str]) -> Iterator[str]:
    """Interpreters of these versions (``3.10``): in PATH, of uv and of pyenv; those that start."""
    for version in reversed(versions):
        for path in _candidates(version):
            if _version_of(path) == version:
                yield path
                break


def _candidates(version: str) -> Iterator[str]:
    if (found := shutil.which(f"python{version}")) is not None:
        yield os.path.abspath(found)
    if (uv := shutil.which("uv")) is not None:
        done = _run((uv, "python", "find", "--no-python-downloads", "--system", version))
        if done:
            yield done
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    inside = os.path.join(glob.escape(pyenv), "versions", f"{version}.*", "bin", "python")
    yield from sorted(glob.glob(inside), key=_patch, reverse=True)


def _patch(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


def _version_of(python: str) -> str:
    """``3.10``, as the interpreter says; empty if it does not start or cannot make environments."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    return _run((python, "-I", "-c", code)) if python != sys.executable else ""


def _run(command: Sequence[str]) -> str:
    """The line that a program prints; empty if it fails."""
    try:
        done = ask(command, _TO_START)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
