"""Joins several runs: all their cases, and a column for each target of each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from conformance.results.errors import ResultsError
from conformance.results.reader import Run, abbreviated
from conformance.results.records import (
    CaseRecord,
    InfrastructureRecord,
    InstabilityRecord,
    ResultRecord,
    TargetRecord,
)
from conformance.results.verdicts import Verdict


@dataclass(frozen=True)
class Column:
    """A target of one of several runs; ``label`` is unique among them."""

    label: str
    target: TargetRecord
    run: Run


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


#: The parts of a contract that are words about it.
_WORDS: Final = {"source", "why", "disputed"}


def is_same_case(one: CaseRecord, other: CaseRecord) -> bool:
    """Whether results files of any age describe one case: its call, and what its contract demands.

    Words are left out, but where only they say which values an input has; and so are trailing
    inputs and outputs, since the operator of an older file has fewer of them.
    """
    if _outline(one) != _outline(other):
        return False
    pairs = zip(one.call.inputs, other.call.inputs, strict=False)
    return all(
        mine.recipe == its.recipe if mine.recipe and its.recipe else mine.values == its.values
        for mine, its in pairs
    )


def _outline(case: CaseRecord) -> object:
    call = case.call
    inputs = [(t.name, t.state, t.shape, t.dtype) for t in call.inputs if t.state != "trailing"]
    outputs = [(t.name, t.state, t.dtype) for t in call.outputs if t.state != "trailing"]
    contract = case.contract.model_dump(exclude={*_WORDS, "providers"})
    own = {name: each.model_dump(exclude=_WORDS) for name, each in case.contract.providers.items()}
    return inputs, outputs, repr(call.attributes), call.steps, contract, own, repr(call.graph)


def _file_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's file, with as many folders as make it unique."""
    paths = [run.path.absolute() for run in runs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{run.path.name} #{n}" for n, run in enumerate(runs, 1)]
