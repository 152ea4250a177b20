"""Results that are alike: of one target, with one verdict and one symptom.

A kernel with one defect fails many cases. They are told together, with one of them as the example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from conformance.report.changes import normal
from conformance.report.text import clean
from conformance.results.records import (
    BeyondBudget,
    Fault,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import acceptance_of, severity

#: Messages are compared by their beginning and end, this many characters together …
_COMPARED: Final = 1_000
#: … and quoted by this many at the end, where runtimes say what is wrong.
_QUOTED: Final = 140

# A number that is no part of a name such as float16, a list of them, and a case's id.
_NUMBER: Final = re.compile(r"<number>|(?<![A-Za-z\d])\d+")
_NUMBERS: Final = re.compile(r"N(?:[,x ]{1,3}N)+")
_CASE: Final = re.compile(r"\b[a-z0-9_]{1,80}/[a-z0-9_]{1,80}\[[^\]\s]{0,300}\]")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cause(Generic[_T]):
    """What is alike, and all of it; the first is the example."""

    sentence: str
    """Verdict, target and symptom, without a full stop: `wrong on cpu@1.31.1: output is …`."""
    members: tuple[_T, ...]


def causes(items: Iterable[_T], result_of: Callable[[_T], ResultRecord]) -> list[Cause[_T]]:
    """``items`` by cause: the worst first, and of those equally bad the largest number."""
    groups: dict[tuple[int, str, str], list[_T]] = {}
    for item in items:
        result = result_of(item)
        groups.setdefault((severity(result), _head(result), _symptom(result)), []).append(item)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    return [
        Cause(f"{head}: {_quoted(symptom)}" if symptom else head, tuple(members))
        for (_, head, symptom), members in ordered
    ]


def _head(result: ResultRecord) -> str:
    """Verdict and target."""
    acceptance = acceptance_of(result)
    note = f" ({acceptance.note})" if acceptance else ""
    stage = f" at {result.stage}" if result.stage else ""
    return f"{result.verdict}{stage}{note} on {result.target}"


def _symptom(result: ResultRecord) -> str:
    """What the result has in common with others of the same defect; may be empty."""
    known = result.expectation
    if result.unexpected and known is not None:
        return f"the expectation is {known.verdict} ({known.file}:{known.line})"
    if result.message:
        return abstract(result.message, result.target)
    if result.outcome == "ran" and result.placement and result.verdict == "fallback":
        return f"it ran on {result.placement}"
    where = "in the variant, " if result.of_variant else ""
    clauses = dict.fromkeys(_clause(fault) for fault in result.faults)
    return where + "; ".join(clauses) if clauses else ""


def _clause(fault: Fault) -> str:
    match fault:
        case RunsDiffer():
            return f"two runs differ in {fault.output}"
        case WrongDtype():
            return f"{fault.output} has another dtype"
        case WrongShape():
            return f"{fault.output} has another shape"
        case BeyondBudget():
            return f"{fault.output} is beyond its error budget"
        case RelationBroken():
            return f"the variant {fault.name} gives another {fault.output}"


def abstract(message: str, target: str) -> str:
    """A message without its numbers, its case ids and the target's name, on one line."""
    text = normal(clean(message, _COMPARED), (target,))
    text = _NUMBER.sub("N", _CASE.sub("<case>", text))
    return _NUMBERS.sub("N, …", text).rstrip(".")


def _quoted(text: str) -> str:
    """The end of ``text``, from the beginning of a word if there is one."""
    if len(text) <= _QUOTED:
        return text
    end = text[-_QUOTED:]
    return f"… {end.partition(' ')[2] or end}"
