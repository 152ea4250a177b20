"""The lists of unexpected results and of failures in the summary of ``gqa run``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from conformance.base.words import plural
from conformance.case.case import Case
from conformance.report.terminal import tell, tell_trouble
from conformance.results.causes import abstract, causes
from conformance.results.records import InfrastructureRecord, ResultRecord
from conformance.run.recording import case_record

#: The largest number of results that are all listed in full.
FEW: Final = 3

#: Of more results one of each cause is listed: in full up to this number of lines …
_SCREENFUL: Final = 40
#: … then this number of causes with a line each; the rest is only counted.
_SHORT: Final = 8
#: The number of ids that are named of the cases with the cause of an example.
_IDS: Final = 3


def in_full(results: Iterable[tuple[Case, ResultRecord]]) -> Iterator[str]:
    """The text of each result, with all its lines."""
    for case, result in results:
        yield "\n" + "\n".join(tell(case_record(case), result))


def by_cause(results: Sequence[tuple[Case, ResultRecord]]) -> Iterator[str]:
    """Texts about results: all in full if they are few, else the simplest of each cause."""
    if len(results) <= FEW:
        yield from in_full(results)
        return
    from conformance.diagnosis.shared import simplicity  # takes its time

    groups = causes(sorted(results, key=lambda pair: simplicity(pair[0])), lambda pair: pair[1])
    shown = printed = 0
    for cause in groups:
        if printed >= _SCREENFUL:
            break
        shown += 1
        (text,) = in_full(cause.members[:1])
        if others := [result.case for _, result in cause.members[1:]]:
            text = f"\n{len(cause.members)} {cause.sentence}. One of them:{text}{_also(others)}"
        printed += text.count("\n")
        yield text
    short, left = groups[shown : shown + _SHORT], groups[shown + _SHORT :]
    if short:
        yield "\nOther causes:"
    for cause in short:
        _, first = cause.members[0]
        yield f"  {len(cause.members)} {cause.sentence}\n      {first.reproduce}"
    if left:
        number = plural(sum(len(cause.members) for cause in left), "result")
        yield f"  and {number} of {plural(len(left), 'other cause')}"
    if len(groups) < len(results) or short:
        yield (
            f"\n{len(results)} unexpected results of {plural(len(groups), 'cause')}; "
            "print all in full with --verbose, run only these again with --lf."
        )


def _also(ids: Sequence[str]) -> str:
    """The line that names other cases with the cause of an example."""
    more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
    return f"\n  also      {', '.join(ids[:_IDS])}{more}"


def failures(troubles: Iterable[InfrastructureRecord], *, every: bool) -> Iterator[str]:
    """The texts of infrastructure failures; without ``every`` one for each message."""
    groups: dict[tuple[str, str, str | None], list[InfrastructureRecord]] = {}
    for number, trouble in enumerate(troubles):
        message = str(number) if every else abstract(trouble.message, trouble.target)
        groups.setdefault((trouble.target, message, trouble.fix), []).append(trouble)
    for first, *others in groups.values():
        ids = [trouble.case for trouble in others if trouble.case]
        yield f"\n{tell_trouble(first)}{_also(ids) if ids else ''}"
