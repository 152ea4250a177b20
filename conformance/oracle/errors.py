"""The oracle's error for calls without a defined meaning."""

from __future__ import annotations


class OracleError(ValueError):
    """The call has no defined meaning; the message is one sentence with the reason."""
