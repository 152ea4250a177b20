"""Words in sentences for people."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shortened(text: str) -> str:
    """``text`` as a message quotes it: its first 79 characters, if it has more than 80."""
    return text if len(text) <= 80 else f"{text[:79]}…"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
