"""Results as one table: a row for each case, and a column for each target of each run.

Every view formats a `Table`. What its cells mean (severity, part of the score, known defect …) is
worked out here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from conformance.base.paths import PROFILES
from conformance.case.contract import BASES, Basis, Contract
from conformance.results.errors import ResultsError
from conformance.results.reader import Run, abbreviated
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    InstabilityRecord,
    ResultRecord,
    TargetRecord,
    contract_of,
)
from conformance.results.same import is_same_case
from conformance.results.score import Part, Score, Scores, part_of
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
    """A target of one of several runs; ``label`` is unique among them."""

    label: str
    target: TargetRecord
    run: Run


@dataclass(frozen=True, eq=False)
class Cell:
    """The result of a case in a column, and what every view says of it.

    ``case`` is None if the file does not describe it.
    """

    case: CaseRecord | None
    label: str
    """Of the column."""
    result: ResultRecord

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict

    @property
    def mark(self) -> Literal["unexpected", "known", ""]:
        """Whether nobody expects the result, or it has a known defect."""
        return "unexpected" if self.result.unexpected else "known" if self.result.known else ""

    @property
    def theme(self) -> str:
        """Of the case; empty if it is not described."""
        return self.case.theme if self.case else ""

    @property
    def contract(self) -> Contract | None:
        """The contract by which the result was judged; None if the case is not described."""
        return contract_of(self.case, self.result) if self.case else None

    @property
    def note(self) -> str:
        """What stands beside the verdict."""
        return note_of(self.result)

    @cached_property
    def severity(self) -> int:
        """0 is worst."""
        return severity(self.result)

    @cached_property
    def tried(self) -> bool:
        """Whether the call was tried on what its target stands for."""
        return was_tried(self.result)

    @cached_property
    def silent(self) -> bool:
        """Whether the results are wrong and there was no error."""
        return is_silent_failure(self.result)

    @property
    def only_presents(self) -> bool:
        """Whether the presents are wrong, and nothing else."""
        return only_presents(self.result)

    @cached_property
    def part(self) -> Part | None:
        """The part of the score that it counts for; None if it was not tried."""
        return part_of(self.result)

    @property
    def basis(self) -> Basis:
        """Of the contract; a case that is not described counts as specified."""
        return self.contract.basis if self.contract else "specified"

    @property
    def asked(self) -> bool:
        """Whether it counts for the score of its target: tried, and not only requested."""
        return self.tried and self.basis != "requested"


@dataclass(frozen=True)
class Trouble:
    """A problem of the runs, which is no result.

    ``label`` is the column's, ``case`` an id; either is empty where the problem is of the whole
    run. ``fix`` is the command that mends it, or empty.
    """

    kind: Literal["problem", "not tried", "failure"]
    message: str
    label: str = ""
    case: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Table:
    """Several runs side by side.

    ``results`` is keyed by (case id, column label) and has the worst where a file has several;
    ``problems`` name their file, ``infrastructure`` and ``instability`` the column.
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

    @property
    def ids(self) -> list[str]:
        """Every case that has a description or a result, in the order of the files."""
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
        """The scores of these columns, as of one target: of several results of a case, the worst
        counts."""
        bases: dict[Basis, list[Part | None]] = {basis: [] for basis in BASES}
        themes: dict[str, list[Part | None]] = {}
        for id, row in self.rows.items():
            there = [row[label] for label in labels if label in row]
            cell = min(there, key=lambda cell: cell.severity, default=None)
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
        """The score of each of these columns over the calls that all of them were asked.

        A column that was asked nothing is left out; empty if there is no such call, or one column.
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

    def troubles(self) -> Iterator[Trouble]:
        """The problems of the runs, the targets that were not available, the failures."""
        for problem in self.problems:
            yield Trouble("problem", problem)
        for column in self.columns:
            about = column.target
            if about.unavailable is not None:
                yield Trouble("not tried", about.unavailable, column.label, fix=about.fix or "")
        for label, record in self.infrastructure:
            yield Trouble("failure", record.message, label, record.case or "", record.fix or "")


def tabulate(runs: Sequence[Run]) -> Table:
    """Put several runs side by side: all their cases, and a column for each target of each run.

    The label of a target that several files have contains the name of its file.
    """
    if not runs:
        raise ResultsError("No results files were given.")
    targets = [
        {target.name: target for target in run.header.targets}
        | {
            name: TargetRecord(name=name, ep=name)
            for name in run.judged.counts
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
        totals |= {labels[name]: counts for name, counts in run.judged.totals.items()}
        infrastructure += [(labels.get(i.target, i.target), i) for i in run.infrastructure]
        for one in run.instability:
            instability.setdefault(labels.get(one.target, one.target), []).append(one)
        if len(runs) == 1:  # perhaps it does not fit into the memory
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
        worst = run.judged.worst
        results |= {(id, labels[name]): result for (id, name), result in worst.items()}
    return Table(
        tuple(runs),
        tuple(columns),
        cases if len(runs) > 1 else runs[0].cases,
        results if len(runs) > 1 else runs[0].judged.worst,
        tuple(infrastructure),
        tuple(problems),
        instability,
        totals,
    )


def with_shared_cases(runs: Iterable[Run]) -> list[Run]:
    """The runs, with one record of each case that several describe alike.

    Descriptions of cases are most of a run's memory; ``runs`` is drawn from one by one.
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
    """``label``, with a number if it is taken."""
    number = 1
    while (other := f"{label} #{number}" if number > 1 else label) in taken:
        number += 1
    return other


def _file_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's file, with as many folders as make it unique."""
    paths = [run.path.absolute() for run in runs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path.name} #{n}" for n, run in enumerate(runs, 1)]
