"""A store of a results file that is read to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from conformance.results.records import ResultRecord
from conformance.results.store import Store
from conformance.results.verdicts import Verdict, severity


class StoreInMemory(Store):
    """A store of one file, whose worst results are in memory as they were first read.

    ``change`` is made to each of them. The lines of results are not kept, so `by_case` cannot be
    used.
    """

    worst: dict[tuple[str, str], ResultRecord]

    def __init__(self, change: Callable[[ResultRecord], ResultRecord] | None = None) -> None:
        super().__init__()
        self.worst = {}
        self._change = change
        self._counts: dict[str, Counter[Verdict]] = {}
        self._unexpected = 0
        self._repeated: set[tuple[str, str]] = set()

    def add_result(self, record: ResultRecord, line: bytes = b"", file: str = "") -> None:
        """Add a result; of several ones of a case and target, ``worst`` has the worst."""
        key = record.case, record.target
        self._counts.setdefault(record.target, Counter())[record.verdict] += 1
        self._unexpected += record.unexpected
        first = self.worst.get(key)
        if first is not None:
            self._repeated.add(key)
        if first is None or severity(record) < severity(first):
            self.worst[key] = self._change(record) if self._change else record

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
