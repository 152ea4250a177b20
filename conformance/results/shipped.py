"""The cases of the corpus, which results files name by their id and digest, without a description.

Their descriptions are made from the corpus when they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from conformance.case.case import Case
from conformance.case.corpus import shipped_files
from conformance.case.load import load
from conformance.results.records import AnyCaseRecord, CaseRecord, ShippedCaseRecord
from conformance.results.same import EXPLANATIONS

#: The cases of the corpus that were loaded, by their ids, with their records.
_LOADED: Final[dict[str, tuple[Case, ShippedCaseRecord]]] = {}


def shipped_record(case: Case) -> ShippedCaseRecord:
    """The record of a case of the corpus."""
    record = ShippedCaseRecord(id=case.id, digest=_digest(case))
    _LOADED[case.id] = case, record
    return record


def is_in_corpus(record: ShippedCaseRecord) -> bool:
    """Whether the corpus has the case, with the same call and the same contract."""
    if record.id not in _LOADED:
        _load(record.id.partition("/")[0])
    return record.id in _LOADED and _LOADED[record.id][1] == record


def described(record: AnyCaseRecord) -> CaseRecord:
    """The description of a case; if it is one of the corpus, it must be there."""
    return _description(record.id) if isinstance(record, ShippedCaseRecord) else record


class DescribedCases(Mapping[str, CaseRecord]):
    """The descriptions of ``cases`` by their ids."""

    def __init__(self, cases: Mapping[str, AnyCaseRecord]) -> None:
        self._cases = cases

    def __getitem__(self, id: str) -> CaseRecord:
        return described(self._cases[id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)


def description(id: str) -> CaseRecord:
    """The description of a case of the corpus, which must be there."""
    from conformance.results.descriptions import case_record  # imports NumPy

    return case_record(_LOADED[id][0])


#: Reports ask for a description several times, and it takes half a millisecond.
_description: Final = cache(description)


@cache
def _load(theme: str) -> None:
    if theme in (files := shipped_files()):
        for case in load([files[theme]], checked=False):
            shipped_record(case)


def _digest(case: Case) -> str:
    """A digest of the call, its variant, and what the case file demands of the result."""
    contract = case.written_contract
    demands = contract and contract.model_dump_json(
        exclude={**dict.fromkeys(EXPLANATIONS, True), "providers": {"__all__": EXPLANATIONS}}
    )
    text = "\n".join((case.call.json(), case.relation or "", demands or ""))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
