"""Words in sentences for people."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
