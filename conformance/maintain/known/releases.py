"""Ranges of versions that separate the releases that were tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from conformance.targets.releases import is_in_range, ordered_version

_BOUND = re.compile(r"\s*(>=|<=|>|<)\s*[^,\s]+\s*")


@dataclass(frozen=True)
class Releases:
    """The releases that were tried, oldest first; a release is named by its place, from 0."""

    versions: tuple[str, ...]
    """As results name them."""

    def before(self, place: int) -> str:
        """The shortest version between release ``place - 1`` and release ``place``, or equal to the
        latter: ``1.31`` between 1.30.2 and 1.31.1. Before the oldest, its first two numbers."""
        version = ordered_version(self.versions[place])
        assert version is not None
        for parts in range(2, len(version.release) + 1):
            bound = ".".join(map(str, version.release[:parts]))
            if self._separates(bound, place):
                return bound
        return version.public  # without its local part, which bounds cannot have

    def _separates(self, bound: str, place: int) -> bool:
        return all(
            is_in_range(version, f">={bound}") is (number >= place)
            for number, version in enumerate(self.versions)
        )

    def range_of(self, first: int, last: int) -> str:
        """The range from release ``first`` to ``last``; open if ``last`` is the newest."""
        upper = "" if last + 1 == len(self.versions) else f",<{self.before(last + 1)}"
        return f">={self.before(first)}{upper}"

    def inside(self, versions: str) -> list[int]:
        """The releases in a range."""
        return [n for n, each in enumerate(self.versions) if is_in_range(each, versions)]

    def moved(self, versions: str, lower: int | None, upper: int | None) -> str | None:
        """A range with other ends: it starts with release ``lower`` and ends before ``upper``.

        None leaves an end as it is; an ``upper`` past the newest release leaves it open. None if
        the range is not made of bounds alone (``==1.31.1``) and cannot have the end.
        """
        bounds = [part.strip() for part in versions.split(",") if part.strip()]
        if not all(_BOUND.fullmatch(bound) for bound in bounds):
            return None
        low = [bound for bound in bounds if bound.startswith(">")]
        high = [bound for bound in bounds if bound.startswith("<")]
        if lower is not None:
            low = [f">={self.before(lower)}"]
        if upper is not None:
            high = [] if upper >= len(self.versions) else [f"<{self.before(upper)}"]
        return ",".join((*low, *high))


def releases_of(versions: Sequence[str]) -> Releases:
    """The releases of those ``versions`` that can be ordered, each once; local parts count not."""
    found: dict[Version, str] = {}
    for version in versions:
        ordered = ordered_version(version)
        if ordered is not None:
            found.setdefault(Version(ordered.public), version)
    return Releases(tuple(found[each] for each in sorted(found)))
