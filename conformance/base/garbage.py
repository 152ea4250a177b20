"""When Python looks for garbage."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Look for garbage seldom from now on, in a process that makes very many objects which stay.

    A search would visit all of them again and again: reading 7,000 results takes 1.3 s instead of
    3 s. Arrays and records are freed without one.
    """
    gc.set_threshold(50_000, 50, 100)
