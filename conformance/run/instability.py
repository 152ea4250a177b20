"""Finds unstable results: a case is run again alone, in a new process.

A case's result is the one that it has alone. A fault that occurs among other cases and not alone is
recorded as instability of the target, with the case before it. There are two kinds: a crash or a
failure of the device, for which the session has already run the case alone
(`conformance.harness.outcomes.Unrepeated`), and an unexpected result, for which this module runs
the case alone.

The cost is bounded: of similar unexpected results, only the first `ALIKE` that repeat are tried
alone, and of those with one verdict the first `RETRIES`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from conformance.case.case import Case
from conformance.expectations.match import Expectation, known_instability
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome, Rejected
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.verdicts import Verdict, severity
from conformance.run.assessment import Assessed
from conformance.run.target import DescribedTarget

#: Of similar unexpected results (`_kind`), the number that are tried alone and repeat …
ALIKE: Final = 2
#: … and the number for each verdict. A timeout takes long: only one after other cases is tried.
RETRIES: Final[Mapping[Verdict, int]] = {
    "timeout": 3,
    "wrong": 50,
    "accepted": 50,
    "unsupported": 50,
}
Reported = ResultRecord | InfrastructureRecord | InstabilityRecord


class Instability:
    """Tells the results of a target's cases from faults that occur only after other cases.

    ``ends_with_failure``: the run ends with its first failure; a hang is to cost it one time limit.
    ``lines`` are the expectations for its version and adapter.
    """

    def __init__(
        self,
        ready: DescribedTarget,
        ends_with_failure: bool = False,
        lines: Sequence[Expectation] = (),
    ) -> None:
        self._ready = ready
        self._lines = lines
        self._ends_with_failure = ends_with_failure
        #: Results that repeated alone, by their verdict and by their kind.
        self._repeated: Counter[tuple[object, ...]] = Counter()

    def settled(
        self, case: Case, first: Assessed, alone: Callable[[], Assessed | None]
    ) -> Assessed:
        """The final assessment of a case, with the target's instability.

        ``first`` is its assessment among other cases. ``alone`` assesses it alone in a new process,
        and returns None if that is not possible.
        """
        found = self._of_result(case, first, alone)
        crashes = (each.unrepeated for each in first.outcomes if each.unrepeated)
        events = [self._event(case, "crash", crash.before, crash.message) for crash in crashes]
        return replace(found, instability=(*found.instability, *events))

    def _of_result(
        self, case: Case, first: Assessed, alone: Callable[[], Assessed | None]
    ) -> Assessed:
        record = first.record
        before = next((each.before for each in first.outcomes if each.before is not None), None)
        if not isinstance(record, ResultRecord):
            return first
        if not _doubtful(record, first.outcomes[-1], before is not None):
            return first
        if record.verdict == "timeout" and self._ends_with_failure:
            told = " Not run alone: the run ends with it."
            return replace(first, record=record.model_copy(update={"reason": record.reason + told}))
        kind = _kind(case, record)
        if self._repeated[kind] >= ALIKE:
            return first
        if (repeated := self._repeated[record.verdict,]) >= RETRIES[record.verdict]:
            told = (
                f" Not run alone: {repeated} unexpected results of this target with this verdict"
                " already recurred alone."
            )
            return replace(first, record=record.model_copy(update={"reason": record.reason + told}))
        again = alone()
        if again is None or any(each.unrepeated for each in again.outcomes):
            return first
        settled = again.record
        if not isinstance(settled, ResultRecord) or settled.outcome == "unavailable":
            return first
        if settled.unexpected and severity(settled) <= severity(record):
            self._repeated.update([(record.verdict,), kind])
            return again
        event = self._event(case, record.verdict, before, record.reason)
        return replace(again, instability=(event,))

    def _event(
        self, case: Case, verdict: Verdict, before: Job | None, message: str
    ) -> InstabilityRecord:
        known = known_instability(case, verdict, self._lines)
        return InstabilityRecord(
            target=self._ready.name,
            case=case.id,
            verdict=verdict,
            before=before.case if before else None,
            message=message,
            unexpected=known is None,
            expectation=known,
        )


def _doubtful(record: ResultRecord, outcome: Outcome, in_company: bool) -> bool:
    """Whether the case of this result should be tried once more, alone."""
    if not record.unexpected or record.verdict not in RETRIES:
        return False
    if isinstance(outcome, Rejected) and outcome.repeated:
        return False  # it was tried alone
    if in_company:
        return True
    return record.verdict != "timeout" and outcome.unrepeated is None


def _kind(case: Case, record: ResultRecord) -> tuple[object, ...]:
    """A key that results of the same defect share.

    For a rejection it is the message without its numbers, else the entry of the case and its
    faults.
    """
    if record.message is not None:
        return record.verdict, record.stage, record.code, re.sub(r"\d+", "N", record.message)
    faults = [(fault.kind, fault.output) for fault in record.faults]
    return record.verdict, case.theme, case.name, *faults
