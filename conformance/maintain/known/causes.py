"""Which results have one cause, and what an expectation says of all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from conformance.maintain.known.observed import Observation
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
                self._telling[message] = _only(set(_SIGNAL.findall(message)))
            else:
                parts[message] = _parts(message)
        shapes = {tuple(found) for found in parts.values()}
        rare = Counter(part for shape in shapes for part in set(shape))
        for message, found in parts.items():
            best = min(found, key=lambda part: (rare[part], -len(part)), default="")
            self._telling[message] = _cut(best)

    def of(self, results: Sequence[Observation]) -> Cause:
        """The cause of the results of one case on one release."""
        verdicts = tuple(each for each in VERDICTS if each in {one.verdict for one in results})
        failing = [one for one in results if one.verdict == verdicts[0]]
        kinds = {one.faults[0].kind for one in failing if one.faults}
        varying = {fault.kind for one in failing for fault in one.faults} & {"runs_differ"}
        texts = {self._telling.get(one.message or "", "") for one in failing}
        return Cause(
            verdicts,
            _only({one.stage or "" for one in failing}),
            _only(texts) if verdicts[0] != "pass" else "",
            "varies" if varying else _only(kinds),
            all(map(only_presents, failing)),
        )


def fields_of(cause: Cause, points: Sequence[Sequence[Observation]]) -> dict[str, Any]:
    """The fields of an expectation for the results of ``cause`` on several ``points``."""
    every = [one for point in points for one in point]
    failing = [one for one in every if one.verdict == cause.verdicts[0]]
    fields: dict[str, Any] = {"verdict": cause.verdicts[0]}
    if cause.verdicts[0] == "pass":
        return fields
    if cause.stage:
        fields["stage"] = cause.stage
    if cause.message and all(cause.message in (one.message or "") for one in failing):
        fields["message"] = cause.message
    if cause.verdicts[0] == "fallback":
        placements = {one.placement for one in failing}
        if len(placements) == 1 and None not in placements:
            fields["placement"] = placements.pop()
    if cause.fault == "varies":
        fields["varies"] = True
    elif cause.fault and cause.verdicts[0] in ("wrong", "accepted"):
        fields["fault"] = cause.fault
    wrong = {each for one in failing for each in one.wrong_outputs}
    told = all(one.wrong_outputs for one in failing)
    if told and cause.verdicts[0] in ("wrong", "accepted") and len(wrong) < len(WRONG_OUTPUTS):
        fields["wrong"] = tuple(each for each in WRONG_OUTPUTS if each in wrong)
    if len(cause.verdicts) > 1:
        fields["flaky"] = flaky_share(points)
        if cause.verdicts[1:] != ("pass",):
            fields["flaky"]["also"] = cause.verdicts[1:]
    return fields


def flaky_share(points: Sequence[Sequence[Observation]]) -> dict[str, int]:
    """How many results are not `pass`, and of how many: of the cases that have several verdicts."""
    flaky = [point for point in points if len({one.verdict for one in point}) > 1]
    every = [one for point in flaky for one in point]
    return {"failed": sum(one.verdict != "pass" for one in every), "runs": len(every)}


def _parts(message: str) -> list[str]:
    """The parts of a message that do not differ between results of one cause."""
    found = (part.strip(" =-<>") for part in _BETWEEN.split(message))
    return [p for p in found if p.isprintable() and sum(map(str.isalpha, p)) >= _LETTERS]


def _cut(part: str) -> str:
    return part if len(part) <= _MOST else part[:_MOST].rsplit(" ", 1)[0]


def _only(values: set[Any]) -> str:
    """The value if all are the same, else nothing."""
    return str(next(iter(values))) if len(values) == 1 else ""
