"""Results files of any size: their lines are in a database.

SQLite keeps it in memory while it is small, beyond that in a file, and removes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from conformance.results.errors import ResultsError
from conformance.results.reader import Run, doubted, take
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.table import Table, is_same_case, tabulate

if TYPE_CHECKING:
    from sqlite3 import Connection

_TABLES: Final = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32768;
CREATE TABLE cases (place INTEGER PRIMARY KEY, id TEXT UNIQUE, file INTEGER, line BLOB);
CREATE TABLE results (place INTEGER PRIMARY KEY, id TEXT, target TEXT, file INTEGER, line BLOB,
                      UNIQUE (id, target));
BEGIN;
"""


@contextmanager
def stored(path: Path) -> Iterator[Table]:
    """A file alone, as `tabulate` gives it; its records can be read until the context ends.

    Raises `ResultsError` as :func:`conformance.results.reader.read` does, and
    :class:`sqlite3.Error` if the database cannot be written (`database_errors`).
    """
    with closing(Store()) as store:
        yield tabulate([doubted(take(path, store))])


class Store:
    """The lines of results files by case and target, which has the first of several files.

    ``shorten`` gives the line of a result that is kept.
    """

    def __init__(
        self, shorten: Callable[[bytes, ResultRecord], bytes] = lambda line, record: line
    ) -> None:
        self._shorten = shorten
        self._file = -1
        self._database = _database()
        self.cases: Mapping[str, CaseRecord] = _Cases(self._database)
        self.worst: Mapping[tuple[str, str], ResultRecord] = _Results(self._database)

    def close(self) -> None:
        """Remove the database."""
        self._database.close()

    def add(self, path: Path) -> Run:
        """Take over a file, the next one by number. Raises `ResultsError` if it cannot be read."""
        self._file += 1
        return take(path, self, same=is_same_case)

    def keep_case(self, record: CaseRecord, line: bytes) -> CaseRecord:
        """Keep a case unless there is one with its id; returns the one that is kept."""
        sql = "INSERT OR IGNORE INTO cases (id, file, line) VALUES (?, ?, ?)"
        line = line.rstrip()
        if self._database.execute(sql, (record.id, self._file, line)).rowcount:
            return record
        first = _value(self._database, "line FROM cases WHERE id = ?", record.id)
        return record if first == line else CaseRecord.model_validate_json(first)

    def keep_result(self, record: ResultRecord, line: bytes) -> None:
        """Keep a result, in the place of another one of its case and target."""
        self._database.execute(
            "INSERT INTO results (id, target, file, line) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id, target) DO UPDATE SET line = excluded.line",
            (record.case, record.target, self._file, self._shorten(line.rstrip(), record)),
        )

    def first(self, case: str, target: str | None = None) -> int:
        """The number of the first file with a case or, on a ``target``, with a result of it."""
        if target is None:
            return int(_value(self._database, "file FROM cases WHERE id = ?", case))
        where = "file FROM results WHERE id = ? AND target = ?"
        return int(_value(self._database, where, case, target))

    def by_case(self, targets: Sequence[str]) -> Iterator[tuple[str, list[bytes]]]:
        """The lines of each case: its own, and those of its results in the order of ``targets``."""
        for id, line in self._database.execute("SELECT id, line FROM cases ORDER BY place"):
            sql = "SELECT target, line FROM results WHERE id = ?"
            found = dict(self._database.execute(sql, (id,)))
            yield id, [line, *(found[target] for target in targets if target in found)]


class _Cases(Mapping[str, CaseRecord]):
    def __init__(self, database: Connection) -> None:
        self._database = database

    def __getitem__(self, id: str) -> CaseRecord:
        line = _value(self._database, "line FROM cases WHERE id = ?", id)
        return CaseRecord.model_validate_json(line)

    def __iter__(self) -> Iterator[str]:
        return (id for (id,) in self._database.execute("SELECT id FROM cases ORDER BY place"))

    def __len__(self) -> int:
        return int(_value(self._database, "count(*) FROM cases"))


class _Results(Mapping[tuple[str, str], ResultRecord]):
    def __init__(self, database: Connection) -> None:
        self._database = database

    def __getitem__(self, key: tuple[str, str]) -> ResultRecord:
        line = _value(self._database, "line FROM results WHERE id = ? AND target = ?", *key)
        return ResultRecord.model_validate_json(line)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._database.execute("SELECT id, target FROM results ORDER BY place"))

    def __len__(self) -> int:
        return int(_value(self._database, "count(*) FROM results"))


def _value(database: Connection, select: str, *key: str) -> Any:
    """The value that ``select`` finds. Raises :class:`KeyError` if there is none."""
    found = database.execute(f"SELECT {select}", key).fetchone()
    if found is None:
        raise KeyError(key)
    return found[0]


def _database() -> Connection:
    try:
        import sqlite3
    except ImportError:
        raise ResultsError(
            "This Python was built without SQLite, which gqa merge and gqa diff need."
        ) from None
    made = sqlite3.connect("", isolation_level=None)
    made.executescript(_TABLES)
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
