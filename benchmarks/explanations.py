#!/usr/bin/env python3
"""How well failures are explained: a Markdown table of faults drawn at random.

Each fault of mutants/ is run as a target on a sample of the corpus, and explained as `gqa run` does
it, in as much time. The fault itself is not known, so that another one must be found to be like it,
or the condition under which calls fail. With ``--switched`` it is known, but on in some calls only;
with ``--known`` it is known and on.

What is said is judged with calls that the explanation has not seen. A name is right if the fault
returns the values of the named one in 49 of 50 of the calls that this makes wrong (and that have
the condition that is said; in a loop, some steps may not have it). A similar one is right if it
replaces a step of the same name, or stands in the same area of mutants/. The condition is right if
at most one in 50 of the calls that the expression selects stays the same to the bit, and at most
one in 50 of those that are wrong is not selected; it is nearly right with one in ten.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from conformance.base.paths import data_path
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.selection import compile_expression
from conformance.diagnosis.as_if import FaultComparison, MatchingFault
from conformance.diagnosis.explanation import Explanation, explanations, with_experiments
from conformance.diagnosis.faulty_kernels import FaultyKernels, SampledCall
from conformance.diagnosis.shared import effort
from conformance.diagnosis.smallest import smallest
from conformance.oracle.tolerance import TargetClass
from conformance.run.assessment import prepared_case

TARGET_CLASS: TargetClass = "cpu"
#: Calls with more products of scores than this are not sampled.
MAX_EFFORT = 2_000_000
#: The share of calls for which what is said may be untrue.
TOLERANCE, NEARLY = 1 / 50, 1 / 10
#: The seconds that `gqa run` takes for all of an explanation, and for the smallest calls.
SECONDS, SMALLEST_SECONDS = 15.0, 5.0
#: Faults are switched on in calls with one of these, in the words of mutants/switched.py.
PREDICATES = (
    "batch > 1", "queries > 1", "queries == 1", "total > 8", "total > 16", "past > 4",
    "heads > kv_heads", "kv_heads > 1", "size > 16", "packed", "chunks", "shared",
    "has('head_sink')", "has('attention_bias')", "get('do_rotary', 0) == 1",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What was said of a fault, and whether it is right."""

    fault: str
    failures: int
    shared: str
    as_if: str
    smallest: str
    verdict: str
    seconds: float


class Calls:
    """Sampled calls, and the faults that could change each."""

    def __init__(self, cases: Sequence[Case], kernels: FaultyKernels) -> None:
        self.kernels = kernels
        self.calls = {case.id: SampledCall(case, (), "cpu") for case in cases}
        self.changing = {id: {*kernels.changing(call)} for id, call in self.calls.items()}
        self._right: dict[str, Outputs | None] = {}

    def states(self, fault: str) -> dict[str, str]:
        """Whether each call is wrong with a fault, the same as without it, or near."""
        return {id: self._state(id, fault) for id in self.calls}

    def _state(self, id: str, fault: str) -> str:
        call, name = self.calls[id], fault.partition("@")[0]
        if name not in self.changing[id]:
            return "same"
        if id not in self._right:
            self._right[id] = self.kernels.outputs(call, "correct")
        outputs, right = self.kernels.outputs(call, fault), self._right[id]
        if outputs is None or right is None or not call.is_right(outputs):
            return "wrong"
        pairs = [
            (value, step[name])
            for made, step in zip(outputs, right, strict=True)
            for name, value in made.items()
        ]
        return "same" if all(a.tobytes() == b.tobytes() for a, b in pairs) else "near"


class Target:
    """A kernel with a fault, whose failures in the run are explained."""

    def __init__(self, fault: str, kernels: FaultyKernels, known: FaultyKernels) -> None:
        self.fault = fault
        self.kernels = kernels
        self.known = known
        self.beside: list[tuple[Case, str, str | None]] = []

    def outputs(self, case: Case) -> Outputs | None:
        """The outputs of a call."""
        return self.kernels.outputs(SampledCall(case, (), "cpu"), self.fault)

    def kind(self, case: Case) -> str | None:
        """The kind of the result of a call; None if it does not run."""
        call = SampledCall(case, (), "cpu")
        outputs = self.kernels.outputs(call, self.fault)
        if outputs is None or not all(call.expected):
            return None
        return "" if call.is_right(outputs) else "wrong"

    def explained(self, results: list[tuple[Case, str, str | None]]) -> tuple[Explanation, str]:
        """The explanation, and what the smallest call has."""
        until = time.monotonic() + SECONDS
        failing = [case for case, _, kind in results if kind]
        beside: list[tuple[Case, str, str | None]] = []

        def still_fails(case: Case) -> bool:
            beside.append((case, "it", self.kind(case)))
            return bool(beside[-1][2])

        made = smallest(
            min(failing, key=effort), still_fails, until=time.monotonic() + SMALLEST_SECONDS
        )
        one = explanations((*results, *beside))[0]
        one = with_experiments(one, self.kind, None, until)
        compared = FaultComparison(one.passing, self.outputs, TARGET_CLASS, self.known, until)
        found = compared.faults(one.groups, one.shared.exactly, [made.case])
        return Explanation(
            one.target, one.kind, one.shared, one.groups, one.passing, tuple(found)
        ), ", ".join(made.needs.values())


class Judge:
    """Compares what is said of a fault with calls that the explanation has not seen."""

    def __init__(self, held_out: Calls) -> None:
        self.held_out = held_out

    @cached_property
    def steps(self) -> dict[str, set[str]]:
        """The names of the steps of the kernel that each fault replaces."""
        import sys

        sys.path.append(str(data_path("mutants")))
        from areas import MUTANTS  # type: ignore[import-not-found]
        from kernel import Kernel  # type: ignore[import-not-found]

        return {
            name: {step for step in vars(mutant.kernel) if callable(getattr(Kernel, step, None))}
            - {"__init__", "__doc__", "__module__"}
            for name, mutant in MUTANTS.items()
        }

    def verdict(self, fault: str, one: Explanation) -> str:
        """The verdict on all that is said: `wrong` if any name is."""
        names = [self._is_right(fault, each, name) for each in one.as_if for name in each.names]
        parts = []
        if names:
            first = one.as_if[0]
            mark = "similar" if first.similar or first.contrary else "mechanism"
            parts.append(mark if all(names) else "wrong")
        only = [each.only for each in one.as_if if each.only]
        told = [p.expression for p in one.shared.patterns]
        for what, share in (("condition", TOLERANCE), ("nearly the condition", NEARLY)):
            if self._selects(fault, told, share) or (
                only and self._selects(fault, only, share, of=fault.partition("@")[0])
            ):
                parts.append(what)
                break
        return ", ".join(parts) or "nothing"

    def _is_right(self, fault: str, said: MatchingFault, name: str) -> bool:
        kernels = self.held_out.kernels
        if said.similar or said.contrary:
            own = fault.partition("@")[0]
            alike = self.steps[own] & self.steps[name]
            return bool(alike) or kernels.areas[own] == kernels.areas[name]
        if name == fault:
            return True
        test = compile_expression(said.only) if said.only else None
        wrong = explained = 0
        for id, state in self.held_out.states(name).items():
            call = self.held_out.calls[id]
            if state == "wrong" and (test is None or test((), call.case)):
                outputs, like = kernels.outputs(call, fault), kernels.outputs(call, name)
                if outputs is not None and like is not None:
                    wrong += 1
                    target = SampledCall(call.case, outputs, "cpu")
                    explained += target.is_explained(like, in_some_steps=test is not None)
        return wrong - explained <= wrong * TOLERANCE

    def _selects(self, fault: str, expressions: Sequence[str], share: float, of: str = "") -> bool:
        """Whether the expressions select what the fault changes, of what ``of`` makes wrong.

        At most this ``share`` of either may be an exception.
        """
        tests = [compile_expression(text) for text in expressions]
        states = self.held_out.states(fault)
        among = self.held_out.states(of) if of else dict.fromkeys(states, "wrong")
        counts: Counter[tuple[bool, str]] = Counter()
        for id, state in states.items():
            if among[id] == "wrong":
                case = self.held_out.calls[id].case
                counts[any(test((), case) for test in tests), state] += 1
        wrong = counts[True, "wrong"] + counts[False, "wrong"]
        selected = sum(number for (chosen, _), number in counts.items() if chosen)
        return bool(
            counts[True, "wrong"]
            and counts[False, "wrong"] <= wrong * share
            and counts[True, "same"] <= selected * share
        )


def rows(faults: Iterator[str], run: Calls, judge: Judge, is_known: bool) -> Iterator[Row]:
    """What is said of each fault that a call of the run shows."""
    for fault in faults:
        states = run.states(fault)
        failures = sum(state == "wrong" for state in states.values())
        name = fault.partition("@")[0]
        spared = [*run.states(name).values()].count("wrong") - failures
        if not failures or (name != fault and (failures < 5 or spared < 5)):
            continue
        results: list[tuple[Case, str, str | None]] = [
            (run.calls[id].case, "it", "wrong" if state == "wrong" else "")
            for id, state in states.items()
        ]
        with FaultyKernels(without=() if is_known else [name]) as known:
            known.sentences  # noqa: B018  # starts before the time counts
            start = time.perf_counter()
            one, has = Target(fault, run.kernels, known).explained(results)
            seconds = time.perf_counter() - start
        said = [
            f"{'similar to ' * bool(each.similar or each.contrary)}{', '.join(each.names)}"
            f"{f' only `{each.only}`' if each.only else ''}"
            for each in one.as_if
        ]
        yield Row(
            fault,
            failures,
            "; ".join(f"`{pattern.expression}`" for pattern in one.shared.patterns[:3]),
            "; ".join(said),
            has,
            judge.verdict(fault, one),
            seconds,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="these faults, not drawn ones")
    parser.add_argument("--known", action="store_true", help="the fault is known, too")
    parser.add_argument("--switched", action="store_true", help="known, but on in some calls only")
    given = parser.parse_args()
    chosen = [
        case
        for case in find([]).loaded
        if not case.is_graph and case.contract.demands != "rejects"
        if effort(case) < MAX_EFFORT and prepared_case(case).own.unjudged is None
    ]
    drawn = random.Random(given.seed)
    drawn.shuffle(chosen)
    print("| fault | failures | share | as if | smallest call has | right | seconds |")
    print("| --- | ---: | --- | --- | --- | --- | ---: |")
    counts: Counter[str] = Counter()
    with FaultyKernels() as kernels:
        run = Calls(chosen[: given.cases], kernels)
        judge = Judge(Calls(chosen[given.cases :][:1000], kernels))
        names = sorted(kernels.sentences)
        drawn.shuffle(names)
        if given.switched:
            names = [f"{name}@{drawn.choice(PREDICATES)}" for name in names]
        names = given.only or names
        is_known = given.known or given.switched
        for row in rows(iter(names), run, judge, is_known):
            counts[row.verdict] += 1
            print(
                f"| `{row.fault}` | {row.failures} | {row.shared} | {row.as_if} | {row.smallest} | "
                f"{row.verdict} | {row.seconds:.1f} |",
                flush=True,
            )
            if counts.total() >= given.faults:
                break
    print("\n" + ", ".join(f"{what}: {number}" for what, number in counts.most_common()))


if __name__ == "__main__":
    main()
