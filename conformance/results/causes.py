"""Groups results that probably have one cause.

They are of one target and have the same verdict, the same wrong outputs, and the same known defect
or symptom. A kernel with one defect fails many cases; the page, the terminal and the Markdown list
them together, with one of them as the example.

A symptom describes a result without numbers, because numbers follow from the case. Whether one case
has the same result in two runs is another question (`conformance.results.differences`). So is which
part of a message tells one cause from all others (`conformance.expectations.shared_causes`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from conformance.base.text import clean
from conformance.base.words import listed
from conformance.results.messages import normal
from conformance.results.records import (
    BeyondBudget,
    ExpectationRecord,
    OutputErrorRecord,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import acceptance_of, flaky_text, severity, verdict_word
from conformance.results.wrong_outputs import is_beyond, where_wrong

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cause(Generic[_T]):
    """A group of results that probably have one cause."""

    label: str
    """The label of their target."""
    example: ResultRecord
    """The first of the results."""
    stage: str | None
    """The stage of the results; None if their stages differ."""
    members: tuple[_T, ...]

    @property
    def verdict(self) -> str:
        """The verdict with the stage, a note and the wrong outputs: `refused at run`,
        `accepted (wrong values) in output`."""
        acceptance = acceptance_of(self.example)
        note = f" ({acceptance.note})" if acceptance else ""
        if self.example.flaky:
            note += f" ({flaky_text(self.example.flaky)})"
        stage = f" at {self.stage}" if self.stage else ""
        where = where_wrong(self.example)
        return f"{verdict_word(self.example.verdict)}{stage}{note}{f' {where}' if where else ''}"

    @property
    def known(self) -> ExpectationRecord:
        """The known defect. The results must have one."""
        known = self.example.known
        assert known is not None
        return known

    @property
    def sentence(self) -> str:
        """Verdict, target and known defect or symptom, without a full stop:
        `wrong in output on cpu@1.31.1: output is …`."""
        known = self.example.known
        description = known.why if known else quoted(symptom(self.example))
        head = f"{self.verdict} on {self.label}"
        return f"{head}: {description}" if description else head


def causes(
    items: Iterable[_T],
    result_of: Callable[[_T], ResultRecord],
    label_of: Callable[[_T], str] | None = None,
) -> list[Cause[_T]]:
    """``items`` by cause: the worst causes first; of equally bad ones, the largest first.

    ``label_of`` gives the label of an item's target; by default, it is the target's name.
    """
    groups: dict[tuple[str, object, object], list[_T]] = {}
    for item in items:
        result = result_of(item)
        known = result.known
        label = label_of(item) if label_of else result.target
        *kind, what = fault_of(result)
        if known:
            what = (known.why, known.link)
        groups.setdefault((label, tuple(kind), what), []).append(item)
    made = []
    for (label, _, _), members in groups.items():
        stage, *others = {result_of(item).stage for item in members}
        example = result_of(members[0])
        made.append(Cause(label, example, None if others else stage, tuple(members)))
    return sorted(made, key=lambda cause: (severity(cause.example), -len(cause.members)))


def kind_of(result: ResultRecord, known: bool = False) -> str | None:
    """What failures are grouped by: the verdict, with the message of a rejection and the signal of
    a crash. Empty of a result that passes; None of one that is neither.

    ``known``: a failure that an expectation covers is one, too.
    """
    if result.verdict == "pass":
        return ""
    if result.verdict == "skip" or not (result.unexpected or known):
        return None
    if result.verdict in ("wrong", "accepted", "timeout", "fallback"):
        return result.verdict
    what = symptom(result)
    return f"{result.verdict}: {quoted(what)}" if what else result.verdict


def fault_of(result: ResultRecord) -> tuple[object, ...]:
    """What results of one fault have in common: verdict, severity, wrong outputs and symptom."""
    return result.verdict, severity(result), result.wrong_outputs, symptom(result)


# Symptoms


#: Of a longer message, only the beginning and the end are compared, this many characters together.
_COMPARED: Final = 1_000
#: The number of characters that are quoted of a message: its end, where runtimes name the fault.
_QUOTED: Final = 140

# A number that is not part of a name such as float16, a list of numbers, and the id of a case.
_NUMBER: Final = re.compile(r"<number>|(?<![A-Za-z\d])\d+")
_NUMBERS: Final = re.compile(r"N(?:[,x ]{1,3}N)+")
_CASE: Final = re.compile(r"\b[a-z0-9_]{1,80}/[a-z0-9_]{1,80}\[[^\]\s]{0,300}\]")

# In the sentence about a crash: what ended the process, and the last line that it wrote.
_ENDED: Final = re.compile(
    r"\b(?:died of (?P<signal>SIG[A-Z0-9]+|signal \d+)|ended in a (?P<word>\w+)"
    r"|ended in (?P<device>cuda\w+))"
)
_WROTE: Final = re.compile(r"(?:the last it wrote: |panicked at )(.+)", re.DOTALL)


def symptom(result: ResultRecord) -> str:
    """The symptom of a result: a text that results with the same defect share; may be empty.

    For a crash it is the signal and the last line of output, for a rejection the message, and for
    wrong values the kinds of faults and their outputs. If an expectation does not hold, it is the
    expectation.
    """
    known = result.expectation
    if result.unexpected and known is not None:
        return f"the expectation is {verdict_word(known.verdict)} ({known.file}:{known.line})"
    if result.verdict in ("pass", "skip"):
        return ""
    if result.verdict == "crash":
        return _crash(result)
    if result.message:
        return abstract(result.message, result.target)
    if result.verdict == "timeout":
        return "no answer in time"
    if result.other_kernel:
        return f"it ran with {listed(result.kernels)}" if result.kernels else "no kernel is known"
    if result.outcome == "ran" and result.placement and result.verdict == "fallback":
        return f"it ran on {result.placement}"
    where = "in the variant, " if result.of_variant else ""
    clauses = sorted(set(_clauses(result)))
    return where + "; ".join(clauses) if clauses else ""


@lru_cache(1 << 14)  # many cases have the same message
def abstract(message: str, target: str) -> str:
    """``message`` on one line, without numbers, ids of cases, and the target's name."""
    text = normal(clean(message, _COMPARED), target)
    text = _NUMBER.sub("N", _CASE.sub("<case>", text))
    return _NUMBERS.sub("N, …", text).rstrip(".")


def quoted(text: str) -> str:
    """The end of ``text``, cut before a word if possible."""
    if len(text) <= _QUOTED:
        return text
    end = text[-_QUOTED:]
    return f"… {end.partition(' ')[2] or end}"


def ended_by(result: ResultRecord) -> str:
    """The signal or error that ended the process, such as SIGSEGV; empty if it is unknown, and for
    results that are no crash."""
    ended = _ENDED.search(_sentence(result)) if result.verdict == "crash" else None
    return ended[ended.lastgroup] if ended and ended.lastgroup else ""


def _crash(result: ResultRecord) -> str:
    ended, sentence = ended_by(result), _sentence(result)
    if not ended:
        return abstract(sentence, result.target)
    wrote = _WROTE.search(sentence)
    return f"{ended}: {abstract(wrote[1], result.target)}" if wrote else ended


def _sentence(result: ResultRecord) -> str:
    """The sentence that describes a crash."""
    return result.message or result.reason


def _clauses(result: ResultRecord) -> Iterator[str]:
    """A clause for each fault, without numbers."""
    for error in filter(is_beyond, result.errors):
        yield _beyond(error)
    for fault in result.faults:
        match fault:
            case BeyondBudget():
                yield _beyond(fault)
            case RunsDiffer():
                yield f"two runs differ in {fault.output}"
            case WrongDtype():
                yield f"{fault.output} has another dtype"
            case WrongShape():
                yield f"{fault.output} has another shape"
            case RelationBroken():
                yield f"the variant {fault.name} gives another {fault.output}"


def _beyond(error: BeyondBudget | OutputErrorRecord) -> str:
    is_infinite = math.isfinite(error.want or 0) and not math.isfinite(error.got or 0)
    return f"{error.output} is {'not finite' if is_infinite else 'beyond its error budget'}"
