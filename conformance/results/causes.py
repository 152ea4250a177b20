"""Results that are alike: of one target, with one verdict, the same wrong outputs, and one symptom
or known defect.

A symptom is what a result looks like from outside. A kernel with one defect fails many cases, which
are listed together, with one of them as the example. The page, the terminal and the Markdown all
group by `causes`.

A cause is of many cases, so its symptom has no numbers, which follow from the case. Whether one
case has the same result in two runs is another question, which `conformance.results.compare`
answers; an expectation names the part of a message that tells one cause from all others
(`conformance.maintain.known.causes`).
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
from conformance.results.verdicts import acceptance_of, flaky_text, severity
from conformance.results.wrong_outputs import is_beyond, where_wrong

_T = TypeVar("_T")


@dataclass(frozen=True)
class Cause(Generic[_T]):
    """What is alike, and all of it."""

    label: str
    """Of the target."""
    example: ResultRecord
    """The first of the results. All have its verdict, its wrong outputs, and its known defect or
    its symptom."""
    stage: str | None
    """The stage of all of them, if it is the same."""
    members: tuple[_T, ...]

    @property
    def verdict(self) -> str:
        """With the stage, the wrong outputs and a note: `unsupported at run`, `wrong in output and
        presents`, `accepted (wrong values) in output`."""
        acceptance = acceptance_of(self.example)
        note = f" ({acceptance.note})" if acceptance else ""
        if self.example.flaky:
            note += f" ({flaky_text(self.example.flaky)})"
        stage = f" at {self.stage}" if self.stage else ""
        where = where_wrong(self.example)
        return f"{self.example.verdict}{stage}{note}{f' {where}' if where else ''}"

    @property
    def known(self) -> ExpectationRecord:
        """The known defect; only of results that have one."""
        known = self.example.known
        assert known is not None
        return known

    @property
    def sentence(self) -> str:
        """Verdict, target and what is alike, without a full stop: `wrong in output on cpu@1.31.1:
        output is …`."""
        known = self.example.known
        what = known.why if known else quoted(symptom(self.example))
        head = f"{self.verdict} on {self.label}"
        return f"{head}: {what}" if what else head


def causes(
    items: Iterable[_T],
    result_of: Callable[[_T], ResultRecord],
    label_of: Callable[[_T], str] | None = None,
) -> list[Cause[_T]]:
    """``items`` by cause: the worst first, and of those equally bad the largest number.

    ``label_of`` gives the label of an item's target where several runs are joined; else it is the
    target's name.
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
    found = []
    for (label, _, _), members in groups.items():
        stage, *others = {result_of(item).stage for item in members}
        example = result_of(members[0])
        found.append(Cause(label, example, None if others else stage, tuple(members)))
    return sorted(found, key=lambda cause: (severity(cause.example), -len(cause.members)))


def fault_of(result: ResultRecord) -> tuple[object, ...]:
    """What results of one fault have in common: verdict, severity, wrong outputs and symptom."""
    return result.verdict, severity(result), result.wrong_outputs, symptom(result)


# Symptoms


#: Messages are compared by their beginning and end, this many characters together …
_COMPARED: Final = 1_000
#: … and quoted by this many at the end, where runtimes say what is wrong.
_QUOTED: Final = 140

# A number that is no part of a name such as float16, a list of them, and a case's id.
_NUMBER: Final = re.compile(r"<number>|(?<![A-Za-z\d])\d+")
_NUMBERS: Final = re.compile(r"N(?:[,x ]{1,3}N)+")
_CASE: Final = re.compile(r"\b[a-z0-9_]{1,80}/[a-z0-9_]{1,80}\[[^\]\s]{0,300}\]")

# What ended the process, in the sentence about a crash, and what it wrote about that.
_ENDED: Final = re.compile(
    r"\b(?:died of (?P<signal>SIG[A-Z0-9]+|signal \d+)|ended in a (?P<word>\w+)"
    r"|ended in (?P<device>cuda\w+))"
)
_WROTE: Final = re.compile(r"(?:the last it wrote: |panicked at )(.+)", re.DOTALL)
#: A report of compute-sanitizer, to the place in the kernel: any of its threads may be the first.
_REPORT: Final = re.compile(r"\bended in a \w+ error(?: in step \d+)?: (.+?)(?= by thread \(|\Z)")


def symptom(result: ResultRecord) -> str:
    """What a result has in common with others of the same defect; may be empty.

    Of a crash the signal and the last words, of a rejection the message, of wrong values the kinds
    of faults and their outputs. Where an expectation does not hold, it is named instead.
    """
    known = result.expectation
    if result.unexpected and known is not None:
        return f"the expectation is {known.verdict} ({known.file}:{known.line})"
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


@lru_cache(1 << 14)  # a runtime says the same of many cases
def abstract(message: str, target: str) -> str:
    """A message without its numbers, its case ids and the target's name, on one line."""
    text = normal(clean(message, _COMPARED), target)
    text = _NUMBER.sub("N", _CASE.sub("<case>", text))
    return _NUMBERS.sub("N, …", text).rstrip(".")


def quoted(text: str) -> str:
    """The end of ``text``, from the beginning of a word if there is one."""
    if len(text) <= _QUOTED:
        return text
    end = text[-_QUOTED:]
    return f"… {end.partition(' ')[2] or end}"


def ended_by(result: ResultRecord) -> str:
    """Of a crash, what ended the process, such as SIGSEGV; empty if the file does not say it."""
    ended = _ENDED.search(_sentence(result)) if result.verdict == "crash" else None
    return ended[ended.lastgroup] if ended and ended.lastgroup else ""


def _crash(result: ResultRecord) -> str:
    ended, sentence = ended_by(result), _sentence(result)
    if not ended:
        return abstract(sentence, result.target)
    wrote = _REPORT.search(sentence) or _WROTE.search(sentence)
    return f"{ended}: {abstract(wrote[1], result.target)}" if wrote else ended


def _sentence(result: ResultRecord) -> str:
    """What is said about a crash."""
    return result.message or result.reason


def _clauses(result: ResultRecord) -> Iterator[str]:
    """What is wrong, in the words that all results of the cause have in common."""
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
