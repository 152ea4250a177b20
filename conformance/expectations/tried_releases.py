"""Ranges of versions that separate the releases that were tried."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from conformance.targets.releases import is_in_range


@dataclass(frozen=True)
class Releases:
    """The releases that were tried, oldest first; a release is named by its place, from 0."""

    versions: tuple[str, ...]
    """Without their local parts, which bounds cannot have."""

    @classmethod
    def of(cls, versions: Iterable[str]) -> Releases:
        """Those ``versions``, each once."""
        return cls(tuple(sorted({*versions}, key=Version)))

    def place(self, version: str) -> int:
        """The place of the release of ``version``."""
        return self.versions.index(version)

    def before(self, place: int) -> str:
        """The shortest version between release ``place - 1`` and release ``place``, or equal to the
        latter: ``1.31`` between 1.30.2 and 1.31.1. For the oldest, that release itself."""
        version = Version(self.versions[place])
        for parts in range(2, len(version.release) + 1):
            bound = ".".join(map(str, version.release[:parts]))
            # Nothing is known of those before the oldest.
            exact = place or Version(bound) == version
            if exact and self.inside(f">={bound}") == [*range(place, len(self.versions))]:
                return bound
        return self.versions[place]

    def inside(self, versions: str) -> list[int]:
        """The releases in a range."""
        return [n for n, each in enumerate(self.versions) if is_in_range(each, versions)]

    def moved(self, versions: str, lower: int | None, upper: int | None) -> str:
        """A range with other ends: it starts with release ``lower`` and ends before ``upper``.

        None leaves an end as it is; an ``upper`` past the newest release leaves it open.
        """
        bounds = [part.strip() for part in versions.split(",") if part.strip()]
        if lower is not None:
            others = (bound for bound in bounds if not bound.startswith(">"))
            bounds = [f">={self.before(lower)}", *others]
        if upper is not None:
            bounds = [bound for bound in bounds if not bound.startswith("<")]
            bounds += [f"<{self.before(upper)}"] if upper < len(self.versions) else []
        return ",".join(bounds)
