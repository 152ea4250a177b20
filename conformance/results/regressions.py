"""Differences between whole runs: regressions, and differences that are none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from conformance.results.differences import Change, DifferenceKind, short, stopped
from conformance.results.instability import instability_text, is_unstable
from conformance.results.messages import normal
from conformance.results.pairs import Pair, unclear
from conformance.results.reader import Run, abbreviated
from conformance.results.records import InfrastructureRecord
from conformance.results.table import Table


def reasons(
    new: Table,
    old: Table,
    pairs: Sequence[Pair],
    changes: Mapping[DifferenceKind, Sequence[Change]],
) -> Iterator[str]:
    """Why the new run is worse than the baseline, a sentence for each reason."""
    if broken := changes["broken"]:
        known = sum(change.known for change in broken)
        also = f", {known:,} of them covered by expectations" if known else ""
        yield f"{_results_are(len(broken))} newly broken{also}."
    if vanished := changes["vanished"]:
        skipped = sum(change.after is not None for change in vanished)
        counts = {"skipped now": skipped, "not in the new run": len(vanished) - skipped}
        parts = [f"{number:,} {what}" for what, number in counts.items() if number]
        yield f"{_results(len(vanished))} vanished: {', '.join(parts)}."
    others = [*changes["new"], *changes["changed"]]
    if surprises := sum(change.surprising for change in others):
        yield (
            f"{_results_are(surprises)} unexpected and not in the baseline: "
            "new, or different from the expectation."
        )
    left_out = set[str]()
    for olds, news in unclear(pairs):
        left_out.update(olds)
        yield (
            f"{abbreviated(olds)} in the baseline and {abbreviated(news)} in the new run are not "
            "compared: where a run has several releases of a target, only equal ones are; give "
            "files with one release each."
        )
    for pair in pairs:
        before, after = sum(pair.totals_before.values()), sum(pair.totals_after.values())
        if pair.before is None or pair.before.label in left_out:
            continue
        if pair.after is None:
            yield f"{short(pair.before.label)} is missing, with {_results(before)}."
        elif after < before:
            yield f"{short(pair.after.label)}: {_results(after)}, {before:,} before."
    if vanished or any(pair.after is None for pair in pairs):
        yield from _selections(new, old)
    for run in new.runs:
        for problem in run.problems:
            yield f"The new run is not reliable: {short(problem)}"
    for pair in pairs:
        yield from _of_target(pair, new, old)
    yield from _troubles(new, old, pairs)


def _of_target(pair: Pair, new: Table, old: Table) -> Iterator[str]:
    """Sentences about a target that became unavailable or unstable."""
    was, now = pair.before, pair.after
    if now is None:
        return
    if was and was.target.unavailable is None and now.target.unavailable is not None:
        yield f"{short(now.label)} could not be tried: {stopped(now.target.unavailable)}"
    unstable = new.instability.get(now.label, ())
    if is_unstable(unstable) and not (was and old.instability.get(was.label)):
        yield f"{short(now.label)}: {instability_text(unstable)}"


def _troubles(new: Table, old: Table, pairs: Sequence[Pair]) -> Iterator[str]:
    """Infrastructure failures that the baseline does not have."""
    renamed = {p.before.label: p.after.label for p in pairs if p.before and p.after}

    def key(label: str, trouble: InfrastructureRecord) -> tuple[str | None, ...]:
        return renamed.get(label, label), trouble.case, normal(trouble.message, trouble.target)

    before = Counter(key(*each) for each in old.infrastructure)
    for label, trouble in new.infrastructure:
        same = label, *key(label, trouble)[1:]
        if before[same]:
            before[same] -= 1
            continue
        about = f", {short(trouble.case)}" if trouble.case else ""
        yield f"Infrastructure failure, {short(label)}{about}: {stopped(trouble.message)}"


def notes(new: Table, old: Table, pairs: Sequence[Pair]) -> Iterator[str]:
    """Differences between the runs that are not regressions, such as another machine."""
    for pair in pairs:
        was, now = pair.before, pair.after
        described = was and now and was.target.describe and now.target.describe
        if was and now and described and was.target.name != now.target.name:
            yield f"{short(was.label)} in the baseline is compared with {short(now.label)}."
    if _texts(old, lambda run: run.header.corpus) != _texts(new, lambda run: run.header.corpus):
        yield "The case files differ: cases may be new, missing, or changed under the same name."
    if _texts(old, _machine) != _texts(new, _machine):
        yield "The machines differ; a runtime may choose other kernels."
    yield from _selections(new, old)
    if any(run.problems for run in old.runs):
        yield "The baseline is not reliable: it has problems."


def _selections(new: Table, old: Table) -> Iterator[str]:
    """A sentence with the two selections, if they differ."""
    before, after = (_texts(t, lambda run: f"“{run.header.selection.text}”") for t in (old, new))
    if before != after:
        yield f"The selections differ: {short(before)} before, now {short(after)}."


def _texts(joined: Table, text: Callable[[Run], str]) -> str:
    return " + ".join(sorted({text(run) for run in joined.runs}))


def _machine(run: Run) -> str:
    return repr(sorted(run.header.machine.items()))


def _results(number: int) -> str:
    return f"{number:,} result" if number == 1 else f"{number:,} results"


def _results_are(number: int) -> str:
    return f"{_results(number)} {'is' if number == 1 else 'are'}"
