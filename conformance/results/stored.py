"""A results file of any size: what is too much for the memory is in a database on the disk.

Nothing of a small file is there, so that each of its records is read once only.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from conformance.results.database import database
from conformance.results.join import Joined, join
from conformance.results.reader import (
    MOST_STREAMED_BYTES,
    MOST_STREAMED_LINES,
    Run,
    take,
)
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.verdicts import Verdict, severity

if TYPE_CHECKING:
    import sqlite3

#: So many cases, and as many results, stay in memory.
MOST_IN_MEMORY: Final = 10_000

_TABLES: Final = """
PRAGMA cache_size = -32768;
CREATE TABLE records (place INTEGER PRIMARY KEY, name TEXT UNIQUE, key BLOB, record BLOB);
"""

_Key = TypeVar("_Key")
_Record = TypeVar("_Record")


class Records(Mapping[_Key, _Record]):
    """Records by their key, in the order in which they came; a context manager.

    The first `MOST_IN_MEMORY` are in memory. The others are in a database, and each use reads them.
    """

    def __init__(self) -> None:
        self._here: dict[_Key, _Record] = {}
        self._table: sqlite3.Connection | None = None

    def __enter__(self) -> Records[_Key, _Record]:
        return self

    def __exit__(self, *error: object) -> None:
        if self._table is not None:
            self._table.close()

    def __getitem__(self, key: _Key) -> _Record:
        if self._table is None or key in self._here:
            return self._here[key]
        query = "SELECT record FROM records WHERE name = ?"
        found = self._table.execute(query, (repr(key),)).fetchone()
        if found is None:
            raise KeyError(key)
        record: _Record = pickle.loads(found[0])
        return record

    def put(self, key: _Key, record: _Record) -> None:
        """Add a record, or replace the one with this key in its place."""
        if key in self._here or (self._table is None and len(self._here) < MOST_IN_MEMORY):
            self._here[key] = record
            return
        if self._table is None:
            self._table = database(_TABLES)
        self._table.execute(
            "INSERT INTO records (name, key, record) VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET record = excluded.record",
            (repr(key), pickle.dumps(key), pickle.dumps(record, pickle.HIGHEST_PROTOCOL)),
        )

    def setdefault(self, key: _Key, record: _Record) -> _Record:
        """The record with this key, which is ``record`` if there was none."""
        found = self.get(key)
        if found is None:
            self.put(key, record)
        return record if found is None else found

    def __iter__(self) -> Iterator[_Key]:
        yield from self._here
        if self._table is not None:
            for (key,) in self._table.execute("SELECT key FROM records ORDER BY place"):
                yield pickle.loads(key)

    def __len__(self) -> int:
        if self._table is None:
            return len(self._here)
        (there,) = self._table.execute("SELECT count(*) FROM records").fetchone()
        return len(self._here) + int(there)


@contextmanager
def stored(path: Path) -> Iterator[Joined]:
    """A file alone, as `join` gives it, but for the cases and results of its `Run`.

    Its cases and results can be read until the end of the context. Raises `ResultsError` as
    :func:`conformance.results.reader.read` does, and :class:`sqlite3.Error` if the database cannot
    be written (:func:`conformance.results.database.database_errors`).
    """
    with ExitStack() as stack:
        cases: Records[str, CaseRecord] = stack.enter_context(Records())
        results = _Results(stack.enter_context(Records()))
        rest = take(path, MOST_STREAMED_LINES, MOST_STREAMED_BYTES, cases.setdefault, results.add)
        targets = {target.name: Counter[Verdict]() for target in rest.header.targets}
        counts = targets | results.counts
        described, unknown, twice = set(cases), set[str](), list[tuple[str, str]]()
        for key in results.worst:
            if key[0] not in described:
                unknown.add(key[0])
            if key in results.others:
                twice.append(key)
        problems = rest.with_doubts(
            cases=len(described),
            counts=counts,
            unexpected=results.unexpected,
            unknown=unknown,
            twice=twice,
        )
        run = _StoredRun(
            path,
            rest.header,
            {},
            (),
            tuple(rest.infrastructure),
            rest.footer,
            problems,
            tuple(rest.instability),
            stored_counts=counts,
        )
        yield replace(join([run]), cases=cases, results=results.worst, totals=results.totals())


@dataclass(frozen=True)
class _StoredRun(Run):
    """A run whose results are elsewhere."""

    stored_counts: dict[str, Counter[Verdict]] = field(default_factory=dict)

    def counts(self) -> dict[str, Counter[Verdict]]:
        return self.stored_counts


class _Results:
    """The results of a file by case and target: what replaces others, else the worst of several."""

    def __init__(self, worst: Records[tuple[str, str], ResultRecord]) -> None:
        self.worst = worst
        #: The verdicts of those of which there is a worse one, and whether they are unexpected.
        self.others: dict[tuple[str, str], list[tuple[Verdict, bool]]] = {}
        #: By target and verdict, with the others.
        self.counts: dict[str, Counter[Verdict]] = {}
        self.unexpected = 0

    def add(self, result: ResultRecord) -> None:
        key = result.case, result.target
        before = self.worst.get(key)
        if before is None:
            self._count(result.target, *_counted(result))
            self.worst.put(key, result)
        else:
            self._count(result.target, *_counted(result))
            if severity(result) < severity(before):
                self.worst.put(key, result)
                result = before
            self.others.setdefault(key, []).append(_counted(result))

    def _count(self, target: str, verdict: Verdict, unexpected: bool, number: int = 1) -> None:
        self.counts.setdefault(target, Counter())[verdict] += number
        self.unexpected += number * unexpected

    def totals(self) -> dict[str, Counter[Verdict]]:
        """The number of the worst results, by target and verdict."""
        totals = {target: Counter(counts) for target, counts in self.counts.items()}
        for (_, target), others in self.others.items():
            totals[target].subtract(verdict for verdict, _ in others)
        return totals


def _counted(result: ResultRecord) -> tuple[Verdict, bool]:
    return result.verdict, result.unexpected
