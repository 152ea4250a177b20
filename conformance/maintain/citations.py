"""The threads that the project cites, looked up once: ``docs/citations.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from conformance.base.explain import validated
from conformance.base.paths import ROOT, data_path
from conformance.base.yaml_source import Key, Problem, read_yaml
from conformance.case.call import Model

FILE: Final = data_path("docs") / "citations.yaml"

#: The folders and files of a checkout that can cite a thread, and how the names of such files end.
PLACES: Final = (
    *("cases", "conformance", "docs", "expectations", "mutants", "reports", "runners", "tests"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"),
)
ENDINGS: Final = {".j2", ".js", ".md", ".mjs", ".py", ".yaml"}

#: Numbers of one digit stand for examples.
_LINK = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(pull|issues)/(\d\d+)")
_SHORT = re.compile(r"(?<![\w&/.-])([\w.-]+/[\w.-]+)#(\d\d+)\b")
#: A number without its repository. Short ones are anchors and colours.
_BARE = re.compile(r"(?<![\w&/.-])[\w-]*#\d{4,5}\b")

ThreadName = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+#[1-9][0-9]*$")]
Words = Annotated[str, Field(min_length=1)]
Kind = Literal["pull", "issue"]


class Thread(Model):
    """An issue or a pull request, as it was when it was looked up."""

    kind: Kind
    title: str = ""
    state: Literal["open", "closed", "merged"] | None = None
    in_release: str | None = None
    """The first release that has a merged change, if it is known."""
    cited_for: Words
    """What the project cites it for."""
    quotes: tuple[Words, ...] = ()
    """The words that contracts and pages quote from it."""
    found: bool = True
    tried: str = ""
    """How it was looked for in vain."""

    @model_validator(mode="after")
    def _is_found_or_not(self) -> Thread:
        known = bool(self.title) and self.state is not None
        if self.found != known or self.found == bool(self.tried):
            raise ValueError("expected a title and a state, or else found: false and tried")
        if self.in_release and self.state != "merged":
            raise ValueError("only what is merged is in a release")
        if self.state == "merged" and self.kind != "pull":
            raise ValueError("only a pull request can be merged")
        return self


class Citations(Model):
    """The file."""

    format: Literal["gqa-citations/1"]
    threads: dict[ThreadName, Thread]
    documents: dict[Annotated[str, Field(pattern=r"^https://")], tuple[Words, ...]] = Field(
        default_factory=dict
    )
    """The words that contracts and pages quote from a document, by its link."""


@dataclass(frozen=True)
class Citation:
    """One citation, and its place."""

    thread: str
    kind: Kind | None
    """The kind that the link says; None for ``owner/repository#number``."""
    file: Path
    line: int


def load_citations(file: Path = FILE) -> Citations:
    """The file's threads and documents. Raises :class:`InputError` with every problem."""

    def fields(location: Key) -> list[str]:
        return list((Thread if len(location) > 2 else Citations).model_fields)

    return validated(read_yaml(file), Citations, fields)


def link_to(name: str, thread: Thread) -> str:
    """The link to a thread: with its kind, as GitHub writes it."""
    repository, _, number = name.partition("#")
    page = "pull" if thread.kind == "pull" else "issues"
    return f"https://github.com/{repository}/{page}/{number}"


def citing_files(root: Path = ROOT) -> Iterator[Path]:
    """The files of a checkout that can cite a thread, except ``docs/citations.yaml`` itself."""
    for place in PLACES:
        files = sorted((root / place).rglob("*")) if (root / place).is_dir() else [root / place]
        for file in files:
            parts = file.relative_to(root).parts
            own = not any(part.startswith(".") or part == "node_modules" for part in parts)
            if own and file.suffix in ENDINGS and file.is_file() and file.name != FILE.name:
                yield file


def cited(file: Path) -> Iterator[Citation]:
    """Every citation in ``file``."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        for repository, page, thread in _LINK.findall(line):
            kind: Kind = "pull" if page == "pull" else "issue"
            yield Citation(f"{repository}#{thread}", kind, file, number)
        for repository, thread in _SHORT.findall(line):
            yield Citation(f"{repository}#{thread}", None, file, number)


def problems(files: Iterable[Path], threads: Mapping[str, Thread]) -> list[Problem]:
    """Citations that ``threads`` lacks or that have the wrong kind, and threads nobody cites."""
    found: list[Problem] = []
    uncited = set(threads)
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            for match in _BARE.finditer(_SHORT.sub("", line)):
                sentence = f"write '{match[0]}' with its repository: owner/repository#number"
                found.append(Problem(file, number, match.start() + 1, sentence))
        for citation in cited(file):
            uncited.discard(citation.thread)
            thread = threads.get(citation.thread)
            if thread is None:
                sentence = f"{citation.thread} is not in docs/citations.yaml; look it up"
            elif citation.kind not in (None, thread.kind):
                sentence = f"{citation.thread} is of the kind {thread.kind}: write "
                sentence += link_to(citation.thread, thread)
            else:
                continue
            found.append(Problem(file, citation.line, 1, sentence))
    found += (Problem(FILE, 0, 0, f"nothing cites {name}; remove it") for name in sorted(uncited))
    return found
