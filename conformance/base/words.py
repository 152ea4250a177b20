"""Words in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def not_run(cases: int) -> str:
    """``1 case was not run``, ``7,701 cases were not run``."""
    return "1 case was not run" if cases == 1 else f"{cases:,} cases were not run"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
