"""Results that are alike: of one target, with one verdict, the same wrong outputs, and one symptom
or known defect.

A kernel with one defect fails many cases. They are told together, with one of them as the example.
The page, the terminal and the Markdown all group by `causes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from conformance.report.symptoms import quoted, symptom
from conformance.results.records import ExpectationRecord, ResultRecord
from conformance.results.verdicts import acceptance_of, flaky_text, severity
from conformance.results.wrong_outputs import where_wrong

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cause(Generic[_T]):
    """What is alike, and all of it."""

    label: str
    """Of the target."""
    example: ResultRecord
    """The first of the results. All have its verdict, its wrong outputs, and its known defect or
    its symptom."""
    stage: str | None
    """The stage of all of them, if it is the same."""
    members: tuple[_T, ...]

    @property
    def verdict(self) -> str:
        """With the stage, the wrong outputs and a note: `unsupported at run`, `wrong in output and
        presents`, `accepted (wrong values) in output`."""
        acceptance = acceptance_of(self.example)
        note = f" ({acceptance.note})" if acceptance else ""
        if self.example.flaky:
            note += f" ({flaky_text(self.example.flaky)})"
        stage = f" at {self.stage}" if self.stage else ""
        where = where_wrong(self.example)
        return f"{self.example.verdict}{stage}{note}{f' {where}' if where else ''}"

    @property
    def known(self) -> ExpectationRecord:
        """The known defect; only of results that have one."""
        known = self.example.known
        assert known is not None
        return known

    @property
    def sentence(self) -> str:
        """Verdict, target and what is alike, without a full stop: `wrong in output on cpu@1.31.1:
        output is …`."""
        known = self.example.known
        what = known.why if known else quoted(symptom(self.example))
        head = f"{self.verdict} on {self.label}"
        return f"{head}: {what}" if what else head


def causes(
    items: Iterable[_T],
    result_of: Callable[[_T], ResultRecord],
    label_of: Callable[[_T], str] | None = None,
) -> list[Cause[_T]]:
    """``items`` by cause: the worst first, and of those equally bad the largest number.

    ``label_of`` gives the label of an item's target where several runs are joined; else it is the
    target's name.
    """
    groups: dict[tuple[int, str, str, tuple[str, ...], tuple[str, ...]], list[_T]] = {}
    for item in items:
        result = result_of(item)
        known = result.known
        label = label_of(item) if label_of else result.target
        what = (known.why, known.link) if known else (symptom(result),)
        key = severity(result), result.verdict, label, tuple(result.wrong_outputs), what
        groups.setdefault(key, []).append(item)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    return [_cause(label, members, result_of) for (_, _, label, *_), members in ordered]


def _cause(label: str, members: list[_T], result_of: Callable[[_T], ResultRecord]) -> Cause[_T]:
    stages = {result_of(item).stage for item in members}
    stage = stages.pop() if len(stages) == 1 else None
    return Cause(label, result_of(members[0]), stage, tuple(members))
