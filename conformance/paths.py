"""Where the suite's data lies, beside the package or inside it, and which files are case files."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_INSTALLED = PACKAGE / "data"
_MARKER = re.compile(r"^format\s*:\s*[\"']?gqa-cases\b", re.MULTILINE)
ROOT = _INSTALLED if _INSTALLED.is_dir() else PACKAGE.parent


def data_path(name: str) -> Path:
    """The folder ``name`` (``cases``, ``runners``, ``expectations``, ``reports`` or ``docs``)."""
    return ROOT / name


def shown(path: Path) -> str:
    """``path`` as a person would type it: relative to the current folder where it lies below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()


def is_case_file(path: Path) -> bool:
    """Whether ``path`` says of itself that it holds cases (``format: gqa-cases/…``)."""
    try:
        with path.open("rb") as file:
            return bool(_MARKER.search(file.read(1 << 16).decode("utf-8-sig", "replace")))
    except OSError:
        return False
