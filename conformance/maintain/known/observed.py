"""What results files say of one target: each case on each release and adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.base.files import identity
from conformance.base.versions import ordered_version
from conformance.case.case import Case
from conformance.case.contract import Contract
from conformance.case.load import load_file
from conformance.maintain.known.releases import Releases, releases_of
from conformance.results.errors import ResultsError
from conformance.results.reader import Run, read
from conformance.results.records import CaseRecord, Fault, ResultRecord, Stage, contract_of
from conformance.results.verdicts import Verdict, is_red, was_tried
from conformance.results.wrong_outputs import WrongOutput
from conformance.targets.catalogue import SANITIZED, entry_of


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


@dataclass(frozen=True)
class Column:
    """A release, by its place among those that were tried, on an adapter."""

    release: int
    version: str
    adapter: str | None


@dataclass(frozen=True)
class Observed:
    """The results of one target.

    ``at`` has the results of a case, by its place among ``cases``, in a column, by its place:
    several if several files have the release, none if the case could not be tried. ``left_out``
    says what could not be used, a sentence each.
    """

    target: str
    execution_provider: str | None
    releases: Releases
    columns: tuple[Column, ...]
    cases: tuple[Case, ...]
    at: dict[tuple[int, int], tuple[Observation, ...]]
    unstable: int
    left_out: tuple[str, ...]


class _Found:
    """What was read so far: results by case, version and adapter."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str, str | None], list[Observation]] = {}
        self.cases: dict[str, CaseRecord] = {}
        self.unstable = 0
        self.unordered: set[str] = set()

    def add(self, target: str, run: Run) -> None:
        """Add the results of ``target`` that ``run`` has."""
        mine = {
            one.name: one.describe
            for one in run.header.targets
            if one.base == target and one.describe is not None
        }
        for result in run.results:
            describe, case = mine.get(result.target), run.cases.get(result.case)
            if describe is None or case is None:
                continue
            if ordered_version(describe.version) is None:
                self.unordered.add(result.target)
                continue
            self.cases.setdefault(case.id, case)
            key = case.id, describe.version, describe.adapter
            each = self.results.setdefault(key, [])
            if was_tried(result):
                each.append(_observation(case, result))
        self.unstable += sum(one.target in mine and one.unexpected for one in run.instability)


def observed(target: str, files: Sequence[Path], corpus: Iterable[Case]) -> Observed:
    """What ``files`` say of ``target``, which is named as in results, without a version.

    ``corpus`` are the shipped cases. Other cases are read from the files that the results name.
    Raises `ResultsError` for files that cannot be read, or have no results of the target.
    """
    found = _Found()
    names: set[str] = set()
    for file in {identity(file) or file: file for file in files}.values():
        run = read(file)
        names |= {one.base for one in run.header.targets}
        found.add(target, run)
    if not found.results:
        known = f"they have {', '.join(sorted(names))}" if names else "they name no target"
        raise ResultsError(f"The results have none of the target '{target}'; {known}.")
    entry = entry_of(target.removesuffix(SANITIZED))
    provider = entry.execution_provider if entry else None
    cases, left_out = _cases(found.cases, corpus)
    left_out += _drop_changed(found, cases, provider)
    if found.unordered:
        left_out.append(
            f"Results of {', '.join(sorted(found.unordered))}: no range of versions can have them."
        )
    releases = releases_of(sorted({version for _, version, _ in found.results}))
    column_of = {
        (version, adapter): Column(place, releases.versions[place], adapter)
        for version, adapter in {key[1:] for key in found.results}
        for place in [releases.place(version)]
    }
    columns = sorted({*column_of.values()}, key=lambda one: (one.release, one.adapter or ""))
    at: dict[tuple[int, int], tuple[Observation, ...]] = {}
    places = {id: place for place, id in enumerate(cases)}
    for (id, version, adapter), results in found.results.items():
        if id in found.cases:
            point = places[id], columns.index(column_of[version, adapter])
            at[point] = (*at.get(point, ()), *results)
    return Observed(
        target,
        provider,
        releases,
        tuple(columns),
        tuple(cases.values()),
        at,
        found.unstable,
        tuple(left_out),
    )


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


def _cases(
    records: Mapping[str, CaseRecord], corpus: Iterable[Case]
) -> tuple[dict[str, Case], list[str]]:
    """The cases of the corpus and of users' files, and a sentence for each file that is gone."""
    cases = {case.id: case for case in corpus}
    gone = []
    for name in sorted({record.file for record in records.values()}):
        file = Path(name)
        mine = {case.id for case in records.values() if case.file == name}
        if name.startswith("cases/") and (not file.is_file() or mine <= cases.keys()):
            continue  # of the corpus
        if file.is_file():
            cases |= {case.id: case for case in load_file(file)}
        else:
            gone.append(f"Results of {name}: there is no such file.")
    return cases, gone


def _drop_changed(found: _Found, cases: Mapping[str, Case], provider: str | None) -> Iterable[str]:
    """Drop the cases that are gone or are judged differently now; a sentence for each kind."""
    others = [id for id in found.cases if id not in cases]
    changed = [
        id
        for id, record in found.cases.items()
        if id in cases
        and _terms(cases[id].contract.on(provider)) != _terms(record.contract.on(provider))
    ]
    for ids, why in ((others, "there is no such case"), (changed, "the contract is another now")):
        for id in ids:
            del found.cases[id]
        if ids:
            more = f" and {len(ids) - 1} other cases" if len(ids) > 1 else ""
            yield f"Results of {ids[0]}{more}: {why}."


def _terms(contract: Contract) -> tuple[str, str]:
    return contract.demands, contract.basis
