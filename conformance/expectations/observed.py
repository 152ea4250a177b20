"""What results files say of one target: each case on each release and adapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.base.files import identity
from conformance.base.versions import ordered_version
from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.expectations.releases import Releases, releases_of
from conformance.results.errors import ResultsError
from conformance.results.reader import read
from conformance.results.records import CaseRecord, Fault, ResultRecord, Stage, contract_of
from conformance.results.verdicts import Verdict, is_red, was_tried
from conformance.results.wrong_outputs import WrongOutput
from conformance.targets.catalogue import entry_of


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


def observed(target: str, files: Sequence[Path], corpus: Iterable[Case]) -> Observed:
    """What ``files`` say of ``target``, which is named as in results, without a version.

    ``corpus`` are the shipped cases. Other cases are read from the files that the results name.
    Raises `ResultsError` for files that cannot be read, or have no results of the target.
    """
    found: dict[tuple[str, str, str | None], list[Observation]] = {}
    records: dict[str, CaseRecord] = {}
    names: set[str] = set()
    unordered: set[str] = set()
    unstable = 0
    for file in {identity(file) or file: file for file in files}.values():
        run = read(file)
        names |= {one.base for one in run.header.targets}
        mine = {
            one.name: one.describe
            for one in run.header.targets
            if one.base == target and one.describe is not None
        }
        unstable += sum(one.target in mine and one.unexpected for one in run.instability)
        for result in run.results:
            describe, case = mine.get(result.target), run.cases.get(result.case)
            if describe is None or case is None:
                continue
            if ordered_version(describe.version) is None:
                unordered.add(result.target)
                continue
            records.setdefault(case.id, case)
            each = found.setdefault((case.id, describe.version, describe.adapter), [])
            if was_tried(result):
                each.append(_observation(case, result))
    if not found:
        known = f"they have {', '.join(sorted(names))}" if names else "they name no target"
        raise ResultsError(f"The results have none of the target '{target}'; {known}.")
    entry = entry_of(target)
    provider = entry.execution_provider if entry else None
    cases, left_out = _cases(records, corpus)
    left_out += _drop_changed(records, cases, provider)
    if unordered:
        left_out.append(
            f"Results of {', '.join(sorted(unordered))}: no range of versions can have them."
        )
    releases = releases_of(sorted({version for _, version, _ in found}))
    column_of = {
        (version, adapter): Column(place, releases.versions[place], adapter)
        for version, adapter in {key[1:] for key in found}
        for place in [releases.place(version)]
    }
    columns = sorted({*column_of.values()}, key=lambda one: (one.release, one.adapter or ""))
    at: dict[tuple[int, int], tuple[Observation, ...]] = {}
    places = {id: place for place, id in enumerate(cases)}
    for (id, version, adapter), results in found.items():
        if id in records:
            point = places[id], columns.index(column_of[version, adapter])
            at[point] = (*at.get(point, ()), *results)
    everything = tuple(cases.values())
    return Observed(
        target, provider, releases, tuple(columns), everything, at, unstable, tuple(left_out)
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


def _drop_changed(
    records: dict[str, CaseRecord], cases: Mapping[str, Case], provider: str | None
) -> Iterator[str]:
    """Drop the cases that are gone or are judged differently now; a sentence for each kind."""

    def is_changed(record: CaseRecord) -> bool:
        now, then = cases[record.id].contract.on(provider), record.contract.on(provider)
        return (now.demands, now.basis) != (then.demands, then.basis)

    others = [id for id in records if id not in cases]
    changed = [id for id, record in records.items() if id in cases and is_changed(record)]
    for ids, why in ((others, "there is no such case"), (changed, "the contract is another now")):
        for id in ids:
            del records[id]
        if ids:
            more = f" and {len(ids) - 1} other cases" if len(ids) > 1 else ""
            yield f"Results of {ids[0]}{more}: {why}."
