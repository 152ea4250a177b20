"""Which results have one cause, and what an expectation says of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from conformance.results.records import ResultRecord
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
Point = Sequence[ResultRecord]


class SharedCause(NamedTuple):
    """What results of one cause have in common."""

    verdicts: tuple[Verdict, ...]
    """Several, worst first, of a case that has another one in other runs."""
    stage: str
    parts: tuple[str, ...]
    """The parts of the message without numbers and names; none if the results differ in them."""
    fault: str
    """The kind of the first fault."""
    varies: bool
    """Whether two runs differ."""
    only_presents: bool


def cause_of(results: Point) -> SharedCause:
    """The cause of the results of one case on one release."""
    verdicts = tuple(each for each in VERDICTS if each in {one.verdict for one in results})
    failing = [one for one in results if one.verdict == verdicts[0]]
    parts = {_parts(one) for one in failing}
    varies = any(fault.kind == "runs_differ" for one in failing for fault in one.faults)
    return SharedCause(
        verdicts,
        _only(one.stage or "" for one in failing),
        parts.pop() if len(parts) == 1 else (),
        "" if varies else _only(one.faults[0].kind for one in failing if one.faults),
        varies,
        all(map(only_presents, failing)),
    )


def fields_of(
    cause: SharedCause, points: Sequence[Point], number: Mapping[str, int]
) -> dict[str, Any]:
    """The fields of an expectation for the results of ``cause`` on several ``points``.

    ``number`` has how many causes have a part of a message: the rarest tells this one from others.
    """
    verdict, *others = cause.verdicts
    fields: dict[str, Any] = {"verdict": verdict}
    if verdict == "pass":
        return fields
    results = [one for point in points for one in point]
    failing = [one for one in results if one.verdict == verdict]
    if cause.stage:
        fields["stage"] = cause.stage
    if cause.parts:
        rarest = min(cause.parts, key=lambda part: (number[part], -len(part)))
        fields["message"] = rarest if len(rarest) <= _MOST else rarest[:_MOST].rsplit(" ", 1)[0]
    placement = _only(one.placement or "" for one in failing)
    if verdict == "fallback" and placement:
        fields["placement"] = placement
    if verdict in ("wrong", "accepted"):
        if cause.fault:
            fields["fault"] = cause.fault
        wrong = {each for one in failing for each in one.wrong_outputs}
        if len(wrong) < len(WRONG_OUTPUTS) and all(one.wrong_outputs for one in failing):
            fields["wrong"] = tuple(each for each in WRONG_OUTPUTS if each in wrong)
    fields["varies"] = (*others, "values") if cause.varies else (*others,)
    if others:
        passed = sum(one.verdict == "pass" for one in results)
        fields["rate"] = {"failed": len(results) - passed, "runs": len(results)}
    return fields


def _parts(one: ResultRecord) -> tuple[str, ...]:
    """The parts of a message that do not differ between results of one cause."""
    message = one.message or ""
    if one.verdict == "crash" and (signal := _SIGNAL.search(message)):
        return (signal[0],)
    found = (part.strip(" =-<>") for part in _BETWEEN.split(message))
    letters = (part for part in found if sum(map(str.isalpha, part)) >= _LETTERS)
    return tuple(part for part in letters if part.isprintable())


def _only(values: Iterable[str]) -> str:
    """The value if all are the same, else nothing."""
    different = {*values}
    return different.pop() if len(different) == 1 else ""
