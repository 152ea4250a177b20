"""A store of results files that are read to be shown."""

from __future__ import annotations

from collections.abc import Callable

from conformance.results.records import ResultRecord
from conformance.results.store import Store
from conformance.results.verdicts import severity


class StoreInMemory(Store):
    """A store that has the results of ``worst`` in memory, as they were first read.

    Their lines are not kept, so `by_case` cannot be used.
    """

    worst: dict[tuple[str, str], ResultRecord]

    def __init__(self, change: Callable[[ResultRecord], ResultRecord] | None = None) -> None:
        super().__init__()
        self.worst = {}
        self._change = change

    def add_result(self, record: ResultRecord, line: bytes = b"", file: str = "") -> None:
        """Add a result; of several ones of a case and target, ``worst`` has the worst."""
        super().add_result(record, b"{}", file)
        key = record.case, record.target
        first = self.worst.get(key)
        if first is None or severity(record) < severity(first):
            self.worst[key] = self._change(record) if self._change else record
