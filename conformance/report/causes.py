"""Results that are alike: of one target, with one verdict and one symptom.

A kernel with one defect fails many cases. They are told together, with one of them as the example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from conformance.report.symptoms import quoted, symptom
from conformance.results.records import ResultRecord
from conformance.results.verdicts import acceptance_of, severity

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
        groups.setdefault((severity(result), _head(result), symptom(result)), []).append(item)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    return [
        Cause(f"{head}: {quoted(what)}" if what else head, tuple(members))
        for (_, head, what), members in ordered
    ]


def _head(result: ResultRecord) -> str:
    """Verdict and target."""
    acceptance = acceptance_of(result)
    note = f" ({acceptance.note})" if acceptance else ""
    stage = f" at {result.stage}" if result.stage else ""
    return f"{result.verdict}{stage}{note} on {result.target}"
