"""The smallest calls that still fail, and what explains the failures of a run that has ended.

The smallest calls are looked for first, since the calls that are tried help to explain the
failures, and told after the explanation, with what they have in common with it.
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from conformance.base.paths import shown
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.node_steps import input_elements
from conformance.cli.common import write_file
from conformance.cli.terminal import RunSummary
from conformance.diagnosis.smallest import CaseEntry, Smallest, case_text, fields_of, smallest
from conformance.results.causes import Cause, causes, fault_of, kind_of
from conformance.results.records import ResultRecord
from conformance.results.results_error import ResultsError
from conformance.results.verdicts import is_red, verdict_word, was_tried
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan

Failing = tuple[Case, ResultRecord]


@dataclass(frozen=True)
class Effort:
    """How many causes are made smaller, with how many runs for each, and in how many seconds.

    ``thorough``: the user asked for it, so that hangs and known defects are made smaller, too, and
    what cannot be made smaller is mentioned. ``file`` is the case file for the smallest calls.
    """

    most_causes: int
    most_runs: int
    seconds: float
    thorough: bool
    file: Path | None = None


def effort_for(
    asked: bool | None = None, partial: bool = False, file: Path | None = None
) -> Effort | None:
    """The effort for a run as the user ``asked`` for it, also by naming a ``file``; None: not if
    nobody did and the run is ``partial``, or of a program."""
    if asked or file:
        return Effort(100, 500, math.inf, True, file)
    return None if partial or asked is False else Effort(3, 60, 5.0, False)


@dataclass(frozen=True)
class SmallestOfCause:
    """The smallest call of a cause, made of ``case``. ``is_smaller``: it differs from this one."""

    cause: Cause[Failing]
    case: Case
    result: ResultRecord
    ready: DescribedTarget
    made: Smallest
    is_smaller: bool


def make_smaller(summary: RunSummary, effort: Effort | None) -> list[SmallestOfCause]:
    """The smallest call of each cause of failures; the summary gets the calls that were tried."""
    found: list[SmallestOfCause] = []
    if effort is not None and not summary.interrupted:
        try:
            found.extend(smallest_calls(summary, effort))
        except KeyboardInterrupt:
            summary.interrupted = True
    return found


def tell_smallest(
    summary: RunSummary, effort: Effort | None, made: Sequence[SmallestOfCause]
) -> None:
    """Add the smallest calls to the summary as texts, and write the file."""
    if effort is None:
        return
    found: list[CaseEntry] = []
    summary.smallest += filter(None, (_text(one, summary, effort, found) for one in made))
    if effort.file is None:
        return
    if not found:
        summary.smallest.append(f"  No call was made smaller: {effort.file} was not written.")
        return
    try:
        write_file(effort.file, "the smallest calls", case_text(found))
    except ResultsError as error:
        summary.smallest.append(f"  {error}")


def smallest_calls(summary: RunSummary, effort: Effort) -> Iterator[SmallestOfCause]:
    """The smallest call of each cause, never of results that did not repeat."""
    until = time.monotonic() + effort.seconds
    unstable = {(record.case, record.target) for record in summary.instability}
    failing = [
        (case, result)
        for case, result in summary.results
        if result.unexpected or (effort.thorough and result.known)
        if was_tried(result) and result.verdict != "pass"
        if not result.flaky and (case.id, result.target) not in unstable
        if effort.thorough or result.verdict != "timeout"
    ]
    for cause in causes(failing, lambda pair: pair[1])[: effort.most_causes]:
        if time.monotonic() < until:
            yield _smallest_of(cause, summary, effort, until)


def _smallest_of(
    cause: Cause[Failing], summary: RunSummary, effort: Effort, until: float
) -> SmallestOfCause:
    """The simplest case of one cause, made smaller."""
    case, result = min(cause.members, key=lambda pair: sum(map(input_elements, pair[0].steps)))
    (ready,) = (each for each in summary.targets if each.name == result.target)
    fault = fault_of(result.model_copy(update={"expectation": None}))
    provider = ready.execution_provider
    is_red_here = result.unexpected or is_red(result, case.contract.on(provider).basis)
    with PlanRun(Plan(ready.target, (), ()), ready=ready) as run:

        def still_fails(candidate: Case) -> bool:
            record = run.tried(candidate)
            if record is None:
                return False
            summary.beside.append((candidate, record))
            return fault_of(record) == fault and record.unexpected >= is_red_here

        made = smallest(case, still_fails, effort.most_runs, provider=provider, until=until)
        run.rest()
        is_smaller = fields_of(made.case) != fields_of(case) and still_fails(made.case)
    return SmallestOfCause(cause, case, result, ready, made, is_smaller)


def _text(one: SmallestOfCause, summary: RunSummary, effort: Effort, found: list[CaseEntry]) -> str:
    """The call in words and as fields, what it has, how to run it.

    The call is added to ``found``, with a sentence.
    """
    cause, made, target = one.cause, one.made, one.result.target
    head = f"{one.case.id} on {target}, after {plural(made.runs, 'run')}"
    if not one.is_smaller:
        return f"  {head}: not smaller than it is" if effort.thorough else ""
    if not made.complete:
        head += "; --shrink searches further"
    kind = kind_of(one.result, known=True)
    shared = [
        pattern.expression
        for each in summary.explained
        if (each.target, each.kind) == (target, kind) and not each.shared.left
        for pattern in each.shared.patterns
    ]
    about = [*filter(None, [made.sentence]), *made.beside([c for c, _ in cause.members], shared)]
    lines = [f"{head}:", f"  {made.case.title}: {_fields_text(made.case)}"]
    lines += [f"  {sentence}" for sentence in about]
    if effort.file is not None:
        name = f"smallest_{len(found) + 1}" if found else made.case.name
        why = " ".join(
            (*about, f"Made of {one.case.id} ({verdict_word(cause.verdict)} on {target}).")
        )
        found.append((replace(made.case, name=name), why))
        place = f"{shown(effort.file)}::{name}"
        lines.append(f"  {shlex.join(['gqa', 'run', place, *one.ready.arguments])}")
    return "\n".join(f"  {line}" for line in lines)


def _fields_text(case: Case) -> str:
    fields = fields_of(case).items()
    texts = (
        f"{name}: {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in fields
    )
    return ", ".join(texts) or "every field at its default"


# What the failures share, and which fault they are like

#: How long all of an explanation takes: the smallest calls, further calls, and known faults.
SECONDS: Final = 15.0


def explain_failures(
    summary: RunSummary,
    plans: Sequence[Plan],
    asked: bool | None,
    until: float,
    smaller: Sequence[SmallestOfCause],
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
    record = run.tried_unless_skipped(case)
    return kind_of(record, True) if record is not None else None
