"""A results file of any size: what is too much for the memory is in a database on the disk.

The database is a file that SQLite keeps, and removes. Nothing of a small file is there, so that
each of its records is read once only.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from conformance.results.errors import ResultsError
from conformance.results.reader import (
    MOST_STREAMED_BYTES,
    MOST_STREAMED_LINES,
    Judged,
    read_into,
)
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.table import Table, tabulate

if TYPE_CHECKING:
    import sqlite3

#: So many cases, and as many results, stay in memory.
MOST_IN_MEMORY: Final = 10_000

_TABLES: Final = """
CREATE TABLE records (place INTEGER PRIMARY KEY, name TEXT UNIQUE, key BLOB, record BLOB);
"""

_Key = TypeVar("_Key")
_Record = TypeVar("_Record")


@contextmanager
def stored(path: Path) -> Iterator[Table]:
    """A file alone, as `join` gives it; its cases and results can be read until the context ends.

    Raises `ResultsError` as :func:`conformance.results.reader.read` does, and
    :class:`sqlite3.Error` if the database cannot be written (`database_errors`).
    """
    cases, results = Records[str, CaseRecord](), Records[tuple[str, str], ResultRecord]()
    try:
        bounds = MOST_STREAMED_LINES, MOST_STREAMED_BYTES
        yield tabulate([read_into(path, cases, Judged(worst=results), *bounds)])
    finally:
        cases.close()
        results.close()


class Records(MutableMapping[_Key, _Record]):
    """Records by their key, in the order in which they came; they are replaced in their place.

    The first `MOST_IN_MEMORY` are in memory. The others are in a database, and each use reads them.
    """

    def __init__(self) -> None:
        self._here: dict[_Key, _Record] = {}
        self._table: sqlite3.Connection | None = None

    def close(self) -> None:
        """Remove the database."""
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

    def __setitem__(self, key: _Key, record: _Record) -> None:
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

    def __delitem__(self, key: _Key) -> None:
        raise TypeError("records are never removed")

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


def database(tables: str) -> sqlite3.Connection:
    """An empty database with these ``tables``, which is gone when it is closed.

    Raises `ResultsError` if this Python has no SQLite.
    """
    try:
        import sqlite3
    except ImportError:
        raise ResultsError(
            "This Python was built without SQLite, which gqa merge and large results files need."
        ) from None
    made = sqlite3.connect("", isolation_level=None)
    made.executescript(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32768;" + tables
    )
    made.execute("BEGIN")
    return made


@contextmanager
def database_errors() -> Iterator[None]:
    """Raises :class:`OSError` for what a database cannot write."""
    try:
        yield
    except Exception as error:
        sqlite = sys.modules.get("sqlite3")  # which is not imported without a database
        if sqlite is None or not isinstance(error, sqlite.Error):
            raise
        raise OSError(
            f"{error}, in the folder for temporary files; TMPDIR can name another one"
        ) from None
