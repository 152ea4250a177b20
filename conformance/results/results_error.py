"""Errors of results files."""

from __future__ import annotations


class ResultsError(Exception):
    """A results file cannot be written or read; the message is a sentence."""


def cause_of(error: Exception) -> str:
    """The operating system's message for the error, or else the error's own message."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
