"""Keeps the cases and results of results files, of any number, in a database.

SQLite keeps a small database in memory, and a larger one in a temporary file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from conformance.results.records import (
    CASE_LINE,
    CaseRecord,
    ResultRecord,
    ShippedCaseRecord,
)
from conformance.results.results_error import ResultsError
from conformance.results.shipped import described, description
from conformance.results.verdicts import Verdict, severity

try:
    import sqlite3
except ImportError:
    raise ResultsError(
        "This Python was built without SQLite, which results files are read with."
    ) from None

#: ``place`` is the order of the files. Of results that are equally bad, the first counts.
_TABLES: Final = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -32768;
CREATE TABLE cases (place INTEGER PRIMARY KEY, id TEXT UNIQUE, line BLOB);
CREATE TABLE results (place INTEGER PRIMARY KEY, file TEXT, id TEXT, target TEXT, verdict TEXT,
                      unexpected INTEGER, severity INTEGER, line BLOB);
CREATE INDEX by_severity ON results (id, target, severity, place);
CREATE VIEW worst AS SELECT place, file, target, verdict, min((severity << 40) + place)
                     FROM results GROUP BY id, target;
BEGIN;
"""


class Store:
    """The lines of results files. Records are read from them when they are asked for.

    ``cases`` has the cases by id, ``worst`` the worst result of each case and target, both in the
    order of the files. Methods raise :class:`OSError` if the database cannot be written.
    """

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_TABLES)
        self.cases: Mapping[str, CaseRecord] = _Records(
            self,
            "id FROM cases ORDER BY place",
            "line FROM cases WHERE id = ?",
            _case,
        )
        self.worst: Mapping[tuple[str, str], ResultRecord] = _Records(
            self,
            "id, target FROM results GROUP BY id, target ORDER BY min(place)",
            "line FROM results WHERE id = ? AND target = ? ORDER BY severity, place LIMIT 1",
            ResultRecord.model_validate_json,
        )

    def __del__(self) -> None:
        self._database.close()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """Run a statement."""
        try:
            return self._database.execute(sql, values)
        except sqlite3.Error as error:
            where = "in the folder for temporary files; TMPDIR can name another one"
            raise OSError(f"{error}, {where}") from None

    def value(self, select: str, *key: Any) -> Any:
        """The value that ``select`` finds. Raises :class:`KeyError` if there is none."""
        row = self.execute(f"SELECT {select}", *key).fetchone()
        if row is None:
            raise KeyError(key)
        return row[0]

    def add_case(self, id: str, line: bytes) -> CaseRecord | None:
        """Add a case unless one with its id is there already, which is returned if its line is
        another."""
        sql, line = "INSERT OR IGNORE INTO cases (id, line) VALUES (?, ?)", line.rstrip()
        if self.execute(sql, id, line).rowcount:
            return None
        first = self.value("line FROM cases WHERE id = ?", id)
        return None if first == line else _case(first)

    def add_result(self, record: ResultRecord, line: bytes = b"", file: str = "") -> None:
        """Add a result; of several ones of a case and target, ``worst`` has the worst."""
        line = line.rstrip() or record.model_dump_json().encode()
        about = record.case, record.target, record.verdict, record.unexpected, severity(record)
        self.execute("INSERT INTO results VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", file, *about, line)

    def counts(self, file: str) -> dict[str, Counter[Verdict]]:
        """The number of all results of a file, by target and verdict."""
        return self._counted("results", file)

    def totals(self, file: str) -> dict[str, Counter[Verdict]]:
        """As `counts`, but of several results of a case and target only the worst is counted."""
        return self._counted("worst", file)

    def _counted(self, table: str, file: str) -> dict[str, Counter[Verdict]]:
        counts: dict[str, Counter[Verdict]] = {}
        sql = f"SELECT target, verdict, count(*) FROM {table} WHERE file = ?"
        for target, verdict, number in self.execute(
            f"{sql} GROUP BY target, verdict ORDER BY min(place)", file
        ):
            counts.setdefault(target, Counter())[verdict] = number
        return counts

    def unexpected(self, file: str) -> int:
        """The number of all unexpected results of a file."""
        return int(self.value("total(unexpected) FROM results WHERE file = ?", file))

    def repeated(self) -> list[tuple[str, str]]:
        """The cases and targets with several results."""
        sql = "SELECT id, target FROM results GROUP BY id, target HAVING count(*) > 1"
        return list(self.execute(f"{sql} ORDER BY min(place)"))

    def by_case(self, targets: Sequence[str]) -> Iterator[tuple[str, bytes, list[bytes]]]:
        """The id of each case, the line of its description, and the lines of its results in the
        order of ``targets``."""
        for id, line in self.execute("SELECT id, line FROM cases ORDER BY place"):
            if isinstance(CASE_LINE.validate_json(line), ShippedCaseRecord):
                line = description(id).model_dump_json().encode()
            lines = dict(self.execute("SELECT target, line FROM results WHERE id = ?", id))
            yield id, line, [lines[target] for target in targets if target in lines]


def _case(line: bytes) -> CaseRecord:
    """The description of a case."""
    return described(CASE_LINE.validate_json(line))


ResultKey = TypeVar("ResultKey")
RecordKind = TypeVar("RecordKind")


class _Records(Mapping[ResultKey, RecordKind]):
    """The records that ``line`` selects by the keys that ``keys`` selects."""

    def __init__(
        self, store: Store, keys: str, line: str, parse: Callable[[bytes], RecordKind]
    ) -> None:
        self._store = store
        self._keys = keys
        self._line = line
        self._parse = parse

    def __getitem__(self, key: ResultKey) -> RecordKind:
        values = key if isinstance(key, tuple) else (key,)
        return self._parse(self._store.value(self._line, *values))

    def __iter__(self) -> Iterator[ResultKey]:
        for row in self._store.execute(f"SELECT {self._keys}"):
            yield cast(ResultKey, row if len(row) > 1 else row[0])

    def __len__(self) -> int:
        return int(self._store.value(f"count(*) FROM (SELECT {self._keys})"))
