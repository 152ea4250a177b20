"""A table of results: a row for each case, and a column for each target of each run.

All reports are made from a `Table`. Its cells have the properties that reports show: the severity,
the part of the score, whether the defect is known …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from conformance.base.paths import PROFILES
from conformance.case.contract import BASES, Contract
from conformance.operator.part import Basis
from conformance.results.growth import growth_texts
from conformance.results.reader import Run, abbreviated
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    InstabilityRecord,
    ResultRecord,
    TargetRecord,
    contract_of,
)
from conformance.results.results_error import ResultsError
from conformance.results.same import is_same_case
from conformance.results.score import Score, ScorePart, Scores, part_of
from conformance.results.verdicts import (
    Verdict,
    is_silent_failure,
    note_of,
    severity,
    was_tried,
)
from conformance.results.wrong_outputs import only_presents


@dataclass(frozen=True)
class Column:
    """A target of a run; ``label`` is unique in the table."""

    label: str
    target: TargetRecord
    run: Run


@dataclass(frozen=True, eq=False)
class Cell:
    """The result of a case in a column. ``case`` is None if the file does not describe it."""

    case: CaseRecord | None
    label: str
    """The label of the column."""
    result: ResultRecord

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def mark(self) -> Literal["unexpected", "known", ""]:
        """Whether the result is unexpected, or is a known defect."""
        return "unexpected" if self.result.unexpected else "known" if self.result.known else ""

    @property
    def theme(self) -> str:
        """The theme of the case; empty if the case is not described."""
        return self.case.theme if self.case else ""

    @property
    def contract(self) -> Contract | None:
        """The contract on the target; None if the case is not described."""
        return contract_of(self.case, self.result) if self.case else None

    @property
    def note(self) -> str:
        """The note that reports show beside the verdict."""
        return note_of(self.result)

    @cached_property
    def severity(self) -> int:
        """The place in the order of severity; 0 is worst."""
        return severity(self.result)

    @cached_property
    def tried(self) -> bool:
        """Whether the call was tried on the runtime, or kernel, that the target stands for."""
        return was_tried(self.result)

    @cached_property
    def silent(self) -> bool:
        """Whether the call returned wrong results without an error."""
        return is_silent_failure(self.result)

    @property
    def only_presents(self) -> bool:
        """Whether presents are wrong, and no other output."""
        return only_presents(self.result)

    @cached_property
    def part(self) -> ScorePart | None:
        """The part of the score in which it is counted; None if the call was not tried."""
        return part_of(self.result)

    @property
    def basis(self) -> Basis:
        """The basis of the contract; a case without a description counts as specified."""
        return self.contract.basis if self.contract else "specified"

    @property
    def asked(self) -> bool:
        """Whether it counts for the score of its target."""
        return self.tried and self.basis != "requested"


@dataclass(frozen=True)
class Trouble:
    """A problem of a run that is not a result.

    ``label`` names a column and ``case`` a case; they are empty for a problem of the whole run.
    ``fix`` is a command that solves the problem, or empty.
    """

    kind: Literal["problem", "not tried", "failure"]
    message: str
    label: str = ""
    case: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Table:
    """Several runs side by side.

    ``results`` has the worst result for each pair of case id and column label. ``problems`` name
    their file; ``infrastructure`` and ``instability`` have the label of the column.
    """

    runs: tuple[Run, ...]
    columns: tuple[Column, ...]
    cases: Mapping[str, CaseRecord]
    results: Mapping[tuple[str, str], ResultRecord]
    infrastructure: tuple[tuple[str, InfrastructureRecord], ...]
    problems: tuple[str, ...]
    instability: Mapping[str, Sequence[InstabilityRecord]]
    totals: Mapping[str, Mapping[Verdict, int]]
    """The number of ``results`` by column label and verdict."""

    @cached_property
    def changed(self) -> Mapping[str, str]:
        """The digests of the cases that are not described, since the corpus has others, by id."""
        return {id: digest for run in self.runs for id, digest in run.changed.items()}

    @property
    def ids(self) -> list[str]:
        """The ids of all cases with a description or a result, in the order of the files."""
        return list(dict.fromkeys([*self.cases, *(id for id, _ in self.results)]))

    @cached_property
    def rows(self) -> Mapping[str, Mapping[str, Cell]]:
        """The cells of each case by the label of their column."""
        rows: dict[str, dict[str, Cell]] = {}
        for id in self.ids:
            case = self.cases.get(id)
            rows[id] = {
                column.label: Cell(case, column.label, result)
                for column in self.columns
                if (result := self.results.get((id, column.label))) is not None
            }
        return rows

    @cached_property
    def cells(self) -> Sequence[Cell]:
        """All cells: case by case, in the order of the columns."""
        return [cell for row in self.rows.values() for cell in row.values()]

    def column_cells(self, label: str) -> list[Cell]:
        """The cells of one column."""
        return [row[label] for row in self.rows.values() if label in row]

    def scores(self, labels: Collection[str]) -> Scores:
        """The scores of these columns as one target; of several results of a case, the worst
        counts."""
        bases: dict[Basis, list[ScorePart | None]] = {basis: [] for basis in BASES}
        themes: dict[str, list[ScorePart | None]] = {}
        for id, row in self.rows.items():
            there = [row[label] for label in labels if label in row]
            if len(there) > 1:
                there.sort(key=lambda cell: cell.severity)
            cell = there[0] if there else None
            case, part = self.cases.get(id), cell.part if cell else None
            basis = cell.basis if cell else case.contract.basis if case else "specified"
            bases[basis].append(part)
            if basis != "requested":
                themes.setdefault(case.theme if case else "", []).append(part)
        ordered = sorted(themes, key=lambda theme: theme not in self.profiles)
        return Scores(
            **{basis: Score.of(parts) for basis, parts in bases.items()},
            themes={theme: Score.of(themes[theme]) for theme in ordered},
        )

    @cached_property
    def profiles(self) -> Collection[str]:
        """The themes that are the profile of a model."""
        return {case.theme for case in self.cases.values() if PROFILES in case.tags}

    def shared_scores(self, labels: Iterable[str]) -> dict[str, Score]:
        """The score of each of these columns over the calls that count in all of them.

        A column without calls that count is left out. Empty if the columns share no call, or if
        only one column is left.
        """
        asked = {
            label: {
                id: cell
                for id, row in self.rows.items()
                if (cell := row.get(label)) is not None and cell.asked
            }
            for label in labels
        }
        asked = {label: cells for label, cells in asked.items() if cells}
        shared = set.intersection(*map(set, asked.values())) if len(asked) > 1 else set()
        return {
            label: Score.of(cells[id].part for id in shared)
            for label, cells in asked.items()
            if shared
        }

    def growth(self) -> Mapping[str, str]:
        """A sentence for each column, by its label, where the memory of the runner grows."""
        tried = (cell for cell in self.cells if cell.tried)
        return growth_texts((cell.label, cell.result.grown_mb) for cell in tried)

    def troubles(self) -> Iterator[Trouble]:
        """The problems of the runs, the targets that were not available, and the infrastructure
        failures."""
        for problem in self.problems:
            yield Trouble("problem", problem)
        for column in self.columns:
            about = column.target
            if about.unavailable is not None:
                yield Trouble("not tried", about.unavailable, column.label, fix=about.fix or "")
        for label, record in self.infrastructure:
            yield Trouble("failure", record.message, label, record.case or "", record.fix or "")


def tabulate(runs: Sequence[Run], *, in_memory: bool = True) -> Table:
    """The table of these runs.

    If several files have results of a target, its labels contain the names of the files. If not
    ``in_memory``, the results of a single run are read whenever they are asked for. Raises
    `ResultsError` if there are no runs.
    """
    if not runs:
        raise ResultsError("No results files were given.")
    targets = [
        {target.name: target for target in run.header.targets}
        | {
            name: TargetRecord(name=name, ep=name)
            for name in run.counts
            if name not in {target.name for target in run.header.targets}
        }
        for run in runs
    ]
    shared = {name for name, n in Counter(name for t in targets for name in t).items() if n > 1}
    columns: list[Column] = []
    cases: dict[str, CaseRecord] = {}
    results: dict[tuple[str, str], ResultRecord] = {}
    totals: dict[str, Mapping[Verdict, int]] = {}
    infrastructure: list[tuple[str, InfrastructureRecord]] = []
    instability: dict[str, list[InstabilityRecord]] = {}
    problems: list[str] = []
    for run, called, mine in zip(runs, _file_names(runs), targets, strict=True):
        labels: dict[str, str] = {}
        for name in mine:
            label = f"{name} ({called})" if name in shared else name
            labels[name] = _unlike(label, {*labels.values(), *(column.label for column in columns)})
        columns += [Column(labels[name], target, run) for name, target in mine.items()]
        prefix = f"{called}: " if len(runs) > 1 else ""
        problems += [prefix + problem for problem in run.problems]
        totals |= {labels[name]: counts for name, counts in run.totals.items()}
        infrastructure += [(labels.get(i.target, i.target), i) for i in run.infrastructure]
        for one in run.instability:
            instability.setdefault(labels.get(one.target, one.target), []).append(one)
        if not in_memory:
            continue
        others = [
            case.id
            for case in run.cases.values()
            if (first := cases.setdefault(case.id, case)) is not case
            and not is_same_case(first, case)
        ]
        if others:
            problems.append(
                f"{called}: cases that are others than in files before, and shown as there: "
                f"{abbreviated(others)}."
            )
        results |= {(id, labels[name]): result for (id, name), result in run.worst.items()}
    return Table(
        tuple(runs),
        tuple(columns),
        cases if in_memory else runs[0].cases,
        results if in_memory else runs[0].worst,
        tuple(infrastructure),
        tuple(problems),
        instability,
        totals,
    )


def with_shared_cases(runs: Iterable[Run]) -> list[Run]:
    """The runs, which share the records of cases that they describe identically.

    Descriptions of cases take most of a run's memory. ``runs`` is read one by one.
    """
    known: dict[str, CaseRecord] = {}
    shared = []
    for run in runs:
        cases = {}
        for id, case in run.cases.items():
            first = known.setdefault(id, case)
            cases[id] = first if first == case else case
        shared.append(replace(run, cases=cases))
    return shared


def _unlike(label: str, taken: Collection[str]) -> str:
    """``label``, with a number appended if it is taken."""
    number = 1
    while (other := f"{label} #{number}" if number > 1 else label) in taken:
        number += 1
    return other


def _file_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's file, with as many parent folders as it needs to be unique."""
    paths = [run.path.absolute() for run in runs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path.name} #{n}" for n, run in enumerate(runs, 1)]
