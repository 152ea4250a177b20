"""Tables of tests, as YAML beside them: ``history.yaml`` of ``test_history.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def tables(test: str) -> dict[str, Any]:
    """The tables of a module, given its ``__file__``, by their names."""
    file = Path(test)
    beside = file.with_name(f"{file.stem.removeprefix('test_')}.yaml")
    found: dict[str, Any] = yaml.safe_load(beside.read_text(encoding="utf-8"))
    return found
