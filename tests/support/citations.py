"""The threads and documents that the project cites, looked up once: ``docs/citations.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import yaml

from conformance.base.paths import data_path


@dataclass(frozen=True)
class Thread:
    """An issue or a pull request, as it was when it was looked up."""

    kind: Literal["pull", "issue"]
    cited_for: str
    """What the project cites it for."""
    title: str = ""
    state: Literal["open", "closed", "merged"] | None = None
    in_release: str | None = None
    """The first release that has a merged change, if it is known."""
    quotes: tuple[str, ...] = ()
    """The words that contracts and pages quote from it."""
    found: bool = True
    tried: str = ""
    """How it was looked for in vain."""


def citations() -> tuple[dict[str, Thread], dict[str, list[str]]]:
    """The threads by their names, and the words that are quoted from a document by its link."""
    data = yaml.safe_load((data_path("docs") / "citations.yaml").read_text(encoding="utf-8"))
    return {name: Thread(**each) for name, each in data["threads"].items()}, data.get(
        "documents", {}
    )


def link_to(name: str, thread: Thread) -> str:
    """The link to a thread: with its kind, as GitHub writes it."""
    repository, _, number = name.partition("#")
    page = "pull" if thread.kind == "pull" else "issues"
    return f"https://github.com/{repository}/{page}/{number}"
