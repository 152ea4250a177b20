"""Reads results files of any size into a database.

SQLite keeps a small database in memory, and a larger one in a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from conformance.results.errors import ResultsError
from conformance.results.reader import Kept, doubted, take
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.table import Table, tabulate

try:
    import sqlite3
except ImportError:
    raise ResultsError(
        "This Python was built without SQLite, which gqa merge and gqa diff need."
    ) from None

_TABLES: Final = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32768;
CREATE TABLE cases (place INTEGER PRIMARY KEY, id TEXT UNIQUE, line BLOB);
CREATE TABLE results (place INTEGER PRIMARY KEY, id TEXT, target TEXT, line BLOB,
                      UNIQUE (id, target));
BEGIN;
"""


@contextmanager
def stored(path: Path) -> Iterator[Table]:
    """The table of one file. Its records can be read until the context ends.

    Raises `ResultsError` as :func:`conformance.results.reader.read` does, and :class:`OSError` as
    `opened` does.
    """
    with opened() as store:
        yield tabulate([doubted(take(path, store))])


@contextmanager
def opened() -> Iterator[Store]:
    """An empty store, which exists until the context ends.

    Raises :class:`OSError` if the database cannot be written.
    """
    try:
        with closing(sqlite3.connect("", isolation_level=None)) as database:
            database.executescript(_TABLES)
            yield Store(database)
    except sqlite3.Error as error:
        where = "in the folder for temporary files; TMPDIR can name another one"
        raise OSError(f"{error}, {where}") from None


class Store(Kept):
    """The lines of results files by case and target, in a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.cases: Mapping[str, CaseRecord] = _Cases(self._database)
        self.worst: Mapping[tuple[str, str], ResultRecord] = _Results(self._database)

    def keep_case(self, record: CaseRecord, line: bytes) -> CaseRecord:
        """Keep a case unless one with its id is kept already; returns the kept one."""
        sql = "INSERT OR IGNORE INTO cases (id, line) VALUES (?, ?)"
        line = line.rstrip()
        if self._database.execute(sql, (record.id, line)).rowcount:
            return record
        first = _value(self._database, "line FROM cases WHERE id = ?", record.id)
        return record if first == line else CaseRecord.model_validate_json(first)

    def keep_result(self, record: ResultRecord, line: bytes) -> None:
        """Keep a result; it replaces another result of its case and target."""
        self._database.execute(
            "INSERT INTO results (id, target, line) VALUES (?, ?, ?)"
            " ON CONFLICT (id, target) DO UPDATE SET line = excluded.line",
            (record.case, record.target, line.rstrip()),
        )

    def by_case(self, targets: Sequence[str]) -> Iterator[tuple[str, bytes, list[bytes]]]:
        """The id and the line of each case, and the lines of its results in the order of
        ``targets``."""
        for id, line in self._database.execute("SELECT id, line FROM cases ORDER BY place"):
            sql = "SELECT target, line FROM results WHERE id = ?"
            lines = dict(self._database.execute(sql, (id,)))
            yield id, line, [lines[target] for target in targets if target in lines]


class _Cases(Mapping[str, CaseRecord]):
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getitem__(self, id: str) -> CaseRecord:
        line = _value(self._database, "line FROM cases WHERE id = ?", id)
        return CaseRecord.model_validate_json(line)

    def __iter__(self) -> Iterator[str]:
        return (id for (id,) in self._database.execute("SELECT id FROM cases ORDER BY place"))

    def __len__(self) -> int:
        return int(_value(self._database, "count(*) FROM cases"))


class _Results(Mapping[tuple[str, str], ResultRecord]):
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getitem__(self, key: tuple[str, str]) -> ResultRecord:
        line = _value(self._database, "line FROM results WHERE id = ? AND target = ?", *key)
        return ResultRecord.model_validate_json(line)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._database.execute("SELECT id, target FROM results ORDER BY place"))

    def __len__(self) -> int:
        return int(_value(self._database, "count(*) FROM results"))


def _value(database: sqlite3.Connection, select: str, *key: str) -> Any:
    """The value that ``select`` finds. Raises :class:`KeyError` if there is none."""
    row = database.execute(f"SELECT {select}", key).fetchone()
    if row is None:
        raise KeyError(key)
    return row[0]
