"""An expectations file: known verdicts of cases on a target in a range of versions."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from conformance.base.json_schemas import WithDescriptions
from conformance.case.relations import RelationName
from conformance.operator.call import Model
from conformance.operator.features import BY_NAME
from conformance.results.records import (
    BeyondBudget,
    Fault,
    FaultKind,
    RelationBroken,
    StageName,
)
from conformance.results.verdicts import ExpectedVerdict
from conformance.results.wrong_outputs import WrongOutput
from conformance.targets.releases import is_in_range

Pattern = Annotated[str, Field(min_length=1)]
Patterns = Annotated[tuple[Pattern, ...], Field(min_length=1)]


def _or_one(schema: Any) -> BeforeValidator:
    """One item may stand for a list of it; ``schema`` is the type of both."""
    return BeforeValidator(
        lambda value: (value,) if isinstance(value, str | bool) else value,
        json_schema_input_type=schema,
    )


def _is_range(value: str) -> str:
    try:
        is_in_range("1", value)
    except ValueError:
        raise ValueError("is not a range of versions such as '>=1.27,<1.32'") from None
    return value


#: What a new line has until a person has written its link and its reason.
TODO: Final = "TODO"
TODO_WHY: Final = f"{TODO}: why"


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


#: What may differ from run to run: the verdict, or `values`, which differ between two runs of one
#: process. `alone`: the verdict does not recur when the case is run alone, in a new process.
Varying = Literal[ExpectedVerdict, "values", "alone"]


class Rate(Model):
    """How often cases fail that fail in some runs of one release and not in others."""

    failed: Annotated[int, Field(ge=1)]
    """Results that were not `pass`."""
    runs: Annotated[int, Field(ge=2)]
    """Results in all; of several cases, all of theirs."""


def _of_kind(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


class Known(Model):
    """One line: the known verdict of these cases in these versions."""

    cases: Annotated[Patterns, _or_one(Pattern | Patterns)]
    """Case ids; `*` stands for anything. One, or a list of which each must match a case."""
    features: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Only calls that have one of these values of each feature (docs/cases.md)."""
    versions: Annotated[str, AfterValidator(_is_range)]
    """Range of runtime versions (`>=1.27,<1.32`)."""
    adapters: Patterns = ()
    """Only on these adapters, by the runner's names (`lavapipe`); `*` stands for anything."""
    verdict: ExpectedVerdict
    """What cases meet: `crash`, `wrong` … `pass` exempts cases from a later line, or from the file
    of the usual target."""
    stage: StageName | None = None
    """Where it is rejected."""
    message: str = ""
    """A part of the runtime's message. For a crash: a part of the sentence about it, which quotes
    the panic or the last line of standard error."""
    fault: Annotated[
        KnownFault | None,
        BeforeValidator(_of_kind, json_schema_input_type=FaultKind | KnownFault | None),
    ] = None
    """The first fault of the result: its kind, or several of its fields."""
    wrong: Annotated[tuple[WrongOutput, ...], _or_one(WrongOutput | tuple[WrongOutput, ...])] = ()
    """The outputs that may be wrong, one or several; both presents are `presents`. Without it, any
    may be."""
    placement: str | None = None
    """Of `fallback`: the execution provider on which it ran."""
    varies: Annotated[tuple[Varying, ...], _or_one(Varying | tuple[Varying, ...])] = ()
    """What is not the same every time, one or several: `values`, the numbers; another verdict, that
    may come instead; `alone`, the verdict does not recur when the case is run alone."""
    rate: Rate | None = None
    """How often a case fails that has another verdict in other runs."""
    link: Annotated[str, Field(min_length=1)]
    """The bug: a link, or a page of this project."""
    why: Annotated[str, Field(min_length=1)]
    """One sentence."""

    def on(self, adapter: str | None) -> bool:
        """Whether this line applies to the adapter (None: adapters do not differ)."""
        if not self.adapters:
            return True
        return adapter is not None and id_pattern(*self.adapters).fullmatch(adapter) is not None

    def holds_for(self, version: str, adapter: str | None = None) -> bool:
        """Whether this line applies to this version of the runtime and this adapter.

        None applies to a version that cannot be ordered.
        """
        return self.on(adapter) and is_in_range(version, self.versions)

    @property
    def where(self) -> str:
        """The versions that it applies to, and the adapters if it does not apply to all."""
        return " on ".join(filter(None, (self.versions, ", ".join(self.adapters))))

    @property
    def verdicts(self) -> tuple[ExpectedVerdict, ...]:
        """All verdicts that the cases can have, its own first."""
        others = (each for each in self.varies if each != "values" and each != "alone")
        return (self.verdict, *others)

    @model_validator(mode="after")
    def _fits_its_verdict(self) -> Self:
        if self.wrong and self.verdict not in ("wrong", "accepted"):
            raise ValueError(f"'wrong' lists wrong outputs, but the verdict is {self.verdict}")
        if self.varies and self.verdict in ("pass", *self.varies):
            raise ValueError(
                "a line whose result varies has as its verdict what fails, and other"
                " verdicts in 'varies'"
            )
        if self.rate is not None and len(self.verdicts) == 1:
            raise ValueError("a rate needs another verdict in 'varies', as 'pass'")
        if self.rate is not None and self.rate.failed > self.rate.runs:
            raise ValueError(f"{self.rate.failed} of {self.rate.runs} runs is no share")
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
    expectations: tuple[Known, ...] = ()


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
