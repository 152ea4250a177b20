"""Expectations: known verdicts of cases on a target in a range of versions, each with a link."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from conformance.base.explain import list_item_fields, validated
from conformance.base.json_schemas import WithDescriptions
from conformance.base.paths import data_path, shown
from conformance.base.words import listed
from conformance.base.yaml_source import InputError, Key, Problem, Source, read_yaml
from conformance.case.call import Model
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
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
from conformance.results.verdicts import TABLE, ExpectedVerdict, Verdict
from conformance.results.wrong_outputs import HasWrongOutputs, WrongOutput
from conformance.targets.catalogue import entry_of
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


class Judged(HasWrongOutputs, Protocol):
    """The part of a result that an expectation describes: its record, or a part of that."""

    @property
    def verdict(self) -> Verdict: ...

    @property
    def faults(self) -> Sequence[Fault]: ...

    @property
    def stage(self) -> Stage | None: ...

    @property
    def message(self) -> str | None: ...

    @property
    def placement(self) -> str | None: ...


@dataclass(frozen=True)
class Expectation:
    """A line of an expectations file, with its file and line number."""

    known: Known
    file: Path
    line: int
    execution_provider: str | None = None
    """That of the target, on which a contract can depend; None if it has none."""
    target: str = ""
    """The target of the file."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return id_pattern(*self.known.cases)

    @cached_property
    def shipped(self) -> bool:
        """Whether the line belongs to the suite, and not to a user's file."""
        return self.file.parent == data_path("expectations")

    @property
    def record(self) -> ExpectationRecord:
        """The record of the line in a result that it covers."""
        flaky, known = None, self.known
        if known.flaky is not None:
            failed, runs = known.flaky.failed, known.flaky.runs
            flaky = FlakyRecord(verdicts=known.verdicts, failed=failed, runs=runs)
        return known.record(self.file, self.line, flaky)

    def covers(self, case: Case) -> bool:
        """Whether the line applies to this case.

        A line for several features or themes can match cases that cannot have its verdict: a case
        that must be rejected is never `unsupported`. The line does not apply to those. Nor does a
        shipped line that names a theme apply to a user's case, which may have the id of a shipped
        one.
        """
        if not self._pattern.fullmatch(case.id):
            return False
        if self.shipped and not is_shipped(case):
            of_any_theme = (each for each in self.known.cases if each.startswith("*"))
            if not id_pattern(*of_any_theme).fullmatch(case.id):
                return False
        contract = case.contract.on(self.execution_provider)
        if contract.demands not in TABLE[self.known.verdict].demands:
            return False
        wanted = self.known.features.items()
        return all(case.features[name] in values for name, values in wanted)

    def is_certain_for(self, case: Case) -> bool:
        """Whether a case that the line covers must have the result in the line.

        The features of a graph are those of one node, and other nodes influence its result, too. A
        shipped line says nothing about a user's case.
        """
        of_one_node = case.is_graph and bool(self.known.features)
        return not of_one_node and (is_shipped(case) or not self.shipped)

    def differs(self, judged: Judged) -> str | None:
        """How a result differs from this line, as half a sentence; None if it does not."""
        known = self.known
        if known.may_crash and judged.verdict == "crash":
            return None
        if judged.verdict not in known.verdicts:
            return f"the verdict is {judged.verdict}, not {' or '.join(known.verdicts)}"
        if judged.verdict != known.verdict:
            return None
        if known.stage is not None and judged.stage != known.stage:
            return f"the stage is {judged.stage}, not {known.stage}"
        if known.placement is not None and judged.placement != known.placement:
            return f"it ran on {judged.placement}, not on {known.placement}"
        # A result that varies is not known, unless the line says that it varies.
        may_vary = known.varies or (known.fault is not None and known.fault.kind == "runs_differ")
        if not may_vary and any(fault.kind == "runs_differ" for fault in judged.faults):
            return "two runs differ, which the line does not mention"
        if known.fault is not None and not any(map(known.fault.matches, judged.faults[:1])):
            return f"the first fault is not one with {known.fault}"
        others = [each for each in judged.wrong_outputs if each not in known.wrong]
        if known.wrong and others:
            return f"it is wrong in {listed(others)}, which the line does not name"
        if known.message not in (judged.message or ""):
            return f"the message does not contain '{known.message}'"
        return None


def instability_for(
    verdict: Verdict,
    version: str,
    adapter: str | None,
    files: Iterable[Path],
    names: Collection[str] = (),
) -> ExpectationRecord | None:
    """The first known instability with this verdict, version and adapter.

    With ``names``, those of the target, the files are a user's, and may be for other targets, too.
    """
    for file in filter(Path.exists, files):
        source, parsed = _read(file, of_its_target=not names)
        if names and parsed.target not in names:
            continue
        for at, known in enumerate(parsed.instability):
            if known.verdict == verdict and known.holds_for(version, adapter):
                return known.record(file, source.values["instability", at][0])
    return None


def load_expectations(files: Iterable[Path]) -> list[Expectation]:
    """The lines of those ``files`` that exist. Raises :class:`InputError`."""
    there = filter(Path.exists, files)
    return [line for file in there for line in _lines(file, of_its_target=True)]


def load_pinned(files: Iterable[Path]) -> list[Expectation]:
    """The lines of a user's files, whose names need not be those of their targets.

    Raises :class:`InputError`.
    """
    return [line for file in files for line in _lines(file, of_its_target=False)]


def _lines(file: Path, *, of_its_target: bool) -> Iterator[Expectation]:
    source, parsed = _read(file, of_its_target=of_its_target)
    entry = entry_of(parsed.target)
    provider = None if entry is None else entry.execution_provider
    for at, known in enumerate(parsed.expectations):
        line, _ = source.values["expectations", at]
        yield Expectation(known, file, line, provider, parsed.target)


def _read(file: Path, *, of_its_target: bool) -> tuple[Source, ExpectationFile]:
    """The content of the file; its name must be ``of_its_target``. Raises :class:`InputError`."""
    source = read_yaml(file)
    parsed = validated(source, ExpectationFile, _fields_at)
    if of_its_target and parsed.target != file.stem:
        sentence = f"the target is '{parsed.target}', but the file is for '{file.stem}'"
        raise InputError([source.problem(("target",), sentence)])
    return source, parsed


def _fields_at(location: Key) -> list[str]:
    """The valid fields at a location in the file."""
    item = KnownInstability if location[:1] == ("instability",) else Known
    return list_item_fields(ExpectationFile, item)(location)


def expectations_place(file: Path) -> str:
    """The path of an expectations file for readers without this machine: that in the project."""
    shipped = data_path("expectations")
    return f"{shipped.name}/{file.name}" if file.parent == shipped else shown(file)


def known_result(
    case: Case,
    judged: Judged,
    on: tuple[str, str | None],
    expectations: Iterable[Expectation],
) -> tuple[Expectation, str | None] | None:
    """The line that decides about a result, and how the result differs from it; None: no line does.

    ``on`` has version and adapter. The first line that applies to the case, version and adapter
    decides. A line that is not certain for the case (`Expectation.is_certain_for`) decides only if
    the result agrees with it.
    """
    for line in expectations:
        if line.known.holds_for(*on) and line.covers(case):
            differs = line.differs(judged)
            if differs is None or line.is_certain_for(case):
                return line, differs
    return None


def check_stale(
    expectations: Sequence[Expectation],
    cases: Sequence[Case],
    *,
    whole: bool,
    later: Sequence[Expectation] = (),
) -> None:
    """Raises :class:`InputError` for lines with a pattern that matches none of ``cases``.

    A pattern is checked if its theme is among the cases; with ``whole``, if all themes are among
    them, every pattern is checked. A pattern of a line with the verdict ``pass`` must match a case
    that a later line matches; ``later`` are lines of files that come after these.
    """
    of_theme: dict[str, list[Case]] = {}
    for case in cases:
        of_theme.setdefault(case.theme, []).append(case)
    problems = []
    for at, line in enumerate(expectations):
        for pattern in line.known.cases:
            one = replace(line, known=line.known.model_copy(update={"cases": (pattern,)}))
            theme = pattern.partition("/")[0]
            if not (whole or theme in of_theme):
                continue
            there = cases if "*" in theme else of_theme.get(theme, ())
            what = "no case matches"
            covered: Iterator[Case] = filter(one.covers, there)
            if line.known.verdict == "pass":
                what, after = "no later line matches", (*expectations[at + 1 :], *later)
                covered = (case for case in covered if any(e.covers(case) for e in after))
            if next(covered, None) is None:
                sentence = f"{what} '{pattern}'; remove or correct this line"
                problems.append(Problem(line.file, line.line, 1, sentence))
    if problems:
        raise InputError(problems)


def expectations_schema() -> dict[str, Any]:
    """The JSON Schema of an expectations file, for editors."""
    return ExpectationFile.model_json_schema(schema_generator=WithDescriptions)
