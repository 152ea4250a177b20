"""A database for what does not fit into memory: a file that SQLite keeps, and removes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from conformance.results.errors import ResultsError

if TYPE_CHECKING:
    import sqlite3


def database(tables: str) -> sqlite3.Connection:
    """An empty database with these ``tables``, which is gone when it is closed.

    Raises `ResultsError` if this Python has no SQLite.
    """
    made: sqlite3.Connection = _sqlite().connect("", isolation_level=None)
    made.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {tables}")
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


def _sqlite() -> ModuleType:
    try:
        import sqlite3
    except ImportError:
        raise ResultsError(
            "This Python was built without SQLite, which gqa merge and large results files need."
        ) from None
    return sqlite3
