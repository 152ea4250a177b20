"""Which results have one cause, and what an expectation says of all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from conformance.expectations.observed import Observation
from conformance.results.verdicts import VERDICTS, Verdict
from conformance.results.wrong_outputs import WRONG_OUTPUTS, only_presents

#: What differs between the messages of one cause, or separates what does not: numbers, what is in
#: brackets, and the ends of sentences.
_BETWEEN: Final = re.compile(r"\d+(?:\.\d+)*|\((?:[^()]|\([^()]*\))*\)|[.:;,]\s|\n|\[|\]|'[^']*'")
#: The sentence about a crash, which is the suite's own, names a signal if there was one.
_SIGNAL: Final = re.compile(r"\bSIG[A-Z]+\b")
#: A part of a message with fewer letters says nothing.
_LETTERS: Final = 8
#: A longer part is cut.
_MOST: Final = 90

#: The results of one case on one release and adapter.
Point = tuple[Observation, ...]


class Cause(NamedTuple):
    """What results of one cause have in common."""

    verdicts: tuple[Verdict, ...]
    """Several, worst first, of a case that has another one in other runs."""
    stage: str
    message: str
    """The telling part of the message."""
    fault: str
    """The kind of the first fault."""
    only_presents: bool


class Causes:
    """Finds the causes of results. What tells a message from others depends on all of them."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        self._telling: dict[str, str] = {}
        messages = {one.message: one.verdict for one in observations if one.message}
        parts: dict[str, list[str]] = {}
        for message, verdict in sorted(messages.items()):
            if verdict == "crash" and _SIGNAL.search(message):
                self._telling[message] = _only(_SIGNAL.findall(message))
            else:
                parts[message] = _parts(message)
        rare = Counter(part for shape in set(map(tuple, parts.values())) for part in set(shape))
        for message, found in parts.items():
            best = min(found, key=lambda part: (rare[part], -len(part)), default="")
            self._telling[message] = best if len(best) <= _MOST else best[:_MOST].rsplit(" ", 1)[0]

    def of(self, results: Point) -> Cause:
        """The cause of the results of one case on one release."""
        verdicts = tuple(each for each in VERDICTS if each in {one.verdict for one in results})
        failing = [one for one in results if one.verdict == verdicts[0]]
        varies = any(fault.kind == "runs_differ" for one in failing for fault in one.faults)
        return Cause(
            verdicts,
            _only(one.stage or "" for one in failing),
            ""
            if verdicts[0] == "pass"
            else _only(self._telling.get(one.message or "", "") for one in failing),
            "varies" if varies else _only(one.faults[0].kind for one in failing if one.faults),
            all(map(only_presents, failing)),
        )


def fields_of(cause: Cause, points: Sequence[Point]) -> dict[str, Any]:
    """The fields of an expectation for the results of ``cause`` on several ``points``."""
    verdict, *others = cause.verdicts
    fields: dict[str, Any] = {"verdict": verdict}
    if verdict == "pass":
        return fields
    failing = [one for point in points for one in point if one.verdict == verdict]
    if cause.stage:
        fields["stage"] = cause.stage
    if cause.message and all(cause.message in (one.message or "") for one in failing):
        fields["message"] = cause.message
    placement = _only(one.placement or "" for one in failing)
    if verdict == "fallback" and placement:
        fields["placement"] = placement
    varies = (*others, *(["values"] if cause.fault == "varies" else []))
    if varies:
        fields["varies"] = varies
    if cause.fault != "varies" and cause.fault and verdict in ("wrong", "accepted"):
        fields["fault"] = cause.fault
    wrong = {each for one in failing for each in one.wrong_outputs}
    told = verdict in ("wrong", "accepted") and all(one.wrong_outputs for one in failing)
    if told and len(wrong) < len(WRONG_OUTPUTS):
        fields["wrong"] = tuple(each for each in WRONG_OUTPUTS if each in wrong)
    if others:
        fields["rate"] = rate_of(points)
    return fields


def rate_of(points: Sequence[Point]) -> dict[str, Any]:
    """How many results are not `pass`, and of how many: of the cases that have several verdicts."""
    flaky = [point for point in points if len({one.verdict for one in point}) > 1]
    every = [one.verdict for point in flaky for one in point]
    return {"failed": len(every) - every.count("pass"), "runs": len(every)}


def _parts(message: str) -> list[str]:
    """The parts of a message that do not differ between results of one cause."""
    found = (part.strip(" =-<>") for part in _BETWEEN.split(message))
    return [p for p in found if p.isprintable() and sum(map(str.isalpha, p)) >= _LETTERS]


def _only(values: Iterable[str]) -> str:
    """The value if all are the same, else nothing."""
    different = {*values}
    return different.pop() if len(different) == 1 else ""
