"""An expectations file: known verdicts of cases on a target in a range of versions."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from conformance.base.json_schemas import WithDescriptions
from conformance.base.paths import data_path, shown
from conformance.case.call import Model
from conformance.case.features import BY_NAME
from conformance.case.variants import RelationName
from conformance.results.records import (
    BeyondBudget,
    ExpectationRecord,
    Fault,
    FaultKind,
    FlakyRecord,
    RelationBroken,
    Stage,
)
from conformance.results.verdicts import ExpectedVerdict
from conformance.results.wrong_outputs import WrongOutput
from conformance.targets.releases import is_in_range

Pattern = Annotated[str, Field(min_length=1)]
Patterns = Annotated[tuple[Pattern, ...], Field(min_length=1)]


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _is_range(value: str) -> str:
    try:
        is_in_range("1", value)
    except ValueError:
        raise ValueError("is not a range of versions such as '>=1.27,<1.32'") from None
    return value


#: What a new line has until a person has written its link and its reason.
TODO: Final = "TODO"
TODO_WHY: Final = f"{TODO}: why"

Range = Annotated[str, AfterValidator(_is_range)]


class KnownFault(Model):
    """The properties of the first fault of a result; a field that is left out allows any value."""

    kind: FaultKind | None = None
    """`dtype`, `shape`, `runs_differ`, `relation`, or `beyond_budget` of a value that is wrong."""
    output: Pattern = "*"
    """The output that is wrong; `*` stands for anything (`present_*`)."""
    got: Literal["nan", "inf", "-inf"] | None = None
    """The value of the element with the largest error, of `beyond_budget`."""
    relation: RelationName | None = None
    """The relation that does not hold, of `relation`."""

    def matches(self, fault: Fault) -> bool:
        """Whether ``fault`` has these properties."""
        got = str(fault.got) if isinstance(fault, BeyondBudget) else None
        relation = fault.name if isinstance(fault, RelationBroken) else None
        return (
            self.kind in (None, fault.kind)
            and self.got in (None, got)
            and self.relation in (None, relation)
            and id_pattern(self.output).fullmatch(fault.output) is not None
        )

    def __str__(self) -> str:
        fields = self.model_dump(exclude_defaults=True).items()
        return ", ".join(f"{name}: {value}" for name, value in fields)


class Flaky(Model):
    """How often cases fail that fail in some runs of one release and not in others."""

    failed: Annotated[int, Field(ge=1)]
    """Results that were not `pass`."""
    runs: Annotated[int, Field(ge=2)]
    """Results in all; of several cases, all of theirs."""
    also: Annotated[
        tuple[ExpectedVerdict, ...],
        BeforeValidator(
            _one_or_more, json_schema_input_type=ExpectedVerdict | tuple[ExpectedVerdict, ...]
        ),
        Field(min_length=1),
    ] = ("pass",)
    """The verdicts that such a case can have beside that of the line."""


def _of_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class _KnownResult(Model):
    """A verdict that is known in these versions, with the bug."""

    versions: Range
    """Range of runtime versions (`>=1.27,<1.32`)."""
    adapters: Patterns = ()
    """Only on these adapters, by the runner's names (`lavapipe`); `*` stands for anything."""
    verdict: ExpectedVerdict
    """What cases meet: `crash`, `wrong` …"""
    link: Annotated[str, Field(min_length=1)]
    """The bug: a link, or a page of this project."""
    why: Annotated[str, Field(min_length=1)]
    """One sentence."""

    def on(self, adapter: str | None) -> bool:
        """Whether this expectation applies to the adapter (None: adapters do not differ)."""
        if not self.adapters:
            return True
        return adapter is not None and id_pattern(*self.adapters).fullmatch(adapter) is not None

    def holds_for(self, version: str, adapter: str | None = None) -> bool:
        """Whether this expectation applies to this version of the runtime and this adapter.

        None applies to a version that cannot be ordered.
        """
        return self.on(adapter) and is_in_range(version, self.versions)

    def record(self, file: Path, line: int, flaky: FlakyRecord | None = None) -> ExpectationRecord:
        """The record of this expectation in a result, with its file and line number."""
        return ExpectationRecord(
            file=expectations_place(file),
            line=line,
            verdict=self.verdict,
            link=self.link,
            why=self.why,
            flaky=flaky,
        )


class KnownInstability(_KnownResult):
    """A known cause of results that do not repeat when a case is run alone."""


class Known(_KnownResult):
    """One line: the known verdict of these cases in these versions."""

    cases: Annotated[
        Patterns, BeforeValidator(_one_or_more, json_schema_input_type=Pattern | Patterns)
    ]
    """Case ids; `*` stands for anything. One, or a list of which each must match a case."""
    verdict: ExpectedVerdict
    """`pass` exempts cases from a later line, or from the file of the usual target."""
    features: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Only calls that have one of these values of each feature (docs/cases.md)."""
    stage: Stage | None = None
    """Where it is rejected."""
    message: str = ""
    """A part of the runtime's message. For a crash: a part of the sentence about it, which quotes
    the panic or the last line of standard error."""
    fault: Annotated[
        KnownFault | None,
        BeforeValidator(_of_kind, json_schema_input_type=FaultKind | KnownFault | None),
    ] = None
    """The first fault of the result: its kind, or several of its fields."""
    wrong: Annotated[
        tuple[WrongOutput, ...],
        BeforeValidator(_one_or_more, json_schema_input_type=WrongOutput | tuple[WrongOutput, ...]),
    ] = ()
    """The outputs that may be wrong, one or several; both presents are `presents`. Without it, any
    may be."""
    placement: str | None = None
    """Of `fallback`: the execution provider on which it ran."""
    varies: bool = False
    """The results may differ from run to run."""
    may_crash: bool = False
    """The process may end instead: the memory that is read by mistake may not be there."""
    flaky: Flaky | None = None
    """The cases have this verdict in some runs and another one in others."""

    @property
    def where(self) -> str:
        """The versions that it applies to, and the adapters if it does not apply to all."""
        return " on ".join(filter(None, (self.versions, ", ".join(self.adapters))))

    @property
    def verdicts(self) -> tuple[ExpectedVerdict, ...]:
        """All verdicts that the cases can have."""
        return (self.verdict, *(self.flaky.also if self.flaky else ()))

    @model_validator(mode="after")
    def _fits_its_verdict(self) -> Self:
        if self.wrong and self.verdict not in ("wrong", "accepted"):
            raise ValueError(f"'wrong' lists wrong outputs, but the verdict is {self.verdict}")
        if self.flaky is not None and self.flaky.failed > self.flaky.runs:
            raise ValueError(f"{self.flaky.failed} of {self.flaky.runs} runs is no share")
        if self.flaky is not None and self.verdict in ("pass", *self.flaky.also):
            raise ValueError(
                "a flaky case needs as its verdict what it is when it fails, and other verdicts in"
                " 'also'"
            )
        return self

    @field_validator("features")
    @classmethod
    def _are_features(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in value.items():
            if name not in BY_NAME:
                raise ValueError(f"'{name}' is not a feature; allowed: {', '.join(BY_NAME)}")
            for each in values:
                if each not in BY_NAME[name].values:
                    known = ", ".join(BY_NAME[name].values)
                    raise ValueError(f"'{each}' is not a value of {name}; allowed: {known}")
        return value


class ExpectationFile(Model):
    """The expectations of one target."""

    target: str
    instability: tuple[KnownInstability, ...] = ()
    expectations: tuple[Known, ...] = ()


def expectations_place(file: Path) -> str:
    """The path of an expectations file for readers without this machine: that in the project."""
    shipped = data_path("expectations")
    return f"{shipped.name}/{file.name}" if file.parent == shipped else shown(file)


@cache
def id_pattern(*texts: str) -> re.Pattern[str]:
    """A pattern that matches any of ``texts``, in which `*` stands for any text."""
    return re.compile("|".join(map(_expression, texts)))


def _expression(text: str) -> str:
    """``text`` as a regular expression that takes linear time, however many `*` it has.

    Each part between two `*` is matched where it is first found (an atomic group).
    """
    first, *parts = map(re.escape, text.split("*"))
    if not parts:
        return first
    between = "".join(f"(?>.*?{part})" for part in parts[:-1])
    return f"{first}{between}.*{parts[-1]}"


def expectations_schema() -> dict[str, Any]:
    """The JSON Schema of an expectations file, for editors."""
    return ExpectationFile.model_json_schema(schema_generator=WithDescriptions)
