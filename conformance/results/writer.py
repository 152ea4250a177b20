"""Writes a results file line by line, while the run goes on."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from conformance.results.place import OutputFile
from conformance.results.records import (
    MOST_BYTES_A_LINE,
    AnyCaseRecord,
    Footer,
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    Record,
    ResultRecord,
)
from conformance.results.results_error import ResultsError, cause_of
from conformance.results.shareable import without_folders_in_json
from conformance.results.verdicts import Verdict, without_zeros


class Writer:
    """Writes a results file line by line; a context manager that always writes the footer.

    If a record cannot be written, `ResultsError` is raised. Later records are dropped without an
    error, so that the run can continue in the terminal. `failure` is that first error; the last
    line of the file may then be incomplete.
    """

    def __init__(self, place: OutputFile, header: Header) -> None:
        self._place = place
        self.failure: ResultsError | None = None
        self._counts = {target.name: Counter[Verdict]() for target in header.targets}
        self._infrastructure = self._unexpected = self._unstable = 0
        self._left = header.selection.results
        self._finished = False
        self._shareable = without_folders_in_json()
        self._since = time.monotonic()
        self._write(header)

    def case(self, record: AnyCaseRecord) -> None:
        """Write a case, once, before its results."""
        self._write(record)

    def result(self, record: ResultRecord) -> None:
        """Write a result and count it."""
        self._write(record)
        self._place.tried |= record.outcome != "unavailable"
        self._counts.setdefault(record.target, Counter())[record.verdict] += 1
        self._unexpected += record.unexpected
        self._left -= 1

    def replace(self) -> None:
        """Replace the file with earlier results by this one."""
        if self.failure is None:
            try:
                self._place.replace()
            except OSError as error:
                raise self._failed(error) from None

    def infrastructure(self, record: InfrastructureRecord) -> None:
        """Write an infrastructure failure and count it."""
        self._write(record)
        self._infrastructure += 1
        self._left -= record.case is not None

    def instability(self, record: InstabilityRecord) -> None:
        """Write a result that did not repeat and count it."""
        self._write(record)
        self._unstable += 1

    def finish(self, complete: bool) -> None:
        """Write the footer. ``complete``: every selected case has a result or failure."""
        if self._finished:
            return
        self._finished = True
        self._write(
            Footer(
                complete=complete,
                counts=without_zeros(self._counts),
                infrastructure=self._infrastructure,
                unexpected=self._unexpected,
                instability=self._unstable,
                not_run=max(0, self._left),
                end=datetime.now(UTC),
                seconds=round(time.monotonic() - self._since, 3),
            )
        )
        if complete:
            self.replace()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If `finish` was not called, the run was interrupted.
        try:
            self.finish(complete=False)
        except ResultsError:
            if error is None:
                raise

    def _write(self, record: Record) -> None:
        is_result = isinstance(record, ResultRecord)
        line = self._shareable(record.model_dump_json(exclude_defaults=is_result)).encode() + b"\n"
        if self.failure is not None:
            return
        try:
            if len(line) > MOST_BYTES_A_LINE:
                raise OSError(errno.EFBIG, f"a record has more than {MOST_BYTES_A_LINE:,} bytes")
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._place.descriptor, rest) :]
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> ResultsError:
        name = self._place.named
        self.failure = ResultsError(f"Cannot write results to {name}: {cause_of(error)}.")
        return self.failure
