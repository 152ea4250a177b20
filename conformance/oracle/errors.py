"""Why the oracle has no answer for a call."""

from __future__ import annotations


class OracleError(ValueError):
    """The call has no defined meaning; the message is one sentence saying why."""


class NotComputed(OracleError):
    """The call has a meaning, but the oracle does not compute this feature yet.

    Attributes:
        feature: the feature's name, e.g. ``"quantised cache"``.
    """

    def __init__(self, feature: str, found: str) -> None:
        super().__init__(f"The oracle does not compute the {feature} yet ({found}).")
        self.feature = feature
