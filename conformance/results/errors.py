"""Errors of results files."""

from __future__ import annotations


class ResultsError(Exception):
    """A results file cannot be written or read; one sentence says why."""


def cause_of(error: Exception) -> str:
    """The operating system's words for the error; else those of the error itself."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
