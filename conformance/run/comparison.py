"""A result beside the expectation that covers it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.base.paths import data_path, shown
from conformance.judge.expectations import Expectation, Subject, known_result
from conformance.judge.verdict import Judgement
from conformance.results.records import ExpectationRecord, ResultRecord, Stage
from conformance.results.verdicts import is_red, was_tried

#: In the sentence about a result that differs from its expectation, behind the line's place.
ANOTHER_EXPECTATION: Final = " has another expectation for "


@dataclass(frozen=True)
class Comparison:
    """A result beside the expectation that covers it; ``sentence`` says how it differs from it."""

    unexpected: bool
    expectation: ExpectationRecord | None = None
    sentence: str = ""


def compared(
    subject: Subject,
    judged: Judgement | ResultRecord,
    basis: str,
    outcome: tuple[Stage | None, str | None, str | None],
    on: tuple[str, str | None],
    expectations: Iterable[Expectation],
) -> Comparison:
    """Compare a result with the expectations of its target.

    ``basis`` is that of its contract; the rest is as `known_result` takes it.
    """
    found = None
    if was_tried(judged):  # else no defect can show
        found = known_result(subject, judged, outcome, on, expectations)
    if found is None:
        return Comparison(is_red(judged, basis))
    line, differs = found
    if differs is None and line.known.verdict == "pass":
        return Comparison(False)
    record, known = expectation_record(line), line.known
    if differs is None:
        return Comparison(False, record)
    sentence = (
        f" {record.file}:{line.line}{ANOTHER_EXPECTATION}{known.where}: {differs}; end that range"
        " of versions, or change the line."
    )
    return Comparison(True, record, sentence)


def expectation_record(line: Expectation) -> ExpectationRecord:
    """What a result says of the line that covers it."""
    known = line.known
    return ExpectationRecord(
        file=expectations_place(line.file),
        line=line.line,
        verdict=known.verdict,
        link=known.link,
        why=known.why,
        flaky=known.flaky_record,
    )


def expectations_place(file: Path) -> str:
    """An expectations file for those who do not have this machine: the shipped, in the project."""
    shipped = data_path("expectations")
    return f"{shipped.name}/{file.name}" if file.parent == shipped else shown(file)
