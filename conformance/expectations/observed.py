"""What results files say of one target: each case on each release and adapter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from conformance.base.files import identity
from conformance.base.versions import ordered_version
from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.results.reader import read
from conformance.results.records import CaseRecord, ResultRecord, contract_of
from conformance.results.results_error import ResultsError
from conformance.results.verdicts import is_red, was_tried
from conformance.targets.catalogue import entry_of


class At(NamedTuple):
    """A case by its id, on a release and an adapter."""

    case: str
    version: str
    """Without its local part."""
    adapter: str | None

    @classmethod
    def of(cls, case: str, version: str, adapter: str | None) -> At | None:
        """The place of a result; None for a version that cannot be ordered."""
        ordered = ordered_version(version)
        return None if ordered is None else cls(case, ordered.public, adapter)


@dataclass(frozen=True)
class Observed:
    """The results of one target.

    ``at`` has several results of a case if several files have the release; those that are red are
    `unexpected`. ``cases`` are those of the corpus and of the results. ``left_out`` says what could
    not be used, a sentence each.
    """

    target: str
    execution_provider: str | None
    cases: Mapping[str, Case]
    at: dict[At, list[ResultRecord]]
    unstable: int
    left_out: tuple[str, ...]


def observed(target: str, files: Sequence[Path], corpus: Iterable[Case]) -> Observed:
    """What ``files`` say of ``target``, which is named as in results, without a version.

    ``corpus`` are the shipped cases. Other cases are read from the files that the results name.
    Raises `ResultsError` for files that cannot be read, or have no results of the target.
    """
    found: dict[At, list[ResultRecord]] = {}
    records: dict[str, CaseRecord] = {}
    names: set[str] = set()
    unordered: set[str] = set()
    changed: dict[str, None] = {}
    unstable = 0
    for file in {identity(file) or file: file for file in files}.values():
        run = read(file)
        names |= {one.base for one in run.header.targets}
        mine = {one.name: one.describe for one in run.header.targets if one.base == target}
        unstable += sum(one.target in mine and one.unexpected for one in run.instability)
        for result in run.results:
            describe, case = mine.get(result.target), run.cases.get(result.case)
            if describe is not None and result.case in run.changed:
                changed[result.case] = None
            if describe is None or case is None:
                continue
            at = At.of(case.id, describe.version, describe.adapter)
            if at is None:
                unordered.add(result.target)
                continue
            records.setdefault(case.id, case)
            if was_tried(result):
                red = is_red(result, contract_of(case, result).basis)
                one = result.model_copy(update={"unexpected": red})
                found.setdefault(at, []).append(one)
    if not (records or unordered or changed):
        known = f"they have {', '.join(sorted(names))}" if names else "they name no target"
        raise ResultsError(f"The results have none of the target '{target}'; {known}.")
    entry = entry_of(target)
    provider = entry.execution_provider if entry else None
    cases = {case.id: case for case in corpus}
    left_out = [*_read_cases(records, cases), *_drop_changed(records, cases, provider)]
    if changed:
        left_out.append(_of_several([*changed], "the case is another now"))
    if unordered:
        left_out.append(
            f"Results of {', '.join(sorted(unordered))}: no range of versions can have them."
        )
    usable = {at: results for at, results in found.items() if at.case in records}
    return Observed(target, provider, cases, usable, unstable, tuple(left_out))


def _read_cases(records: Mapping[str, CaseRecord], cases: dict[str, Case]) -> Iterator[str]:
    """Add the cases of users' files; a sentence for each file that is gone."""
    for name in sorted({record.file for record in records.values()}):
        mine = {case.id for case in records.values() if case.file == name}
        if name.startswith("cases/") and mine <= cases.keys():
            continue  # of the corpus
        if Path(name).is_file():
            cases |= {case.id: case for case in load_file(Path(name))}
        else:
            yield f"Results of {name}: there is no such file."


def _drop_changed(
    records: dict[str, CaseRecord], cases: Mapping[str, Case], provider: str | None
) -> Iterator[str]:
    """Drop the cases that are gone or are judged differently now; a sentence for each kind."""
    dropped: dict[str, list[str]] = {}
    for id, record in records.items():
        then = record.contract.on(provider)
        now = cases[id].contract.on(provider) if id in cases else None
        if now is None:
            dropped.setdefault("there is no such case", []).append(id)
        elif (now.demands, now.basis) != (then.demands, then.basis):
            dropped.setdefault("the contract is another now", []).append(id)
    for why, ids in dropped.items():
        for id in ids:
            del records[id]
        yield _of_several(ids, why)


def _of_several(ids: Sequence[str], why: str) -> str:
    more = f" and {len(ids) - 1} other cases" if len(ids) > 1 else ""
    return f"Results of {ids[0]}{more}: {why}."
