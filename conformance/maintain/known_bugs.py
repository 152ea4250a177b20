"""Known bugs of runtimes, and the cases that detect them: ``docs/known_bugs.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from conformance.base.explain import list_item_fields, validated
from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError, Problem, read_yaml
from conformance.case.call import Model
from conformance.case.case import Case
from conformance.judge.expectations import Range, id_pattern

FILE: Final = data_path("docs") / "known_bugs.yaml"

Sentence = Annotated[str, Field(pattern=r"^\S.*\.$")]


class KnownBug(Model):
    """A bug, a limit or a decision that a user reported, in this project's terms."""

    id: Annotated[str, Field(pattern=r"^[A-Z][1-9][0-9]*$")]
    runtime: Annotated[str, Field(min_length=1)]
    """Runtime, or runtime and execution provider."""
    versions: Range | None = None
    """The range of versions that have it (`>=1.27,<1.31`), if known."""
    what: Sentence
    """What happens."""
    right: Sentence
    """What should happen."""
    link: Annotated[str, Field(pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/\w+/\S+$")]
    """The issue or pull request or, if none is known, the text that specifies the behaviour."""
    cases: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Patterns of the cases that detect it, with `*` for any text. Each case has the same link."""
    not_covered: Sentence | None = None
    """Why no case can detect it."""

    @model_validator(mode="after")
    def _is_covered_or_not(self) -> KnownBug:
        if bool(self.cases) == bool(self.not_covered):
            raise ValueError("expected either cases or not_covered")
        return self


class KnownBugs(Model):
    """The file."""

    format: Literal["gqa-known-bugs/1"]
    bugs: tuple[KnownBug, ...]


@dataclass(frozen=True)
class ListedBug:
    """An entry and its position in the file."""

    bug: KnownBug
    file: Path
    line: int


def load_known_bugs(file: Path = FILE) -> list[ListedBug]:
    """The entries of ``file``, in its order. Raises :class:`InputError` with every problem."""
    source = read_yaml(file)
    parsed = validated(source, KnownBugs, list_item_fields(KnownBugs, KnownBug))
    entries: list[ListedBug] = []
    problems: list[Problem] = []
    for index, bug in enumerate(parsed.bugs):
        if any(bug.id == entry.bug.id for entry in entries):
            problems.append(source.problem(("bugs", index, "id"), f"the id '{bug.id}' is taken"))
        entries.append(ListedBug(bug, file, source.values[("bugs", index)][0]))
    if problems:
        raise InputError(problems)
    return entries


def uncovered(entries: Sequence[ListedBug], cases: Sequence[Case]) -> list[Problem]:
    """The errors in the entries' patterns: no matching case, or a case without the link."""
    problems: list[Problem] = []
    for entry in entries:
        for text in entry.bug.cases:
            pattern = id_pattern(text)
            found = [case for case in cases if pattern.fullmatch(case.id)]
            sentences = [
                f"{case.id} has no link to {entry.bug.link}"
                for case in found
                if entry.bug.link not in (*case.links, case.contract.source)
            ]
            if not found:
                sentences = [f"no case matches '{text}'"]
            problems += (
                Problem(entry.file, entry.line, 1, f"{entry.bug.id}: {sentence}")
                for sentence in sentences
            )
    return problems
