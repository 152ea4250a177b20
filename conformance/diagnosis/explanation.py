"""Explains the failures of a run: what they share, and which known fault returns their values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, zip_longest
from math import inf
from pathlib import Path
from typing import Final

from conformance.base.words import plural
from conformance.base.yaml_source import InputError
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.corpus import shipped_files
from conformance.case.load import load
from conformance.case.selection import compile_expression
from conformance.diagnosis.as_if import FaultComparison, MatchingFault
from conformance.diagnosis.faulty_kernels import FaultyKernels
from conformance.diagnosis.shared import Shared, of_run, shared, simplicity
from conformance.diagnosis.smallest import neighbours
from conformance.harness.outcomes import Ran
from conformance.harness.runner import RunnerFailed
from conformance.judge.verdict import Unjudgeable, read_outputs
from conformance.results.causes import kind_of
from conformance.results.compare import RunDifferences
from conformance.results.table import Table
from conformance.results.verdicts import verdict_word
from conformance.run.engine import PlanRun

#: The kind of a result that passed in the run before and does not now.
BROKEN: Final = "newly broken"
#: The most groups of failures that are explained.
MAX_GROUPS: Final = 6
#: The most calls that are tried beside a run to tell expressions apart, at first and then.
ROUNDS: Final = (15, 15)
#: They are chosen among so many.
POOL: Final = 60


@dataclass(frozen=True)
class Explanation:
    """What the failures of one kind share on one target, and the faults that explain them.

    ``kind`` is the verdict, with the message of a rejection. ``as_if`` are known faults.
    """

    target: str
    kind: str
    shared: Shared
    groups: tuple[tuple[Case, ...], ...]
    passing: tuple[Case, ...]
    as_if: tuple[MatchingFault, ...] = ()

    @property
    def failing(self) -> list[Case]:
        """The failures, and the calls beside the run that fail in the same way."""
        return [*chain.from_iterable(self.groups)]

    @property
    def lines(self) -> tuple[str, ...]:
        """Headings, each with a sentence; none if nothing explains the failures."""
        sentences = (*(one.sentence for one in self.as_if), *self.shared.sentences)
        simplest = [
            f"Simplest: {pattern.simplest.id} ({pattern.simplest.title})"
            for pattern in self.shared.patterns[:1]
            if pattern.failures
        ]
        if not sentences:
            return ()
        verdict, _, message = self.kind.partition(": ")
        number = plural(self.shared.failures, f"{verdict_word(verdict)} result")
        about = f" ({message})" if message else ""
        return f"What may explain {number} on {self.target}{about}:", *sentences, *simplest


def explanations(results: Iterable[tuple[Case, str, str | None]]) -> list[Explanation]:
    """What failures share, by target and kind, the largest number first.

    Each result is a case, the name of the target, and its kind, as
    `conformance.results.causes.kind_of` has it.
    """
    failing: dict[tuple[str, str], list[Case]] = {}
    passing: dict[tuple[str, bool], list[Case]] = {}
    for case, target, kind in results:
        if kind is not None and not case.is_graph:
            must_reject = case.contract.demands == "rejects"
            group = passing.setdefault((target, must_reject), [])
            if kind:
                group = failing.setdefault((target, kind), [])
            group.append(case)
    groups = [(key, cases, len(of_run(cases))) for key, cases in failing.items()]
    found = []
    for (target, kind), cases, number in sorted(groups, key=lambda one: -one[2])[:MAX_GROUPS]:
        if number:
            others = passing.get((target, kind == "accepted"), [])
            found.append(_explanation(target, kind, cases, others))
    return found


def with_experiments(
    explanation: Explanation,
    kind_on_target: Callable[[Case], str | None],
    provider: str | None,
    until: float = inf,
) -> Explanation:
    """The explanation, made again with the results of calls that differ in one part each.

    First they differ from the simplest failure, then from the simplest call that passes although
    the failures share an expression with it, or else from another failure. ``kind_on_target`` runs
    a call; ``until`` is a time of `time.monotonic`, of which a third is taken.
    """
    one, now = explanation, time.monotonic()
    until = now + (until - now) / 3
    for most in ROUNDS:
        if time.monotonic() >= until:
            break
        failing, passing = one.failing, [*one.passing]
        tests = [compile_expression(pattern.expression) for pattern in one.shared.patterns]
        base = min(failing, key=simplicity)
        if one is not explanation:
            refuting = chain.from_iterable(pattern.passing for pattern in one.shared.patterns)
            base = min(refuting, key=simplicity, default=one.groups[-1][-1])
        like = sorted((*failing, *passing), key=simplicity)
        inside: list[Case] = []
        outside: list[Case] = []
        for case in islice(neighbours(base, like, provider), POOL):
            (inside if any(test((), case) for test in tests) else outside).append(case)
            if 2 * min(len(inside), len(outside)) > most or time.monotonic() >= until:
                break
        both = chain.from_iterable(zip_longest(outside, inside))
        for case in islice(filter(None, both), most):
            if time.monotonic() >= until:
                break
            kind = kind_on_target(case)
            if kind in ("", one.kind):
                (failing if kind else passing).append(case)
        one = _explanation(one.target, one.kind, failing, passing)
    return one


def _explanation(
    target: str, kind: str, failing: Sequence[Case], passing: Sequence[Case]
) -> Explanation:
    what = shared(failing, passing)
    groups = (*(pattern.selected for pattern in what.patterns), *filter(None, (what.left,)))
    return Explanation(target, kind, what, groups, tuple(passing))


def with_faults(
    explanation: Explanation, run: PlanRun, until: float, smallest: Sequence[Case] = ()
) -> Explanation:
    """The explanations, completed by the known faults whose values the target returns.

    Some calls are run again on the target, the ``smallest`` failing ones among them. ``until`` is
    a time of `time.monotonic`. Without the faulty kernels nothing is named.
    """
    if not explanation.kind.startswith("wrong"):
        return explanation

    def outputs_of(case: Case) -> Outputs | None:
        try:
            outcomes = run.once(case).outcomes
            return read_outputs(outcomes[0]) if isinstance(outcomes[0], Ran) else None
        except (IndexError, RunnerFailed, Unjudgeable):
            return None

    one, target_class = explanation, run.plan.target.entry.target_class
    found: list[MatchingFault] = []
    with FaultyKernels() as kernels, suppress(RunnerFailed):
        comparison = FaultComparison(one.passing, outputs_of, target_class, kernels, until)
        found = comparison.faults(one.groups, one.shared.exactly, smallest)
    return replace(one, as_if=tuple(found))


def cases_in(files: Iterable[Path]) -> dict[str, Case]:
    """The cases of the files that can still be read, by id."""
    found: dict[str, Case] = {}
    for file in sorted(set(files)):
        with suppress(InputError, OSError):
            found |= {case.id: case for case in load([file], checked=False)}
    return found


def explanations_of(table: Table) -> list[Explanation]:
    """What the unexpected results of shipped cases share."""
    failing = [cell for cell in table.cells if cell.result.unexpected]
    if not failing:
        return []
    cases = _shipped_cases()
    return explanations(
        (cases[cell.result.case], cell.label, kind_of(cell.result))
        for cell in table.cells
        if cell.result.case in cases
    )


def explanations_of_changes(changes: RunDifferences) -> list[Explanation]:
    """What newly broken results share that results which pass before and now do not have."""
    if not changes.by_kind["broken"]:
        return []
    cases = _shipped_cases()
    broken = [(change.case, change.target, BROKEN) for change in changes.by_kind["broken"]]
    right = [(id, target, "") for target, ids in changes.right.items() for id in ids]
    known = (each for each in (*broken, *right) if each[0] in cases)
    return explanations((cases[id], target, kind) for id, target, kind in known)


@cache
def _shipped_cases() -> dict[str, Case]:
    """The shipped cases by id. A stranger's results file may name any file, so it is not read."""
    return cases_in(shipped_files().values())
