"""The score of a target: how many of the calls that it was asked to run came out right.

A call is *asked* if it was tried, and *right* if its verdict is ``pass``: computed within the
error budget or rejected, as its contract demands. The others are counted by what a caller sees, so
that a clean rejection and a silently wrong result are never added up. Calls that are only requested
are no part of a target's score and have one of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from conformance.case.contract import BASES, Basis
from conformance.results.records import CaseRecord, ResultRecord, contract_of
from conformance.results.table import Table
from conformance.results.verdicts import PRESENTS, TABLE, Verdict, is_silent_failure, was_tried
from conformance.results.wrong_outputs import only_presents

Part = Literal["right", "rejected", "accepted", "presents", "silent", "none"]
#: What the asked calls are divided into, best first.
PARTS: Final[tuple[Part, ...]] = get_args(Part)


@dataclass(frozen=True)
class PartRow:
    """How a part of the score is shown."""

    label: str
    sentence: str
    colour: str
    """The verdict whose colour and symbol it has, or `PRESENTS`."""


SHOWN: Final[Mapping[Part, PartRow]] = {
    "right": PartRow("right", "computed correctly or rejected, as the contract demands", "pass"),
    "rejected": PartRow(
        "rejected", "rejected, with an error, although it must compute", "unsupported"
    ),
    "accepted": PartRow(
        "accepted or elsewhere",
        "ran although it must be rejected, with correct values or none to compare, or ran on "
        "another execution provider",
        "accepted",
    ),
    "presents": PartRow(
        "only presents wrong", "returned the right output, wrong presents and no error", PRESENTS
    ),
    "silent": PartRow("silently wrong", "returned wrong results and no error", "wrong"),
    "none": PartRow("no result", "the process died, or did not answer in time", "crash"),
}

_BY_GROUP: Final[Mapping[str, Part]] = {
    "no result": "none",
    "result, no error": "accepted",
    "rejected": "rejected",
    "correct": "right",
}
#: The part of each verdict that is tried; a silent failure is ``presents`` or ``silent`` whatever
#: its verdict.
_PART_OF: Final[Mapping[Verdict, Part]] = {
    verdict: _BY_GROUP[row.group] for verdict, row in TABLE.items() if row.group in _BY_GROUP
}


def part_of(result: ResultRecord) -> Part | None:
    """The part of the score that a result counts for; None if it was not tried."""
    if not was_tried(result):
        return None
    if is_silent_failure(result):
        return "presents" if only_presents(result) else "silent"
    return _PART_OF.get(result.verdict)


@dataclass(frozen=True)
class Score:
    """Numbers of calls by part, and of those that were not tried."""

    parts: Mapping[Part, int] = field(default_factory=Counter)
    not_tried: int = 0
    """Skipped, run by another kernel than the target names, or without a result."""

    @property
    def right(self) -> int:
        return self.parts["right"]

    @property
    def asked(self) -> int:
        return sum(self.parts.values())

    @property
    def percent(self) -> int:
        """The share that is right, in per cent, rounded down: only 100 if all are right."""
        return 100 * self.right // self.asked if self.asked else 0

    def __add__(self, other: Score) -> Score:
        return Score(Counter(self.parts) + Counter(other.parts), self.not_tried + other.not_tried)

    def numbers(self) -> dict[str, int]:
        """All numbers by name, for programs."""
        parts: dict[str, int] = {part: self.parts[part] for part in PARTS}
        return {"asked": self.asked, **parts, "not_tried": self.not_tried}


@dataclass(frozen=True)
class Scores:
    """The scores of one target."""

    specified: Score
    established: Score
    requested: Score
    themes: Mapping[str, Score]
    """Of the specified and the established calls, by theme, in the order of the file."""

    @property
    def whole(self) -> Score:
        """The score of the target: of the specified and the established calls."""
        return self.specified + self.established


def scores(cases: Mapping[str, CaseRecord], results: Mapping[str, ResultRecord | None]) -> Scores:
    """The scores of one target. ``results`` has every case of the report, None without a result.

    A case that the file does not describe counts as specified, in the theme ``""``.
    """
    by_basis: dict[Basis, list[ResultRecord | None]] = {basis: [] for basis in BASES}
    themes: dict[str, list[ResultRecord | None]] = {}
    for id, result in results.items():
        case = cases.get(id)
        basis = _basis(case, result)
        by_basis[basis].append(result)
        if basis != "requested":
            themes.setdefault(case.theme if case else "", []).append(result)
    return Scores(
        **{basis: _score(members) for basis, members in by_basis.items()},
        themes={theme: _score(members) for theme, members in themes.items()},
    )


def _basis(case: CaseRecord | None, result: ResultRecord | None) -> Basis:
    if case is None:
        return "specified"
    return (contract_of(case, result) if result else case.contract).basis


def is_asked(case: CaseRecord | None, result: ResultRecord) -> bool:
    """Whether a result counts for the score of its target: tried, and not only requested."""
    return was_tried(result) and _basis(case, result) != "requested"


def _score(results: Iterable[ResultRecord | None]) -> Score:
    counts = Counter(result and part_of(result) for result in results)
    not_tried = counts.pop(None, 0)
    return Score(Counter({part: n for part, n in counts.items() if part}), not_tried)


def scores_of(joined: Table) -> dict[str, Scores]:
    """The scores of each column."""
    ids = joined.ids
    return {
        column.label: scores(
            joined.cases, {id: joined.results.get((id, column.label)) for id in ids}
        )
        for column in joined.columns
    }


def shared_scores(joined: Table, labels: Sequence[str]) -> dict[str, Score]:
    """The score of each of these columns over the calls that all of them were asked.

    A column that was asked nothing is left out; empty if there is no such call, or only one column.
    """
    asked = {
        label: {
            id: result
            for id in joined.ids
            if (result := joined.results.get((id, label)))
            and is_asked(joined.cases.get(id), result)
        }
        for label in labels
    }
    asked = {label: results for label, results in asked.items() if results}
    if len(asked) < 2:
        return {}
    shared = set.intersection(*map(set, asked.values()))
    if not shared:
        return {}
    return {label: _score(results[id] for id in shared) for label, results in asked.items()}
