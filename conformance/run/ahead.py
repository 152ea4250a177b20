"""Runs cases one by one, and the next one already while the last is judged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain

from conformance.bundle.cache import BundleError
from conformance.case.case import Case
from conformance.harness.process import RunnerFailed
from conformance.results.records import InstabilityRecord
from conformance.run.assessment import Record
from conformance.run.engine import TargetRun
from conformance.run.instability import Reported


class Ahead:
    """Gives the records of a target's cases, each when it is asked for.

    Whoever asks for the record of a case says which cases follow. The first of these has been sent
    to the runner when the record comes. What is asked for instead is run by itself.
    """

    def __init__(self, run: TargetRun) -> None:
        self.run = run
        self._reported: Generator[tuple[Case, Reported], None, None] | None = None
        #: The cases that the run has drawn and whose records have not come.
        self._drawn: deque[Case] = deque()

    def record(self, case: Case, following: Callable[[], Iterable[Case]]) -> Record:
        """As :meth:`TargetRun.run_one`; ``following`` is called where the case was not expected."""
        if self.run.ready.cannot_take(case) is not None:
            return self.run.run_one(case)
        if not self._drawn or self._drawn[0] is not case:
            self.close()
            self._reported = self.run.run_possible(self._draw(chain([case], following())))
        with suppress(RunnerFailed, BundleError):  # perhaps because of a case that follows
            record = self._next(case)
            if record is not None:
                return record
        self.close()
        return self.run.run_one(case)

    def close(self) -> None:
        """Stop what runs ahead."""
        if self._reported is not None:
            self._reported.close()
        self._reported = None
        self._drawn.clear()

    def _draw(self, cases: Iterable[Case]) -> Iterator[Case]:
        for case in cases:
            if self.run.ready.cannot_take(case) is None:
                self._drawn.append(case)
                yield case

    def _next(self, case: Case) -> Record | None:
        """The record of ``case``; None if that of another comes first."""
        assert self._reported is not None
        record: Record | None = None
        for about, found in self._reported:
            if isinstance(found, InstabilityRecord) or not any(about is one for one in self._drawn):
                self.run.aside.append((about, found))
            elif about is not case:
                return None
            else:
                record = found
                self._drawn.popleft()
                if self._drawn:
                    break  # else no case follows, and what comes is about those before
        return record
