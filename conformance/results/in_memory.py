"""A store of a results file that is read to be shown."""

from __future__ import annotations

import marshal
from collections import Counter

from pydantic import BaseModel

from conformance.results.records import ResultRecord
from conformance.results.store import Store
from conformance.results.verdicts import Verdict, severity


class StoreInMemory(Store):
    """A store of one file, whose worst results are in memory as they were first read.

    The lines of results are not kept, so `by_case` cannot be used. Results share what is equal in
    them, since most are those of other releases: that takes a sixth of the memory.
    """

    worst: dict[tuple[str, str], ResultRecord]

    def __init__(self) -> None:
        super().__init__()
        self.worst = {}
        self._counts: dict[str, Counter[Verdict]] = {}
        self._unexpected = 0
        self._repeated: set[tuple[str, str]] = set()
        self._parts: dict[tuple[type[BaseModel], bytes], BaseModel] = {}
        self._names: dict[frozenset[str], set[str]] = {}
        self._texts: dict[str, str] = {}

    def add_result(self, record: ResultRecord, line: bytes = b"", file: str = "") -> None:
        """Add a result; of several ones of a case and target, ``worst`` has the worst."""
        key = record.case, record.target
        self._counts.setdefault(record.target, Counter())[record.verdict] += 1
        self._unexpected += record.unexpected
        first = self.worst.get(key)
        if first is not None:
            self._repeated.add(key)
        if first is None or severity(record) < severity(first):
            self._share(record)
            self.worst[key] = record

    def _share(self, record: BaseModel) -> None:
        """Put parts from before in place of equal parts of a new record."""
        fields, names = record.__dict__, record.model_fields_set
        shared = self._names.setdefault(frozenset(names), names)
        object.__setattr__(record, "__pydantic_fields_set__", shared)  # larger than the record
        for name, value in fields.items():
            if isinstance(value, str):
                fields[name] = self._texts.setdefault(value, value)
            elif isinstance(value, BaseModel):
                fields[name] = self._once(value)
            elif value and isinstance(value, tuple) and isinstance(value[0], BaseModel):
                fields[name] = tuple(map(self._once, value))

    def _once(self, part: BaseModel) -> BaseModel:
        self._share(part)
        try:
            values = marshal.dumps([*part.__dict__.values()], 2)  # unlike ==, tells -0.0 from 0.0
        except ValueError:  # it has parts of its own
            return part
        return self._parts.setdefault((type(part), values), part)

    def _counted(self, table: str, file: str) -> dict[str, Counter[Verdict]]:
        if table == "results":
            return self._counts
        counts: dict[str, Counter[Verdict]] = {}
        for (_, target), result in self.worst.items():
            counts.setdefault(target, Counter())[result.verdict] += 1
        return counts

    def unexpected(self, file: str) -> int:
        """The number of all unexpected results."""
        return self._unexpected

    def repeated(self) -> list[tuple[str, str]]:
        """The cases and targets with several results."""
        return [key for key in self.worst if key in self._repeated]
