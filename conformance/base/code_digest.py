"""A digest of code, for what is kept only as long as the code that made it is the same."""

from __future__ import annotations

import hashlib
from functools import cache

from conformance.base.paths import PACKAGE


@cache
def digest_of_code(*packages: str) -> str:
    """The digest of all modules in these packages of the suite."""
    digest = hashlib.sha256()
    for name in packages:
        for file in sorted((PACKAGE / name).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
