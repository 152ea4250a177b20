"""Writes a results file as a run goes, line by line."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance.results.errors import ResultsError, cause_of
from conformance.results.records import (
    CaseRecord,
    Counts,
    Footer,
    Header,
    InfrastructureRecord,
    Record,
    ResultRecord,
)
from conformance.results.verdicts import VERDICTS, Verdict


class Writer:
    """Writes a results file line by line; a context manager that always writes the footer.

    The first failure raises `ResultsError`, whether it is the folder, the permissions or the disk.
    Later records are dropped without an error, so that the run can continue in the terminal.
    `failure` is that first error.
    """

    def __init__(self, path: Path | str, header: Header) -> None:
        self.path = Path(path)
        self.failure: ResultsError | None = None
        self._counts = {target.name: Counter[Verdict]() for target in header.targets}
        self._infrastructure = self._unexpected = self._size = 0
        self._finished = False
        self._since = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = -1
        try:
            self._file = os.open(self.path, flags, 0o666)
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        self._write(header)

    def case(self, record: CaseRecord) -> None:
        """Write a case; once, before its results."""
        self._write(record)

    def result(self, record: ResultRecord) -> None:
        """Write a result and count it."""
        self._write(record)
        self._counts.setdefault(record.target, Counter())[record.verdict] += 1
        self._unexpected += record.unexpected

    def infrastructure(self, record: InfrastructureRecord) -> None:
        """Write an infrastructure failure and count it."""
        self._write(record)
        self._infrastructure += 1

    def finish(self, complete: bool) -> None:
        """Write the footer. ``complete``: the run was not stopped before its end."""
        if self._finished:
            return
        self._finished = True
        counts: Counts = {
            name: {verdict: count[verdict] for verdict in VERDICTS if count[verdict]}
            for name, count in self._counts.items()
        }
        self._write(
            Footer(
                complete=complete,
                counts=counts,
                infrastructure=self._infrastructure,
                unexpected=self._unexpected,
                end=datetime.now(UTC),
                seconds=round(time.monotonic() - self._since, 3),
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Without a call of `finish` the run was interrupted, and the file must say so.
        try:
            self.finish(complete=False)
        except ResultsError:
            if error is None:
                raise
        finally:
            self._close()

    def _write(self, record: Record) -> None:
        line = record.model_dump_json().encode() + b"\n"
        if self.failure is not None:
            return
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            failure = self._failed(error)
            self._cut()
            self._close()
            raise failure from None
        self._size += len(line)

    def _cut(self) -> None:
        """Remove the part of a line that was written."""
        try:
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.ftruncate(self._file, self._size)
        except OSError:
            pass  # the reader accepts an incomplete last line

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            os.close(file)
        except OSError as error:
            if self.failure is None:
                raise self._failed(error) from None

    def _failed(self, error: OSError | ValueError) -> ResultsError:
        self.failure = ResultsError(f"Cannot write results to {self.path}: {cause_of(error)}.")
        return self.failure
