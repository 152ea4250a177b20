"""Makes virtual environments and installs packages into them: progress, interruption, errors.

With venv and pip, or with uv where Python comes without them. Their own configuration says which
index they use.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from conformance.targets.setup.build_process import run_logged, shortened, without_words
from conformance.targets.tools import python_in

#: A step of pip: what it looks up, downloads, or takes from its cache; and the last one.
_STEP: Final = re.compile(
    r" *(?:(Collecting|Downloading|Using) (?:cached )?([A-Za-z_]\w*(?:-[A-Za-z]\w*)*)\S*"
    r"(?: (\([^)]*\)))?.*|(Installing) collected packages.*)"
)
_ERROR: Final = re.compile(r"^(?:ERROR: |error: | *× )(.*(?:\n *╰─▶ .*)?)", re.MULTILINE)

#: One plain line for each step, whatever the user has configured; into the environment and into no
#: other place; and no packages of another environment in place of those.
_PLAIN: Final = {
    "PIP_PROGRESS_BAR": "off",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_COLOR": "1",
    "PIP_USER": "0",
    "PYTHONPATH": "",
    "NO_COLOR": "1",
    "UV_NO_PROGRESS": "1",
}

#: Called with what is being done and the seconds since its start.
Watch = Callable[[str, float], None]


class PipFailed(Exception):
    """A program did not start or failed; the message says why, mostly in its own words."""


def can_make_environments() -> bool:
    """Whether venv or uv is there; Debian's Python has venv only in part, without its package."""
    return importlib.util.find_spec("ensurepip") is not None or shutil.which("uv") is not None


def pip_command() -> tuple[str, ...] | None:
    """The command of this Python's pip, or that by which uv runs pip; None without either."""
    if importlib.util.find_spec("pip") is not None:
        return (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
    if shutil.which("uv") is not None:
        return ("uv", "tool", "run", "pip", "--disable-pip-version-check", "--no-input")
    return None


def make_small_environment(
    folder: Path, python: str, packages: tuple[str, ...], log: Path, watch: Watch
) -> None:
    """Make a virtual environment of ``python`` in ``folder`` with these packages alone.

    With uv if it is there; where that fails, as it is configured apart from pip, and without it,
    with venv and this Python's pip. Neither what the packages require nor pip is installed, which
    takes most of the time. Raises :class:`PipFailed`, as :func:`make_environment` does.
    """
    into = ("--python", str(python_in(folder)))
    make: tuple[str, ...]
    ways: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    if shutil.which("uv") is not None:
        make = ("uv", "venv", "--no-project", "--python", python, str(folder))
        ways.append((make, ("uv", "pip", "install", *into, "--no-deps", *packages)))
    if (pip := pip_command()) is not None:
        make = (python, "-m", "venv", "--without-pip", str(folder))
        ways.append((make, (*pip, *into, "install", "--no-deps", "--no-compile", *packages)))
    for number, (make, install) in enumerate(ways, start=1):
        try:
            _run(make, log, "making the environment", watch)
            _run(install, log, "starting pip", watch)
            return
        except PipFailed:
            if number == len(ways):
                raise
            shutil.rmtree(folder, ignore_errors=True)
    raise PipFailed(f"neither pip of {sys.executable} nor uv is installed")


def make_environment(folder: Path, packages: tuple[str, ...], log: Path, watch: Watch) -> None:
    """Make a virtual environment of this Python in ``folder`` with these packages.

    All output is written to ``log``. Raises :class:`PipFailed`. An exception, such as an interrupt,
    also ends what was started.
    """
    python = str(python_in(folder))
    if importlib.util.find_spec("ensurepip") is not None:
        make: tuple[str, ...] = (sys.executable, "-m", "venv", str(folder))
        install: tuple[str, ...] = (python, "-m", "pip", "install", *packages)
    else:
        make = ("uv", "venv", "--python", sys.executable, str(folder))
        install = ("uv", "pip", "install", "--python", python, *packages)
    for command, doing in ((make, "making the environment"), (install, "starting pip")):
        _run(command, log, doing, watch)


def _run(command: tuple[str, ...], log: Path, doing: str, watch: Watch) -> None:
    def tell(said: bytes, seconds: float) -> None:
        watch(step_of(said.decode(errors="replace")) or doing, seconds)

    try:
        status, said = run_logged(command, None, log, _PLAIN, tell)
    except OSError as error:
        raise PipFailed(f"{command[0]} does not start: {error.strerror}") from None
    if status:
        raise PipFailed(why_it_failed(said.decode(errors="replace"), status))


def step_of(text: str) -> str:
    """The last step in pip's output, such as "pip: downloading numpy (15.7 MB)"; empty without."""
    steps = [found for line in text.splitlines() if (found := _STEP.fullmatch(line))]
    if not steps:
        return ""
    doing, what, size, last = steps[-1].groups()
    if last:
        return "pip: installing"
    return " ".join(filter(None, (f"pip: {doing.lower()} {what}", size)))


def why_it_failed(text: str, status: int) -> str:
    """The last error in the output, which says most; else its last line."""
    errors = [re.sub(r"\s+(?:╰─▶ )?", " ", found[1]) for found in _ERROR.finditer(text)]
    return shortened(errors[-1].strip().rstrip(".")) if errors else without_words(text, status)
