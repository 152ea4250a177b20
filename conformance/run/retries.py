"""Finds unstable results: a case is run again alone, in a new process.

A case's result is the one that it has alone. A fault that occurs among other cases and not alone is
recorded as instability of the target, with the case before it. There are two kinds: a crash or a
failure of the device, for which the session has already run the case alone
(`conformance.harness.outcomes.UnconfirmedFailure`), and an unexpected result, for which this module
runs the case alone.

The cost is bounded: of similar unexpected results, only the first `ALIKE` that repeat are tried
alone, and of those with one verdict the first `RETRIES`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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

    def why_not_alone(self, case: Case, first: Assessed) -> str | None:
        """None if the case is to be run alone; else what the reason of its result says of that.

        ``first`` is the assessment of the case among other cases.
        """
        record = first.record
        if not isinstance(record, ResultRecord) or not _doubtful(record, first.outcomes):
            return ""
        if record.verdict == "timeout" and self._ends_with_failure:
            return " Not run alone: the run ends with it."
        if self._repeated[_kind(case, record)] >= ALIKE:
            return ""
        if (repeated := self._repeated[record.verdict,]) >= RETRIES[record.verdict]:
            return (
                f" Not run alone: {repeated} unexpected results of this target with this verdict"
                " already recurred alone."
            )
        return None

    def settled(self, case: Case, first: Assessed, told: str, alone: Assessed | None) -> Assessed:
        """The final assessment of a case, with the target's instability.

        ``told`` is added to the reason of its first result; ``alone`` is its assessment alone in a
        new process, if there is one.
        """
        found, record = first, first.record
        if told and isinstance(record, ResultRecord):
            update = {"reason": record.reason + told}
            found = replace(first, record=record.model_copy(update=update))
        if alone is not None and isinstance(record, ResultRecord):
            found = self._of_both(case, first, record, alone)
        crashes = (each.unrepeated for each in first.outcomes if each.unrepeated)
        events = [self._event(case, "crash", crash.before, crash.message) for crash in crashes]
        return replace(found, instability=(*found.instability, *events))

    def _of_both(
        self, case: Case, first: Assessed, record: ResultRecord, alone: Assessed
    ) -> Assessed:
        """The assessment alone, unless that is no result; if it differs, the target is unstable."""
        again = alone.record
        if not isinstance(again, ResultRecord) or again.outcome == "unavailable":
            return first
        if any(each.unrepeated for each in alone.outcomes):
            return first
        if again.unexpected and severity(again) <= severity(record):
            self._repeated.update([(record.verdict,), _kind(case, record)])
            return alone
        event = self._event(case, record.verdict, _before(first.outcomes), record.reason)
        return replace(alone, instability=(event,))

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


def _before(outcomes: Sequence[Outcome]) -> Job | None:
    """The case that ran before in the same process."""
    return next((each.before for each in outcomes if each.before is not None), None)


def _doubtful(record: ResultRecord, outcomes: Sequence[Outcome]) -> bool:
    """Whether the case of this result should be tried once more, alone."""
    if not record.unexpected or record.verdict not in RETRIES:
        return False
    last = outcomes[-1]
    if isinstance(last, Rejected) and last.repeated:
        return False  # it was tried alone
    if _before(outcomes) is not None:
        return True
    return record.verdict != "timeout" and last.unrepeated is None


def _kind(case: Case, record: ResultRecord) -> tuple[object, ...]:
    """A key that results of the same defect share.

    For a rejection it is the message without its numbers, else the entry of the case and its
    faults.
    """
    if record.message is not None:
        return record.verdict, record.stage, record.code, re.sub(r"\d+", "N", record.message)
    faults = [(fault.kind, fault.output) for fault in record.faults]
    return record.verdict, case.theme, case.name, *faults
