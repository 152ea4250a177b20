"""The score of a target: how many of the calls that were tried on it are right.

A call that was tried is *asked*. It is *right* if its verdict is ``pass``: it was computed within
the error budget, or rejected, as its contract demands. All others are counted by what the caller
sees, so that clean rejections and silently wrong results are never added up. Calls whose contract
is only requested have a score of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from conformance.results.records import ResultRecord
from conformance.results.verdicts import (
    PRESENTS,
    SOFTWARE,
    TABLE,
    is_of_software,
    ranks_as,
    was_tried,
)
from conformance.results.wrong_outputs import only_presents

ScorePart = Literal["right", "rejected", "accepted", "software", "presents", "silent", "none"]
#: The parts of the asked calls, best first.
PARTS: Final[tuple[ScorePart, ...]] = get_args(ScorePart)


@dataclass(frozen=True)
class PartRow:
    """How a part of the score is shown."""

    label: str
    sentence: str
    colour: str
    """The verdict whose colour and symbol it has, `SOFTWARE` or `PRESENTS`."""


SHOWN: Final[Mapping[ScorePart, PartRow]] = {
    "right": PartRow("right", "computed correctly or refused, as the contract demands", "pass"),
    "rejected": PartRow(
        "refused", "refused, with an error, although it must compute", "unsupported"
    ),
    "accepted": PartRow(
        "accepted or elsewhere",
        "ran although it must be refused (its values correct or not comparable), or ran on "
        "another execution provider",
        "accepted",
    ),
    "software": PartRow(
        "wrong on a software GPU",
        "returned wrong results and no error on a software GPU; no real GPU was tried",
        SOFTWARE,
    ),
    "presents": PartRow(
        "only presents wrong", "returned the right output, wrong presents and no error", PRESENTS
    ),
    "silent": PartRow("silently wrong", "returned wrong results and no error", "wrong"),
    "none": PartRow("no result", "the process died, or did not answer in time", "crash"),
}

#: Reports of more targets begin with what each does with each theme, in words.
FEW_TARGETS: Final = 4

#: The part of a result by the group of its verdict; not for results that are silently wrong.
_BY_GROUP: Final[Mapping[str, ScorePart]] = {
    "no result": "none",
    "result, no error": "accepted",
    "refused": "rejected",
    "correct": "right",
}


def part_of(result: ResultRecord) -> ScorePart | None:
    """The part in which a result is counted; None if the call was not tried."""
    if not was_tried(result):
        return None
    if ranks_as(result) != "wrong":
        return _BY_GROUP[TABLE[result.verdict].group]
    if is_of_software(result):
        return "software"
    return "presents" if only_presents(result) else "silent"


@dataclass(frozen=True)
class Score:
    """The number of calls in each part, and of calls that were not tried."""

    parts: Mapping[ScorePart, int] = field(default_factory=Counter)
    not_tried: int = 0
    """Skipped, run by another kernel than the target names, or without a result."""

    @classmethod
    def of(cls, parts: Iterable[ScorePart | None]) -> Score:
        """The score of calls with these parts; None is a call that was not tried."""
        counts = Counter(parts)
        not_tried = counts.pop(None, 0)
        return cls(Counter({part: n for part, n in counts.items() if part}), not_tried)

    @property
    def right(self) -> int:
        return self.parts["right"]

    @property
    def asked(self) -> int:
        return sum(self.parts.values())

    @property
    def percent(self) -> int:
        """The share of right calls in per cent, rounded down: 100 means all."""
        return 100 * self.right // self.asked if self.asked else 0

    @property
    def failed(self) -> Sequence[ScorePart]:
        """The parts of the calls that are not right, the worst first."""
        return [part for part in reversed(PARTS) if part != "right" and self.parts[part]]

    def __add__(self, other: Score) -> Score:
        return Score(Counter(self.parts) + Counter(other.parts), self.not_tried + other.not_tried)

    def numbers(self) -> dict[str, int]:
        """All numbers by name."""
        parts: dict[str, int] = {part: self.parts[part] for part in PARTS}
        return {"asked": self.asked, **parts, "not_tried": self.not_tried}


def in_words(score: Score) -> list[tuple[str, str]]:
    """What became of the calls and of how many, the worst first: ``("refused", "10 of 132")``.

    Empty if no call was tried. ``("right", "all 132")`` if all are right; ``all 132 tried`` if
    others were not tried.
    """
    parts = score.failed or (["right"] if score.asked else [])
    numbers = [(SHOWN[part].label, score.parts[part]) for part in parts]
    tried = " tried" if score.not_tried else ""
    rest = ", else right" if parts == ["rejected"] and score.right else ""
    return [
        (label, f"all {n:,}{tried}" if n == score.asked else f"{n:,} of {score.asked:,}{rest}")
        for label, n in numbers
    ]


@dataclass(frozen=True)
class Scores:
    """The scores of one target."""

    specified: Score
    established: Score
    requested: Score
    themes: Mapping[str, Score]
    """The scores of the specified and established calls by theme: profiles first, then the others
    in the order of the file."""

    @property
    def whole(self) -> Score:
        """The score of the specified and established calls together: that of the target."""
        return self.specified + self.established


def shown_parts(scores: Iterable[Scores]) -> dict[ScorePart, PartRow]:
    """The parts that reports show; wrong on a software GPU only if there are such results."""
    software = any((each.whole + each.requested).parts["software"] for each in scores)
    return {part: row for part, row in SHOWN.items() if software or part != "software"}
