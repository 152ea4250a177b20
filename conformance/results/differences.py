"""How the result of a case differs between two runs: the kind of change, and a sentence about it.

`difference` is the only definition of "the same result". A history compares less: only whether a
case passes, because a case that fails in another way than before is not newly broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from conformance.base.text import clean, one_line
from conformance.results.faults import factor
from conformance.results.messages import normal
from conformance.results.records import (
    OutputErrorRecord,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import severity, verdict_word, was_tried
from conformance.results.wrong_outputs import is_beyond, only_presents, where_wrong

DifferenceKind = Literal["broken", "vanished", "fixed", "changed", "new"]
#: The headings of the kinds of changes, in the order in which they are shown.
HEADINGS: Final[Mapping[DifferenceKind, str]] = {
    "broken": "Newly broken",
    "vanished": "Vanished",
    "fixed": "Fixed",
    "changed": "Changed",
    "new": "New",
}

#: A wrong result counts as changed if its error is more than this many times larger or smaller.
OTHER_MAGNITUDE: Final = 10.0

#: In a sentence, reasons and messages are cut to this many characters.
_SENTENCE: Final = 300


@dataclass(frozen=True)
class Change:
    """A change of the result of a case. ``target`` is the label of the column in the new run."""

    kind: DifferenceKind
    case: str
    target: str
    before: ResultRecord | None
    """None if the baseline has no result."""
    after: ResultRecord | None
    """None if the new run has no result."""
    sentence: str
    """A description with the runtime's message; cleaned, but not escaped."""

    @property
    def known(self) -> bool:
        """Whether the new result is not `pass`, but expected or never red."""
        after = self.after
        return after is not None and after.verdict != "pass" and not after.unexpected

    @property
    def surprising(self) -> bool:
        """Whether the new result is unexpected and not `pass`, and was not unexpected before."""
        before, after = self.before, self.after
        red = after is not None and after.unexpected and after.verdict != "pass"
        return red and not (before is not None and before.unexpected)


def difference(
    was: ResultRecord | None, now: ResultRecord | None
) -> tuple[DifferenceKind, str] | None:
    """The kind of change of a result, with a sentence; None if there is none.

    ``was`` and ``now`` are None where there is no result. Always compared: the verdict, the wrong
    outputs, and whether there is a hazard. If the call did not run: the outcome, the stage, the
    code, whether the message is vague, and the message after `normal`. If values are wrong: the
    placement, the kinds of faults, the worst output, and the magnitude of its error
    (`OTHER_MAGNITUDE`). Times, standard error and values of elements differ between two runs with
    one defect, so they are not compared.
    """
    if now is None:
        if was is None or not was_tried(was):
            return None
        return (
            "vanished",
            f"{verdict_word(was.verdict)} in the baseline; the new run has no result of it.",
        )
    if was is None or (was_tried(now) and not was_tried(was)):
        return "new", _new(was, now)
    return _change(was, now)


def _has_moved(was: ResultRecord, now: ResultRecord) -> bool:
    """Whether the verdicts differ, or the wrong outputs if both are known."""
    return was.verdict != now.verdict or bool(
        was.wrong_outputs and now.wrong_outputs and was.wrong_outputs != now.wrong_outputs
    )


def _is_flaky(was: ResultRecord, now: ResultRecord) -> bool:
    """Whether the verdicts differ, but both are verdicts that this flaky case is known to have."""
    flaky = now.flaky or (None if now.unexpected else was.flaky)
    verdicts = {was.verdict, now.verdict}
    return flaky is not None and len(verdicts) == 2 and verdicts <= {*flaky.verdicts}


def _new(was: ResultRecord | None, now: ResultRecord) -> str:
    before = "not in the baseline"
    if was is not None:
        word = "skipped" if was.verdict == "skip" else verdict_word(was.verdict)
        before = f"{word} before ({short(was.reason)})"
    mark = " (unexpected)" if now.unexpected else ""
    return f"{before}, now {verdict_word(now.verdict)}{mark}{_why(now)}"


def _change(was: ResultRecord, now: ResultRecord) -> tuple[DifferenceKind, str] | None:
    """How a result that both runs have has changed; None if it has not."""
    if _is_flaky(was, now):
        return None
    if _has_moved(was, now):
        return _moved(was, now)
    if was.unexpected != now.unexpected:
        mark = f"unexpected{_why(now)}" if now.unexpected else "expected."
        return "changed", f"still {verdict_word(now.verdict)}, now {mark}{_expectation(now)}"
    details = _other_details(was, now)
    return ("changed", f"still {verdict_word(now.verdict)}, {details}") if details else None


def _moved(was: ResultRecord, now: ResultRecord) -> tuple[DifferenceKind, str]:
    """The change to another verdict or other wrong outputs. Only a pass counts as fixed."""
    before, after = (
        " ".join(filter(None, (verdict_word(r.verdict), where_wrong(r)))) for r in (was, now)
    )
    moved = f"{before} before, now {after}"
    if not was_tried(now):
        return "vanished", f"{moved}: {short(now.reason)}"
    why = f"{_why(now)}{_expectation(now)}"
    if now.verdict == "pass":
        return "fixed", f"{moved}{why}"
    if severity(now) < severity(was):
        return "broken", f"{moved}{why}"
    better = was.verdict != now.verdict or only_presents(now)
    return "changed", f"{moved}{', which is better' if better else ''}{why}"


def _why(result: ResultRecord) -> str:
    """The reason, and the runtime's message if there is one: after a colon, with a full stop."""
    if result.verdict == "pass":
        return "."
    text = result.reason
    if result.message and result.message != result.reason:
        text = f"{text.rstrip('.')}: {result.message}"
    return f": {stopped(text)}"


def _expectation(result: ResultRecord) -> str:
    known = result.expectation
    if result.unexpected and known is not None:
        place = f"{clean(known.file, 200)}:{known.line}"
        return f" The expectation is {verdict_word(known.verdict)} ({place})."
    if result.verdict == "pass" or result.unexpected:
        return ""
    if known is None:
        return " The new run does not count it as unexpected."
    return f" This is a known defect: {stopped(known.why)} {clean(known.link, 300)}"


def _other_details(was: ResultRecord, now: ResultRecord) -> str | None:
    """The difference between two results with the same verdict, to follow "still wrong, "; None if
    there is none."""
    if (was.hazard is None) != (now.hazard is None):
        if now.hazard is None:
            return "without the hazard of before."
        return f"now with a hazard: {stopped(now.hazard)}"
    if now.verdict == "fallback" and was.placement != now.placement:
        where = f"{short(now.placement or 'nowhere')}, not {short(was.placement or 'nowhere')}"
        return f"but on {where}."
    if was.outcome == now.outcome == "ran":
        what = None if now.verdict == "pass" else _other_numbers(was, now)
        return what and f"{what}{_why(now)}"
    if was.vague != now.vague:
        words = "none" if now.vague else "one"
        return f"but its message now names {words} of the contract's words{_why(now)}"
    if (was.outcome, was.stage) != (now.outcome, now.stage):
        return f"but {_how(was)} before, now {_how(now)}{_why(now)}"
    before, after = (
        f"{one.code}: {one.reason if one.outcome == 'unavailable' else one.message}"
        for one in (was, now)
    )
    if before == after or normal(before, was.target) == normal(after, now.target):
        return None
    return f"with another message: {stopped(now.message or now.reason)}"


def _how(result: ResultRecord) -> str:
    words = {"ran": "it ran", "rejected": "refused", "timed_out": "timed out"}
    stage = f" at {result.stage}" if result.stage else ""
    return words.get(result.outcome, result.outcome) + stage


def _other_numbers(was: ResultRecord, now: ResultRecord) -> str | None:
    """The difference between two results that ran and did not pass: other outputs or another
    magnitude."""
    if was.values_right != now.values_right:
        right = {True: "right", False: "wrong", None: "not compared"}
        return f"but its values are {right[now.values_right]} now"
    before, after = _worst(was.errors), _worst(now.errors)
    if (
        before is not None
        and after is not None
        and (before.output, before.index is None) != (after.output, after.index is None)
    ):
        return f"but worst in {short(after.output)} now, not in {short(before.output)}"
    if _outline(was) != _outline(now):
        return "for another reason"
    apart = (one.relation.share if one.relation else None for one in (was, now))
    for share, other in ((was.share, now.share), tuple(apart)):
        if _other_magnitude(share, other):
            return f"but {_figure(other)} times the error budget, not {_figure(share)}"
    return None


def _worst(errors: Sequence[OutputErrorRecord]) -> OutputErrorRecord | None:
    """The worst error; an output that could not be compared is worse than any number."""

    def badness(error: OutputErrorRecord) -> tuple[bool, float]:
        share = error.share or 0.0
        return error.index is None, math.inf if math.isnan(share) else share

    return max(errors, key=badness, default=None)


def _outline(result: ResultRecord) -> set[tuple[object, ...]]:
    """The faults of a result without the values of elements, which differ between two runs.

    If an error is beyond its budget, it does not count whether two runs differ.
    """
    outline: set[tuple[object, ...]] = {
        ("beyond", error.output) for error in result.errors if is_beyond(error)
    }
    beyond = bool(outline)
    outline |= {("variant", result.of_variant), ("relation", result.relation is None)}
    for fault in result.faults:
        match fault:
            case WrongDtype() | WrongShape():
                outline.add((fault.kind, fault.output, fault.step, fault.got, fault.want))
            case RelationBroken():
                outline.add((fault.kind, fault.output, fault.name))
            case RunsDiffer() if not beyond:
                outline.add((fault.kind, fault.output, fault.step))
    return outline


def _other_magnitude(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    if not (math.isfinite(one) and math.isfinite(other)):
        return repr(one) != repr(other)
    low, high = sorted((abs(one), abs(other)))
    return high > OTHER_MAGNITUDE * low


def _figure(number: float | None) -> str:
    return "an unknown number of" if number is None else factor(number)


def short(text: str) -> str:
    """``text`` shortened to one line of about `_SENTENCE` characters."""
    return one_line(text, _SENTENCE)


def stopped(text: str) -> str:
    """``text`` shortened by `short`, with a full stop unless it ends in a punctuation mark."""
    text = short(text)
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
