"""What results files say of one target: each case on each release and adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.base.files import identity
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.case.load import load_file
from conformance.judge.expectations import Subject
from conformance.maintain.known.releases import Releases, releases_of
from conformance.results.errors import ResultsError
from conformance.results.reader import Run, read
from conformance.results.records import CaseRecord, Fault, ResultRecord, Stage, contract_of
from conformance.results.verdicts import Verdict, is_red, was_tried
from conformance.results.wrong_outputs import WrongOutput
from conformance.targets.catalogue import SANITIZED, entry_of
from conformance.targets.releases import ordered_version


@dataclass(frozen=True)
class Observation:
    """What expectations say of a result. ``red``: without an expectation it is unexpected."""

    verdict: Verdict
    stage: Stage | None
    message: str | None
    placement: str | None
    faults: tuple[Fault, ...]
    wrong_outputs: tuple[WrongOutput, ...]
    red: bool

    @property
    def outcome(self) -> tuple[Stage | None, str | None, str | None]:
        """Stage, message and placement."""
        return self.stage, self.message, self.placement


@dataclass(frozen=True)
class Column:
    """A release, by its place among those that were tried, on an adapter."""

    release: int
    adapter: str | None


@dataclass
class Observed:
    """The results of one target.

    ``at`` has the results of a case, by its place among ``subjects``, in a column, by its place;
    there are several if several files have the release. ``seen`` has those that could not be tried,
    too. ``left_out`` says what could not be used, a sentence each.
    """

    target: str
    execution_provider: str | None
    releases: Releases
    columns: tuple[Column, ...]
    subjects: tuple[Subject, ...]
    at: dict[tuple[int, int], tuple[Observation, ...]]
    seen: frozenset[tuple[int, int]]
    unstable: int
    left_out: tuple[str, ...] = ()

    def version(self, column: int) -> str:
        """The version of a column."""
        return self.releases.versions[self.columns[column].release]


@dataclass
class _Found:
    """What was read so far."""

    results: dict[tuple[str, str, str | None], list[Observation]] = field(default_factory=dict)
    skipped: set[tuple[str, str, str | None]] = field(default_factory=set)
    cases: dict[str, CaseRecord] = field(default_factory=dict)
    unstable: int = 0
    unordered: set[str] = field(default_factory=set)


def observed(target: str, files: Sequence[Path], corpus: Iterable[Case]) -> Observed:
    """What ``files`` say of ``target``, which is named as in results, without a version.

    ``corpus`` are the shipped cases. Other cases are read from the files that the results name.
    Raises `ResultsError` for files that cannot be read, or have no results of the target.
    """
    found = _Found()
    names: set[str] = set()
    for file in _each_once(files):
        run = read(file)
        names |= {one.base for one in run.header.targets}
        _add(found, target, run)
    if not found.results and not found.skipped:
        known = f"they have {', '.join(sorted(names))}" if names else "they name no target"
        raise ResultsError(f"The results have none of the target '{target}'; {known}.")
    entry = entry_of(target.removesuffix(SANITIZED))
    provider = entry.execution_provider if entry else None
    subjects, dropped, left_out = _subjects(found, corpus, provider)
    places = {
        subject.case.id: place
        for place, subject in enumerate(subjects)
        if subject.case.id not in dropped
    }
    releases = releases_of(sorted({key[1] for key in (*found.results, *found.skipped)}))
    orders = [ordered_version(version) for version in releases.versions]
    where = {order.public: place for place, order in enumerate(orders) if order is not None}

    def column_of(key: tuple[str, str, str | None]) -> Column:
        order = ordered_version(key[1])
        assert order is not None
        return Column(where[order.public], key[2])

    every = {column_of(key) for key in (*found.results, *found.skipped)}
    columns = tuple(sorted(every, key=lambda one: (one.release, one.adapter or "")))
    number = {column: place for place, column in enumerate(columns)}
    at: dict[tuple[int, int], tuple[Observation, ...]] = {}
    seen: set[tuple[int, int]] = set()
    for key in (*found.results, *sorted(found.skipped, key=repr)):
        if key[0] in places:
            point = places[key[0]], number[column_of(key)]
            seen.add(point)
            if key in found.results:
                at[point] = (*at.get(point, ()), *found.results[key])
    if found.unordered:
        left_out.append(
            f"Results of {', '.join(sorted(found.unordered))}: no range of versions can have them."
        )
    return Observed(
        target,
        provider,
        releases,
        columns,
        tuple(subjects),
        at,
        frozenset(seen),
        found.unstable,
        tuple(left_out),
    )


def _each_once(files: Sequence[Path]) -> Iterable[Path]:
    return {identity(file) or file: file for file in files}.values()


def _add(found: _Found, target: str, run: Run) -> None:
    """Add the results of ``target`` that ``run`` has."""
    mine = {
        one.name: one.describe
        for one in run.header.targets
        if one.base == target and one.describe is not None
    }
    interned: dict[Observation, Observation] = {}
    for result in run.results:
        describe = mine.get(result.target)
        if describe is None:
            continue
        if ordered_version(describe.version) is None:
            found.unordered.add(result.target)
            continue
        case = run.cases.get(result.case)
        if case is None:
            continue
        found.cases.setdefault(case.id, case)
        key = result.case, describe.version, describe.adapter
        if not was_tried(result):
            found.skipped.add(key)
            continue
        seen = _observation(case, result)
        found.results.setdefault(key, []).append(interned.setdefault(seen, seen))
    found.unstable += sum(one.target in mine and one.unexpected for one in run.instability)


def _observation(case: CaseRecord, result: ResultRecord) -> Observation:
    differing = (fault for fault in result.faults[1:] if fault.kind == "runs_differ")
    return Observation(
        result.verdict,
        result.stage,
        result.message,
        result.placement,
        (*result.faults[:1], *differing),
        tuple(result.wrong_outputs),
        is_red(result, contract_of(case, result).basis),
    )


def _subjects(
    found: _Found, corpus: Iterable[Case], provider: str | None
) -> tuple[list[Subject], set[str], list[str]]:
    """The cases of the corpus and of users' files; ids whose results are left out, and why."""
    subjects = {case.id: Subject(case) for case in corpus}
    files = {record.file for record in found.cases.values()}
    gone: list[str] = []
    for file in sorted(files):
        if file.startswith("cases/") and not Path(file).is_file():
            continue  # of the corpus
        mine = {case.id for case in found.cases.values() if case.file == file}
        if mine <= subjects.keys() and file.startswith("cases/"):
            continue
        if not Path(file).is_file():
            gone.append(f"Results of {file}: there is no such file.")
            continue
        subjects |= {case.id: Subject(case) for case in load_file(Path(file))}
    others = [id for id in found.cases if id not in subjects]
    changed = [
        id
        for id, record in found.cases.items()
        if id in subjects
        and _terms(subjects[id].case.contract.on(provider)) != _terms(record.contract.on(provider))
    ]
    for ids, why in ((others, "there is no such case"), (changed, "the contract is another now")):
        if ids:
            more = f" and {len(ids) - 1} other cases" if len(ids) > 1 else ""
            gone.append(f"Results of {ids[0]}{more}: {why}.")
    return list(subjects.values()), {*others, *changed}, gone


def _terms(contract: Contract) -> tuple[str, str]:
    return contract.demands, contract.basis
