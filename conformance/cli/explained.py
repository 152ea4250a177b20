"""Explains the failures of a run that has ended: what they share, and which fault they are like."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

from conformance.cli.terminal import RunSummary
from conformance.results.causes import kind_of
from conformance.run.engine import PlanRun
from conformance.run.target import Plan

#: How long calls are compared with known faults.
SECONDS: Final = 30.0


def explain_failures(summary: RunSummary, plans: Sequence[Plan], asked: bool | None) -> None:
    """Add to the summary what explains unexpected results, and known ones if ``asked`` for.

    False: the user wants no explanations.
    """
    known = bool(asked)
    is_any = any(result.unexpected or (known and result.known) for _, result in summary.results)
    if summary.interrupted or asked is False or not is_any:
        return
    try:
        summary.explanations += _explained(summary, plans, known)
    except KeyboardInterrupt:
        summary.interrupted = True


def _explained(summary: RunSummary, plans: Sequence[Plan], known: bool) -> Iterator[str]:
    from conformance.diagnosis.explanation import explanations, with_faults  # takes its time

    runs = {ready.name: (plan, ready) for plan, ready in zip(plans, summary.targets, strict=True)}
    until = time.monotonic() + SECONDS
    kinds = ((case, result.target, kind_of(result, known)) for case, result in summary.results)
    for one in explanations(kinds):
        with contextlib.ExitStack() as stack:
            if one.target in runs:
                plan, ready = runs[one.target]
                one = with_faults(one, stack.enter_context(PlanRun(plan, ready=ready)), until)
        summary.explained.append(one)
        if lines := one.lines:
            yield f"\n{lines[0]}"
            yield from (f"  {line}" for line in lines[1:])
