"""Explains the failures of a run that has ended: what they share, and which fault they are like."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from conformance.case.case import Case
from conformance.cli.shrunk import SmallestOfCause
from conformance.cli.terminal import RunSummary
from conformance.harness.runner import RunnerFailed
from conformance.results.causes import kind_of
from conformance.results.records import ResultRecord
from conformance.run.engine import PlanRun
from conformance.run.target import Plan

#: How long all of an explanation takes: the smallest calls, further calls, and known faults.
SECONDS: Final = 15.0


def explain_failures(
    summary: RunSummary,
    plans: Sequence[Plan],
    asked: bool | None,
    until: float,
    smaller: Sequence[SmallestOfCause] = (),
) -> None:
    """Add to the summary what explains unexpected results, and known ones if ``asked`` for.

    False: the user wants no explanations. ``until`` is a time of `time.monotonic`.
    ``smaller`` has the smallest failing calls.
    """
    known = bool(asked)
    is_any = any(result.unexpected or (known and result.known) for _, result in summary.results)
    if summary.interrupted or asked is False or not is_any:
        return
    try:
        summary.explanations += _explained(summary, plans, known, until, smaller)
    except KeyboardInterrupt:
        summary.interrupted = True


def _explained(
    summary: RunSummary,
    plans: Sequence[Plan],
    known: bool,
    until: float,
    smaller: Sequence[SmallestOfCause],
) -> Iterator[str]:
    from conformance.diagnosis.explanation import (  # takes its time
        explanations,
        with_experiments,
        with_faults,
    )

    runs = {ready.name: (plan, ready) for plan, ready in zip(plans, summary.targets, strict=True)}
    kinds = [(case, result.target, kind_of(result, known)) for case, result in summary.results]
    kinds += ((case, result.target, kind_of(result, True)) for case, result in summary.beside)
    found = explanations(kinds)
    order = sorted(enumerate(found), key=lambda one: not one[1].kind.startswith("wrong"))
    for number, one in order:  # wrong values first, which may have a name
        if one.target not in runs:
            continue
        plan, ready = runs[one.target]
        with PlanRun(plan, ready=ready) as run:
            better = one
            if one.kind.startswith(("wrong", "rejected")):
                better = with_experiments(one, partial(_kind, run), ready.execution_provider, until)
            small = [each.made.case for each in smaller if each.result.target == one.target]
            found[number] = with_faults(better, run, until, small)
    summary.explained += found
    for one in found:
        if lines := one.lines:
            yield f"\n{lines[0]}"
            yield from (f"  {line}" for line in lines[1:])


def _kind(run: PlanRun, case: Case) -> str | None:
    """The kind of the result of a call on a target; None if it has none."""
    with contextlib.suppress(RunnerFailed):
        if run.ready.cannot_take(case) is None:
            record = run.once(case).record
            return kind_of(record, True) if isinstance(record, ResultRecord) else None
    return None
