"""Known verdicts: for cases, a target and a range of its versions, with the link to the bug."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BeforeValidator, Field, field_validator

from conformance.base.explain import list_item_fields, validated
from conformance.base.yaml_source import InputError, Problem, read_yaml
from conformance.case.call import Model
from conformance.case.case import Case
from conformance.case.features import BY_NAME, features_of
from conformance.judge.verdict import DIFFERENT_RUNS
from conformance.results.verdicts import TABLE, ExpectedVerdict, Verdict

Pattern = Annotated[str, Field(min_length=1)]
Patterns = Annotated[tuple[Pattern, ...], Field(min_length=1)]


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class Known(Model):
    """One line: these cases end like this, in these versions, and that is known."""

    cases: Annotated[
        Patterns, BeforeValidator(_one_or_more, json_schema_input_type=Pattern | Patterns)
    ]
    """Case ids; `*` stands for anything. One, or a list of which each must match a case."""
    versions: str
    """Range of runtime versions (`>=1.27,<1.32`)."""
    adapters: Patterns = ()
    """Only on these adapters, `*` for anything: what the runner calls them (`lavapipe`)."""
    features: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Only calls that have one of these values of each feature (docs/coverage.md)."""
    verdict: ExpectedVerdict
    """`pass` takes cases out of what a later line says of many, or a usual target's file."""
    stage: Literal["load", "run"] | None = None
    message: str = ""
    """A piece of the runtime's message; of a crash, of the sentence that tells of it, which has the
    panic or the last line of standard error."""
    varies: bool = False
    """What comes out may differ from run to run."""
    link: Annotated[str, Field(min_length=1)]
    """The bug: a link, or a page of this project."""
    why: Annotated[str, Field(min_length=1)]
    """One sentence."""

    @property
    def where(self) -> str:
        """The versions that it speaks of, and the adapters if not of all."""
        return " on ".join(filter(None, (self.versions, ", ".join(self.adapters))))

    @field_validator("versions")
    @classmethod
    def _is_range(cls, value: str) -> str:
        try:
            SpecifierSet(value)
        except InvalidSpecifier:
            raise ValueError("is no range of versions such as '>=1.27,<1.32'") from None
        return value

    @field_validator("features")
    @classmethod
    def _are_features(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in value.items():
            if name not in BY_NAME:
                raise ValueError(f"'{name}' is no feature; there are {', '.join(BY_NAME)}")
            for each in values:
                if each not in BY_NAME[name].values:
                    known = ", ".join(BY_NAME[name].values)
                    raise ValueError(f"'{each}' is no value of {name}; there are {known}")
        return value


class ExpectationFile(Model):
    """The expectations of one target."""

    target: str
    expectations: tuple[Known, ...] = ()


def id_pattern(*texts: str) -> re.Pattern[str]:
    """The ids that any of ``texts`` means: `*` is anything, every other sign stands for itself."""
    return re.compile("|".join(".*".join(map(re.escape, text.split("*"))) for text in texts))


class Subject:
    """A case as the lines look at it; its features are worked out once, and only if asked for."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @cached_property
    def features(self) -> dict[str, str | None]:
        """The value of each feature."""
        return features_of(self.case.call, self.case.steps)


@dataclass(frozen=True)
class Expectation:
    """A line of an expectations file and where it stands."""

    known: Known
    file: Path
    line: int

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return id_pattern(*self.known.cases)

    @cached_property
    def _adapters(self) -> re.Pattern[str]:
        return id_pattern(*self.known.adapters)

    def covers(self, subject: Subject) -> bool:
        """Whether the line speaks of this case.

        A line of several features or themes meets calls of which its verdict cannot come, as a
        refusal of what must be refused is no `unsupported`: it does not speak of those.
        """
        if not self._pattern.fullmatch(subject.case.id):
            return False
        if subject.case.contract.demands not in TABLE[self.known.verdict].demands:
            return False
        wanted = self.known.features.items()
        return all(subject.features[name] in values for name, values in wanted)

    def each(self) -> Iterator[Expectation]:
        """The line for each of its patterns of cases alone."""
        for cases in self.known.cases:
            yield replace(self, known=self.known.model_copy(update={"cases": (cases,)}))

    def on(self, adapter: str | None) -> bool:
        """Whether the line speaks of this adapter; None: results do not differ by it."""
        if not self.known.adapters:
            return True
        return adapter is not None and self._adapters.fullmatch(adapter) is not None

    def holds_for(self, version: str, adapter: str | None = None) -> bool:
        """Whether the line speaks of this version of the runtime; a version of no order is none.

        It must speak of the adapter, too.
        """
        if not self.on(adapter):
            return False
        try:
            # npm's 1.31.0-dev.20261101-0a1b2c3 is some release before 1.31.0.
            ordered = Version(re.sub(r"(?<=\d)-dev\b.*", ".dev0", version))
        except InvalidVersion:
            return False
        return SpecifierSet(self.known.versions).contains(ordered, prereleases=True)

    def differs(self, verdict: Verdict, stage: str | None, message: str) -> str | None:
        """What came out otherwise than this line says, as half a sentence; None if as said."""
        if verdict != self.known.verdict:
            return f"the verdict is {verdict}, not {self.known.verdict}"
        if self.known.stage is not None and stage != self.known.stage:
            return f"the stage is {stage}, not {self.known.stage}"
        # What a run returns by chance is no known result, unless the line is about just that.
        if DIFFERENT_RUNS in message and not self.known.varies:
            return "two runs differ, of which it says nothing"
        if self.known.message not in message:
            return f"the message does not contain '{self.known.message}'"
        return None


def load_expectations(files: Iterable[Path]) -> list[Expectation]:
    """The lines of ``files``, of those that there are. Raises :class:`InputError`."""
    return [line for file in files for line in _lines(file)]


def _lines(file: Path) -> list[Expectation]:
    if not file.exists():
        return []
    source = read_yaml(file)
    parsed = validated(source, ExpectationFile, list_item_fields(ExpectationFile, Known))
    if parsed.target != file.stem:
        sentence = f"the target is '{parsed.target}', but the file is that of '{file.stem}'"
        raise InputError([source.problem(("target",), sentence)])
    return [
        Expectation(known, file, source.values[("expectations", i)][0])
        for i, known in enumerate(parsed.expectations)
    ]


def expectation_for(
    case: Case, version: str, adapter: str | None, expectations: Iterable[Expectation]
) -> Expectation | None:
    """The first line that speaks of this case, version and adapter."""
    subject = Subject(case)
    spoken = (e for e in expectations if e.covers(subject) and e.holds_for(version, adapter))
    return next(spoken, None)


def check_stale(expectations: Sequence[Expectation], cases: Sequence[Case], *, whole: bool) -> None:
    """Raises :class:`InputError` for lines with a pattern that matches none of ``cases``.

    A pattern is checked when its theme is among the cases; with ``whole`` (all themes are there)
    each is. In a line that says ``pass`` it must take a case out of what a later line says.
    """
    themes = {case.theme for case in cases}
    subjects = [Subject(case) for case in cases]
    problems = []
    for at, line in enumerate(expectations):
        for one in line.each():
            (pattern,) = one.known.cases
            if not (whole or pattern.partition("/")[0] in themes):
                continue
            covered = filter(one.covers, subjects)
            first = next(covered, None)
            if first is None:
                what = "no case matches"
            elif line.known.verdict == "pass" and not any(
                later.covers(subject)
                for subject in (first, *covered)
                for later in expectations[at + 1 :]
            ):
                what = "no later line matches"
            else:
                continue
            sentence = f"{what} '{pattern}'; remove or mend this line"
            problems.append(Problem(line.file, line.line, 1, sentence))
    if problems:
        raise InputError(problems)


def expectations_schema() -> dict[str, Any]:
    """The JSON Schema of an expectations file, for editors."""
    return ExpectationFile.model_json_schema()
