"""The locations of the suite's data and cache, and the test for case files."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import platformdirs

from conformance.base.files import open_plain
from conformance.base.text import visible

#: The environment variable that names the cache folder.
CACHE_VARIABLE: Final = "GQA_CACHE"

#: The subfolder of the cache in which drivers keep compiled shaders.
SHADERS: Final = "shaders"


#: The endings of the names of case files.
CASE_FILE_ENDINGS: Final = (".yaml", ".yml")

PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = PACKAGE / "data"
_MARKER = re.compile(r"^format\s*:\s*[\"']?gqa-cases\b", re.MULTILINE)
#: Whether the package was installed from a wheel: its data is inside it, and there is no checkout.
INSTALLED: Final = _INSTALLED.is_dir()
ROOT = _INSTALLED if INSTALLED else PACKAGE.parent


#: The folder of case files that are run by name only, in that of the cases.
PROFILES: Final = "profiles"


def data_path(name: str) -> Path:
    """The folder ``name`` (``cases``, ``runners``, ``expectations``, ``reports`` or ``docs``)."""
    return ROOT / name


def file_to_write(name: str) -> Path:
    """The file ``name`` of the checkout, for a command that generates it.

    Raises :class:`SystemExit` with one sentence if there is no checkout: an installed package is
    never changed.
    """
    if INSTALLED:
        raise SystemExit(f"{name} can only be written in a checkout of the project.")
    return ROOT / name


def cache_root() -> Path:
    """The cache folder: ``$GQA_CACHE``, or the platform's user cache. It can be deleted safely."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).absolute() if named else platformdirs.user_cache_path("gqa-conformance")


def shown(path: Path) -> str:
    """``path`` as a user would type it, on one line: relative if it is below the current folder."""
    with suppress(ValueError, OSError):  # elsewhere, or there is no current folder any more
        path = path.relative_to(Path.cwd())
    return visible(path.as_posix())


def is_case_file(path: Path) -> bool:
    """Whether ``path`` has the ``format: gqa-cases/…`` line of a case file, in any version."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            return bool(_MARKER.search(file.read(1 << 16).decode("utf-8-sig", "replace")))
    except OSError:
        return False


def is_of_case_file(argument: str) -> bool:
    """Whether an argument of pytest, ``FILE`` or ``FILE::name``, names a case file."""
    path = Path(argument.partition("::")[0])
    return path.suffix in CASE_FILE_ENDINGS and is_case_file(path)
