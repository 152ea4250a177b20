"""What goes wrong with results files."""

from __future__ import annotations


class ResultsError(Exception):
    """A results file that cannot be written or read: one sentence for the person who ran it."""


def cause_of(error: Exception) -> str:
    """What the system says of it, in a few words; else what the error says itself."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
