"""Where the suite's data lies: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_INSTALLED = PACKAGE / "data"
ROOT = _INSTALLED if _INSTALLED.is_dir() else PACKAGE.parent


def data_path(name: str) -> Path:
    """The folder ``name`` (``cases``, ``runners``, ``expectations`` or ``reports``)."""
    return ROOT / name


def shown(path: Path) -> str:
    """``path`` as a person would type it: relative to the current folder where it lies below it."""
    try:
        return path.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.as_posix()
