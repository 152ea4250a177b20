"""Why the oracle has no answer for a call."""

from __future__ import annotations


class OracleError(ValueError):
    """The call has no defined meaning; the message is one sentence saying why."""
