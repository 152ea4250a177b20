"""Errors of results and their files."""

from __future__ import annotations


class ResultsError(Exception):
    """There is no result, or a results file cannot be written or read; the message says why."""


def cause_of(error: Exception) -> str:
    """The operating system's message for the error, or else the error's own message."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
