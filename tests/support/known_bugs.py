"""The known bugs of runtimes: ``docs/known_bugs.yaml``."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from conformance.base.paths import data_path


@dataclass(frozen=True)
class KnownBug:
    """A bug, a limit or a decision that a user reported, in this project's terms."""

    id: str
    runtime: str
    what: str
    right: str
    link: str
    versions: str = ""
    cases: tuple[str, ...] = ()
    """Patterns of the cases that detect it. Each case has the same link."""
    not_covered: str = ""
    """Why no case can detect it."""


def known_bugs() -> list[KnownBug]:
    """The entries of the file, in its order."""
    text = (data_path("docs") / "known_bugs.yaml").read_text(encoding="utf-8")
    return [KnownBug(**entry) for entry in yaml.safe_load(text)["bugs"]]
