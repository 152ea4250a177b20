"""The changes between two runs: results that broke, vanished, are fixed, changed, new or slower.

The old run is the baseline. Whether a case has the same result in both is decided by `same_result`
alone, for ``gqa diff`` and for ``gqa bisect``. A history asks for less, on purpose: only whether a
case passes, since a release that fails in another way has broken nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from conformance.base.text import clean, one_line
from conformance.results.faults import factor
from conformance.results.instability import instability_text, is_unstable
from conformance.results.reader import Run, abbreviated
from conformance.results.records import (
    CaseRecord,
    OutputErrorRecord,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.table import Column, Table, is_same_case
from conformance.results.verdicts import VERDICTS, Verdict, severity, was_tried
from conformance.results.wrong_outputs import is_beyond, only_presents, where_wrong

Kind = Literal["broken", "vanished", "fixed", "changed", "new", "slower"]
#: The kinds in the order in which they are shown, each with its heading.
HEADINGS: Final[Mapping[Kind, str]] = {
    "broken": "Newly broken",
    "vanished": "Vanished",
    "fixed": "Fixed",
    "changed": "Changed",
    "new": "New",
    "slower": "Slower",
}

#: A result is slower if it takes more than this many times as long …
SLOWER_TIMES: Final = 2.0
#: … and more than this longer, in ms. Most calls take microseconds, and the fastest of a few
#: repeats can double because the machine is busy.
SLOWER_BY: Final = 1.0
#: A wrong result has changed if its error has grown or shrunk by more than this factor.
OTHER_MAGNITUDE: Final = 10.0

#: In a sentence, reasons and messages are cut to this many characters.
_SENTENCE: Final = 300
#: Longer messages are compared by their beginning and end, this many characters together.
_COMPARED: Final = 8_000


@dataclass(frozen=True)
class Change:
    """A change of one case on one target. ``target`` is the column's label in the new run."""

    kind: Kind
    case: str
    target: str
    before: ResultRecord | None
    """None: the baseline has no result."""
    after: ResultRecord | None
    """None: the new run has no result."""
    sentence: str
    """What changed, with the runtime's message; cleaned, but not escaped."""

    @property
    def known(self) -> bool:
        """Whether the new result is not `pass`, and an expectation covers it or it is not red."""
        after = self.after
        return after is not None and after.verdict != "pass" and not after.unexpected


@dataclass(frozen=True)
class Match:
    """A column of the baseline and the column of the new run that it is compared with.

    If a column has no counterpart, the other label is None and its totals are zeros.
    """

    before: str | None
    after: str | None
    totals_before: Mapping[Verdict, int]
    totals_after: Mapping[Verdict, int]

    def title(self, shown: Callable[[str], str]) -> str:
        """The labels, each as ``shown`` has it, with a note where one is missing."""
        labels = (shown(label) for label in (self.before, self.after) if label is not None)
        note = " (new)" if self.before is None else " (missing)" if self.after is None else ""
        return " → ".join(dict.fromkeys(labels)) + note

    def counts(self, verdicts: Iterable[Verdict]) -> list[str]:
        """The number of results with each verdict, and of all: ``3``, or ``3 → 4``."""
        pairs = [(self.totals_before[each], self.totals_after[each]) for each in verdicts]
        pairs.append((sum(self.totals_before.values()), sum(self.totals_after.values())))
        return [f"{b:,}" if b == a else f"{b:,} → {a:,}" for b, a in pairs]


@dataclass(frozen=True)
class Changes:
    """All changes. Those of a kind are in the order of the cases, but unexpected new ones first."""

    by_kind: Mapping[Kind, Sequence[Change]]
    targets: tuple[Match, ...]
    notes: tuple[str, ...]
    """Differences of the runs that are no regressions, such as another machine."""
    reasons: tuple[str, ...]
    """Why the new run is worse, one sentence each; empty if it is not."""
    cases: Mapping[str, CaseRecord]
    """The cases of all changes, as described in the new run, else in the baseline."""

    @property
    def worse(self) -> bool:
        """Whether there is a regression."""
        return bool(self.reasons)

    @property
    def verdicts(self) -> list[Verdict]:
        """Those that any of the results has."""
        every = [each for one in self.targets for each in (one.totals_before, one.totals_after)]
        return [verdict for verdict in VERDICTS if any(totals[verdict] for totals in every)]

    def grouped(self, found: Iterable[Change]) -> list[tuple[str, list[Change]]]:
        """``found`` by entry, target, verdicts and wrong outputs, as (entry, changes)."""
        groups: dict[tuple[object, ...], list[Change]] = {}
        for change in found:
            both = change.before, change.after
            before, after = ((r.verdict, r.wrong_outputs) if r else None for r in both)
            case = self.cases.get(change.case)
            entry = case.entry if case else change.case
            key = entry, change.target, before, after, change.known
            groups.setdefault(key, []).append(change)
        return [(str(entry), members) for (entry, *_), members in groups.items()]

    def kinds(self) -> Iterator[tuple[str, Sequence[Change]]]:
        """The kinds that have changes, each with its heading."""
        return ((HEADINGS[kind], found) for kind, found in self.by_kind.items() if found)

    def all(self) -> Iterator[Change]:
        """Every change, kind by kind."""
        return chain.from_iterable(self.by_kind.values())


def changes(new: Table, old: Table) -> Changes:
    """The changes from the baseline ``old`` to ``new``.

    Columns are matched by target name. The others are matched by target and adapter without the
    version, where each run has one of them.
    """
    pairs = _pairs(old.columns, new.columns)
    sources = (new.cases, (id for id, _ in new.results), old.cases, (id for id, _ in old.results))
    ids = list(dict.fromkeys(chain.from_iterable(sources)))
    redefined = {
        id
        for id, case in new.cases.items()
        if (other := old.cases.get(id)) is not None and not is_same_case(case, other)
    }
    found: dict[Kind, list[Change]] = {kind: [] for kind in HEADINGS}
    matches = []
    for before, after in pairs:
        matches.append(_match(old, new, before, after))
        if before is None or after is None:
            continue
        for id in ids:
            was = old.results.get((id, before.label))
            now = new.results.get((id, after.label))
            for kind, sentence in _compared(was, now):
                if id in redefined:
                    sentence += " The case itself has changed."
                found[kind].append(Change(kind, id, after.label, was, now, sentence))
    found["new"].sort(key=lambda change: not (change.after and change.after.unexpected))
    reasons = tuple(_reasons(new, old, pairs, matches, found))
    changed = {change.case for kind in found.values() for change in kind}
    return Changes(
        by_kind=found,
        targets=tuple(matches),
        notes=tuple(note for note in _notes(new, old, pairs) if note not in reasons),
        reasons=reasons,
        cases={
            id: (new.cases if id in new.cases else old.cases)[id]
            for id in dict.fromkeys([*old.cases, *new.cases])
            if id in changed
        },
    )


# Which column is which


_Pair = tuple[Column | None, Column | None]


def _pairs(old: Sequence[Column], new: Sequence[Column]) -> list[_Pair]:
    """Each column with its counterpart, in the order of the new run, then the missing ones."""
    partner: dict[str, Column] = {}
    keys: tuple[Callable[[Column], object], ...] = (
        lambda column: column.label,
        lambda column: column.target.name,
        _without_release,
    )
    for key in keys:
        _match_by(key, old, new, partner)
    # A target that could not be tried has no adapter.
    if any(column.target.describe is None for column in (*old, *new)):
        _match_by(lambda column: column.target.base, old, new, partner)
    taken = {column.label for column in partner.values()}
    pairs: list[_Pair] = [(partner.get(column.label), column) for column in new]
    return pairs + [(column, None) for column in old if column.label not in taken]


def _match_by(
    key: Callable[[Column], object],
    old: Sequence[Column],
    new: Sequence[Column],
    partner: dict[str, Column],
) -> None:
    """Match the columns that have no partner yet and whose key is unique in both runs."""
    taken = {column.label for column in partner.values()}
    before, after = Counter(map(key, old)), Counter(map(key, new))
    mine = {key(column): column for column in old if column.label not in taken}
    for column in new:
        same = key(column)
        if column.label not in partner and same in mine and before[same] == after[same] == 1:
            partner[column.label] = mine[same]


def _without_release(column: Column) -> tuple[str, str]:
    """The target and the adapter of a column."""
    target = column.target
    if target.describe is not None:
        return target.base, target.describe.adapter or ""
    return target.base, target.name.partition("+")[2]


def _unclear(pairs: Sequence[_Pair]) -> list[tuple[list[str], list[str]]]:
    """The labels in the baseline and in the new run that could belong together, by target."""
    found: dict[tuple[str, str], tuple[list[str], list[str]]] = {}
    for was, now in pairs:
        if was is None and now is not None:
            found.setdefault(_without_release(now), ([], []))[1].append(now.label)
        elif was is not None and now is None:
            found.setdefault(_without_release(was), ([], []))[0].append(was.label)
    return [(before, after) for before, after in found.values() if before and after]


def _match(old: Table, new: Table, before: Column | None, after: Column | None) -> Match:
    return Match(
        before.label if before else None,
        after.label if after else None,
        _totals(old, before),
        _totals(new, after),
    )


def _totals(joined: Table, column: Column | None) -> dict[Verdict, int]:
    counts = joined.totals.get(column.label, {}) if column else {}
    return {verdict: counts.get(verdict, 0) for verdict in VERDICTS}


# A case on a target, before and now


def _compared(was: ResultRecord | None, now: ResultRecord | None) -> Iterator[tuple[Kind, str]]:
    """The changes of a result: none, one, or one and a slower time."""
    if was is None or (not was_tried(was) and now is not None and was_tried(now)):
        if now is not None:
            yield "new", _new(was, now)
        return
    if now is None:
        if was_tried(was):
            yield (
                "vanished",
                f"{was.verdict} in the baseline; the new run has the target, not the case.",
            )
        return
    if was.verdict != now.verdict:
        if not _is_flaky(was, now):
            yield _moved(was, now)
    elif _other_outputs(was, now):
        yield _moved_outputs(was, now)
    elif was.unexpected != now.unexpected:
        why = _why(now) if now.unexpected else "."
        mark = "unexpected" if now.unexpected else "expected"
        yield "changed", f"still {now.verdict}, now {mark}{why}{_expectation(now)}"
    elif difference := _difference(was, now):
        yield "changed", f"still {now.verdict}, {difference}"
    if slower := _slower(was, now):
        yield "slower", slower


def same_result(one: ResultRecord, other: ResultRecord) -> bool:
    """Whether a case has the same result in two runs, as far as the runtime is concerned.

    Compared are the verdict, the wrong outputs, and whether there is a hazard. Of a result that did
    not run also the outcome, the stage, the code, whether its message is vague, and the message as
    `normal` has it. Of wrong values also the placement, the kinds of faults, the output that is
    worst, and its error by the magnitude (`OTHER_MAGNITUDE`). Two runs of one defect differ in the
    rest: times, standard error, the values of elements. What the suite expects is not compared.
    """
    return (
        one.verdict == other.verdict
        and not _other_outputs(one, other)
        and _difference(one, other) is None
    )


def _is_flaky(was: ResultRecord, now: ResultRecord) -> bool:
    """Whether both verdicts are those that the case is known to have, from run to run."""
    flaky = now.flaky or (None if now.unexpected else was.flaky)
    return flaky is not None and {was.verdict, now.verdict} <= {*flaky.verdicts}


def _surprising(was: ResultRecord | None, now: ResultRecord | None) -> bool:
    """Whether a result other than `pass` is unexpected, and was not in the baseline."""
    before = was is not None and was.unexpected
    return now is not None and now.unexpected and now.verdict != "pass" and not before


def _new(was: ResultRecord | None, now: ResultRecord) -> str:
    before = "not in the baseline"
    if was is not None:
        word = "skipped" if was.verdict == "skip" else was.verdict
        before = f"{word} before ({_short(was.reason)})"
    mark = " (unexpected)" if now.unexpected else ""
    return f"{before}, now {now.verdict}{mark}{_why(now)}"


def _moved(was: ResultRecord, now: ResultRecord) -> tuple[Kind, str]:
    """The change to another verdict. One that is better, but not `pass`, is not fixed."""
    moved = f"{_verdict(was)} before, now {_verdict(now)}"
    if not was_tried(now):
        return "vanished", f"{moved}: {_short(now.reason)}"
    if now.verdict == "pass":
        return "fixed", f"{moved}.{_expectation(now)}"
    if severity(now) < severity(was):
        return "broken", f"{moved}{_why(now)}{_expectation(now)}"
    return "changed", f"{moved}, which is better{_why(now)}{_expectation(now)}"


def _other_outputs(was: ResultRecord, now: ResultRecord) -> bool:
    """Whether the wrong outputs of both are known, and are not the same."""
    return bool(was.wrong_outputs and now.wrong_outputs) and was.wrong_outputs != now.wrong_outputs


def _moved_outputs(was: ResultRecord, now: ResultRecord) -> tuple[Kind, str]:
    """The change to other wrong outputs; worse if the presents alone were wrong before."""
    moved = f"{_verdict(was)} before, now {_verdict(now)}"
    better = ", which is better" if only_presents(now) else ""
    kind: Kind = "broken" if only_presents(was) else "changed"
    return kind, f"{moved}{better}{_why(now)}{_expectation(now)}"


def _verdict(result: ResultRecord) -> str:
    """The verdict, and where the result is wrong."""
    return " ".join(filter(None, (result.verdict, where_wrong(result))))


def _why(result: ResultRecord) -> str:
    """The reason and, of a rejection, the runtime's message: after a colon, with a full stop."""
    if result.verdict == "pass":
        return "."
    text = result.reason
    if result.message and result.message != result.reason:
        text = f"{text.rstrip('.')}: {result.message}"
    return f": {_stop(_short(text))}"


def _expectation(result: ResultRecord) -> str:
    known = result.expectation
    if result.unexpected and known is not None:
        return f" The expectation is {known.verdict} ({clean(known.file, 200)}:{known.line})."
    if result.verdict == "pass" or result.unexpected:
        return ""
    if known is None:
        return " The new run does not count it as unexpected."
    return f" This is a known defect: {_stop(_short(known.why))} {clean(known.link, 300)}"


def _difference(was: ResultRecord, now: ResultRecord) -> str | None:
    """What differs between two results with one verdict, after "still wrong, "; None: nothing."""
    if (was.hazard is None) != (now.hazard is None):
        if now.hazard is None:
            return "without the hazard of before."
        return f"now with a hazard: {_stop(_short(now.hazard))}"
    if now.verdict == "fallback" and was.placement != now.placement:
        where = f"{_short(now.placement or 'nowhere')}, not {_short(was.placement or 'nowhere')}"
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
    if before == after or normal(before, (was.target,)) == normal(after, (now.target,)):
        return None
    return f"with another message: {_stop(_short(now.message or now.reason))}"


def _how(result: ResultRecord) -> str:
    words = {"ran": "it ran", "rejected": "rejected", "timed_out": "timed out"}
    stage = f" at {result.stage}" if result.stage else ""
    return words.get(result.outcome, result.outcome) + stage


def _other_numbers(was: ResultRecord, now: ResultRecord) -> str | None:
    """Of two results that ran and are no pass: wrong elsewhere, or by another magnitude."""
    if was.values_right != now.values_right:
        right = {True: "right", False: "wrong", None: "not compared"}
        return f"but its values are {right[now.values_right]} now"
    before, after = _worst(was.errors), _worst(now.errors)
    if (
        before is not None
        and after is not None
        and (before.output, before.index is None) != (after.output, after.index is None)
    ):
        return f"but worst in {_short(after.output)} now, not in {_short(before.output)}"
    if _beyond(was) != _beyond(now) or _other_faults(was, now):
        return "for another reason"
    for share, other in ((was.share, now.share), (_apart(was), _apart(now))):
        if _other_magnitude(share, other):
            return f"but {_figure(other)} times the error budget, not {_figure(share)}"
    return None


def _beyond(result: ResultRecord) -> set[str]:
    """The outputs with an error beyond its budget."""
    return {error.output for error in result.errors if is_beyond(error)}


def _other_faults(was: ResultRecord, now: ResultRecord) -> bool:
    """Whether two wrong results have other faults, whatever the magnitude of an error."""
    if (was.relation is None) != (now.relation is None):
        return True
    return _outline(was) != _outline(now)


def _outline(result: ResultRecord) -> set[tuple[object, ...]]:
    """The faults of a result without the values of elements, which differ between two runs.

    Where an error is beyond its budget, two runs may or may not differ.
    """
    beyond = bool(_beyond(result))
    outline: set[tuple[object, ...]] = {("of_variant", result.of_variant)}
    for fault in result.faults:
        match fault:
            case WrongDtype() | WrongShape():
                outline.add((fault.kind, fault.output, fault.step, fault.got, fault.want))
            case RelationBroken():
                outline.add((fault.kind, fault.output, fault.name))
            case RunsDiffer() if not beyond:
                outline.add((fault.kind, fault.output, fault.step))
    return outline


def _apart(result: ResultRecord) -> float | None:
    return result.relation.share if result.relation else None


def _worst(errors: Sequence[OutputErrorRecord]) -> OutputErrorRecord | None:
    """An output that could not be compared is worse than any number in one that could."""

    def badness(error: OutputErrorRecord) -> tuple[bool, float]:
        share = error.share or 0.0
        return error.index is None, math.inf if math.isnan(share) else share

    return max(errors, key=badness, default=None)


def _other_magnitude(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is not other
    if one == other or (math.isnan(one) and math.isnan(other)):
        return False
    if not (math.isfinite(one) and math.isfinite(other)):
        return True
    low, high = sorted((abs(one), abs(other)))
    return high > OTHER_MAGNITUDE * low


def _slower(was: ResultRecord, now: ResultRecord) -> str | None:
    before, after = (result.ms.run if result.ms else None for result in (was, now))
    if before is None or after is None or not (math.isfinite(before) and math.isfinite(after)):
        return None
    # A time of zero cannot be compared by a factor.
    if before <= 0 or after <= SLOWER_TIMES * before or after - before <= SLOWER_BY:
        return None
    return (
        f"the fastest repeat took {_figure(after)} ms, {_figure(after / before)} times "
        f"the {_figure(before)} ms of the baseline."
    )


# The two runs as wholes


def _reasons(
    new: Table,
    old: Table,
    pairs: Sequence[_Pair],
    matches: Sequence[Match],
    found: Mapping[Kind, Sequence[Change]],
) -> Iterator[str]:
    if broken := found["broken"]:
        known = sum(change.known for change in broken)
        also = f", {known:,} of them covered by expectations" if known else ""
        yield f"{_number(len(broken), 'result')} {_are(len(broken))} newly broken{also}."
    if vanished := found["vanished"]:
        skipped = sum(change.after is not None for change in vanished)
        parts = [
            f"{number:,} {what}"
            for number, what in (
                (skipped, "skipped now"),
                (len(vanished) - skipped, "not in the new run"),
            )
            if number
        ]
        yield f"{_number(len(vanished), 'result')} vanished: {', '.join(parts)}."
    others = [*found["new"], *found["changed"]]
    if surprises := sum(_surprising(change.before, change.after) for change in others):
        yield (
            f"{_number(surprises, 'result')} {_are(surprises)} unexpected and not in the baseline: "
            "new, or different from the expectation."
        )
    unclear = _unclear(pairs)
    for olds, news in unclear:
        yield (
            f"{abbreviated(olds)} in the baseline and {abbreviated(news)} in the new run are not "
            "compared: where a run has several releases of a target, only equal ones are; give "
            "files with one release each."
        )
    left_out = {label for olds, _ in unclear for label in olds}
    for match in matches:
        before, after = (sum(t.values()) for t in (match.totals_before, match.totals_after))
        if match.before in left_out:
            continue
        if match.after is None:
            yield f"{_short(match.before or '')} is missing, with {_number(before, 'result')}."
        elif after < before and match.before is not None:
            yield f"{_short(match.after)}: {_number(after, 'result')}, {before:,} before."
    if found["vanished"] or any(match.after is None for match in matches):
        yield from _selections(new, old)
    for run in new.runs:
        for problem in run.problems:
            yield f"The new run is not reliable: {_short(problem)}"
    for was, now in pairs:
        if now is not None and now.target.unavailable is not None:
            before_too = was is not None and was.target.unavailable is not None
            if was is not None and not before_too:
                why = _stop(_short(now.target.unavailable))
                yield f"{_short(now.label)} could not be tried: {why}"
        unstable = new.instability.get(now.label) if now is not None else None
        if (
            now is not None
            and unstable
            and is_unstable(unstable)
            and not (was and old.instability.get(was.label))
        ):
            yield f"{_short(now.label)}: {instability_text(unstable)}"
    yield from _troubles(new, old, pairs)


def _selections(new: Table, old: Table) -> Iterator[str]:
    """The two selections, if they differ. A smaller selection is still a regression."""
    before, after = (_texts(joined, _selected) for joined in (old, new))
    if before != after:
        yield f"The selections differ: {_short(before)} before, now {_short(after)}."


def _troubles(new: Table, old: Table, pairs: Sequence[_Pair]) -> Iterator[str]:
    """Infrastructure failures that the baseline does not have."""
    called = {was.label: now.label for was, now in pairs if was is not None and now is not None}
    names = {c.label: (c.target.name,) for joined in (old, new) for c in joined.columns}
    before = Counter(
        (called.get(label, label), trouble.case, normal(trouble.message, names.get(label, ())))
        for label, trouble in old.infrastructure
    )
    for label, trouble in new.infrastructure:
        key = label, trouble.case, normal(trouble.message, names.get(label, ()))
        if before[key]:
            before[key] -= 1
            continue
        about = f", {_short(trouble.case)}" if trouble.case else ""
        yield f"Infrastructure failure, {_short(label)}{about}: {_stop(_short(trouble.message))}"


def _notes(new: Table, old: Table, pairs: Sequence[_Pair]) -> Iterator[str]:
    for was, now in pairs:
        described = was and now and was.target.describe and now.target.describe
        if was and now and described and was.target.name != now.target.name:
            yield f"{_short(was.label)} in the baseline is compared with {_short(now.label)}."
    before, after = (_texts(joined, lambda run: run.header.corpus) for joined in (old, new))
    if before != after:
        yield "The case files differ: cases may be new, missing, or changed under the same name."
    if _texts(old, _machine) != _texts(new, _machine):
        yield "The machines differ: times are not comparable."
    yield from _selections(new, old)
    if any(run.problems for run in old.runs):
        yield "The baseline is not reliable: it has problems."


def _texts(joined: Table, text: Callable[[Run], str]) -> str:
    return " + ".join(sorted({text(run) for run in joined.runs}))


def _selected(run: Run) -> str:
    return f"“{run.header.selection.text}”"


def _machine(run: Run) -> str:
    return repr(sorted(run.header.machine.items()))


# Words


def _short(text: str) -> str:
    """One line of at most about `_SENTENCE` characters."""
    return one_line(text, _SENTENCE)


def _stop(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _figure(number: float | None) -> str:
    return "an unknown number of" if number is None else factor(number)


def _number(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


# Each pattern is anchored or bounded, so that a megabyte takes linear time.
_CHANGING: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        # Dates, times of day, and random identifiers.
        (r"(?<!\d)\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?Z?", "<time>"),
        (r"(?<![\d:])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?!\d)", "<time>"),
        (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<id>"),
        # Addresses, but not error codes such as 0xC0000005.
        (r"\b0x(?![89cCeE][0-9a-fA-F]{7}\b)[0-9a-fA-F]{4,}", "<address>"),
        (r"\b(?=[0-9]{0,15}[a-f])[0-9a-f]{12,16}\b", "<address>"),
        # Temporary files.
        (r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm)/[^\s'\"`:,;()\[\]<>]*", "<file>"),
        # Processes and threads.
        (r"==\d+==", "==<pid>=="),
        (r"(?i)\b(pid|tid|process|thread)([ =:#]{1,3})\d+", r"\1\2<pid>"),
        (r"(thread '[^'\n]{0,80}' )\(\d+\)", r"\1(<pid>)"),
        # Line numbers of source files, which change when a line is inserted above.
        (
            r"(\.(?:cc|cpp|cxx|cu|cuh|c|hpp|hh|h|rs|py|mjs|js|ts|wgsl))(?::\d+){1,2}(?!\d)",
            r"\1:<line>",
        ),
        (r"\b(line )\d+", r"\1<line>"),
        (r"(wasm-function\[)\d+", r"\1<number>"),
        # Durations, then versions and fractions. Integers are kept: they are shapes, lengths and
        # indices, which follow from the case.
        (r"(?<![\w.])\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|seconds?)\b", "<time>"),
        (r"(?<![\d.])\d+(?:\.\d+)+(?:[eE][-+]?\d+)?", "<number>"),
        (r"(?<![\w.])\d+[eE][-+]?\d+", "<number>"),
        (r"-<number>", "<number>"),
    )
)


def normal(text: str, names: Sequence[str] = ()) -> str:
    """``text`` without what differs between two runs of the same defect.

    ``names`` are the target's names, which contain its version.
    """
    text = clean(text, _COMPARED)
    for name in names:
        if name:
            text = text.replace(clean(name), "<target>")
    for pattern, put in _CHANGING:
        text = pattern.sub(put, text)
    return " ".join(text.split())
