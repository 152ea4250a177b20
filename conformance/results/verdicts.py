"""The verdicts, worst first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

Verdict = Literal[
    "crash", "timeout", "wrong", "accepted", "fallback", "unsupported", "pass", "skip"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Worst first."""
_BADNESS = {verdict: rank for rank, verdict in enumerate(VERDICTS)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of ``verdicts``; ``ValueError`` if there are none."""
    return min(verdicts, key=_BADNESS.__getitem__)
