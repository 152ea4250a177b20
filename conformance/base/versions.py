"""The order of versions of any kind of package."""

from __future__ import annotations

import re

from packaging.version import Version


def ordered_version(version: str) -> Version | None:
    """A key to sort versions by; None for a text that is not a version.

    A version of npm such as ``1.31.0-dev.20261101-0a1b2c3`` sorts before 1.31.0.
    """
    try:
        found = re.sub(r"-dev\.(\d+).*", r".dev\1", version)
        return Version(re.sub(r"(?<=\d)-dev\b.*", ".dev0", found))
    except ValueError:  # InvalidVersion, or thousands of digits
        return None


def release_key(version: str) -> tuple[bool, Version]:
    """A sort key by version; texts that are not a version come first, in the order given."""
    ordered = ordered_version(version)
    return ordered is not None, ordered or Version("0")
