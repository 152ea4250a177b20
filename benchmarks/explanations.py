#!/usr/bin/env python3
"""How well failures are explained: a Markdown table of faults drawn at random.

Each fault of mutants/ is run as a target on a sample of the corpus. What the explanation says is
compared with the fault: the expression that failures share, the fault whose values they have (once
with this fault among the known ones and once without it; then with the number of passing calls that
the name would break), and the smallest call that still fails.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass

from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.diagnosis.as_if import FaultyKernels, MatchingFault, SampledCall, as_if
from conformance.diagnosis.explanation import explanations
from conformance.diagnosis.shared import effort
from conformance.diagnosis.smallest import smallest
from conformance.run.assessment import prepared_case

#: Calls with more products of scores than this are not sampled.
MAX_EFFORT = 2_000_000


@dataclass(frozen=True)
class Row:
    """What was said of a fault."""

    fault: str
    failures: int
    shared: str
    verdict: str
    without: str
    has: str
    runs: int
    seconds: float


class Sample:
    """The sampled calls, and the faults that could change each."""

    def __init__(self, cases: int, seed: int, kernels: FaultyKernels) -> None:
        chosen = [
            case
            for case in find([]).loaded
            if not case.is_graph and case.contract.demands != "rejects"
            if effort(case) < MAX_EFFORT and prepared_case(case).own.unjudged is None
        ]
        random.Random(seed).shuffle(chosen)
        self.kernels = kernels
        self.calls = {case.id: SampledCall(case, (), "cpu") for case in chosen[:cases]}
        self.changing = {id: {*kernels.changing(call)} for id, call in self.calls.items()}

    def kind(self, case: Case, fault: str) -> str | None:
        """The kind of the result of a call with a fault; None if it does not run."""
        call = self.calls.get(case.id) or SampledCall(case, (), "cpu")
        outputs = self.kernels.outputs(call, fault)
        return None if outputs is None else "" if call.is_right(outputs) else "wrong"

    def row(self, fault: str) -> Row | None:
        """What is said of a fault; None if no sampled call shows it."""
        cases = [call.case for call in self.calls.values()]
        kinds = {
            case.id: self.kind(case, fault) if fault in self.changing[case.id] else ""
            for case in cases
        }
        if not any(kinds.values()):
            return None
        start = time.perf_counter()
        one = explanations((case, "it", kinds[case.id]) for case in cases)[0]

        def named(known: FaultyKernels) -> list[MatchingFault]:
            def outputs_of(case: Case) -> object:
                return self.kernels.outputs(
                    self.calls.get(case.id) or SampledCall(case, (), "cpu"), fault
                )

            return as_if(one.groups, one.passing, outputs_of, "cpu", known)  # type: ignore[arg-type]

        found = named(self.kernels)
        seconds = time.perf_counter() - start
        with FaultyKernels(without=[fault]) as others:
            without = named(others)
        simplest = min(
            (case for group in one.groups for case in group), key=lambda case: effort(case)
        )
        made = smallest(simplest, lambda case: bool(self.kind(case, fault)))
        return Row(
            fault,
            one.shared.failures,
            "; ".join(f"`{pattern.expression}`" for pattern in one.shared.patterns[:2])
            or "nothing",
            _verdict(found, fault),
            ", ".join(f"{', '.join(each.names)} ({len(each.broken)})" for each in without)
            or "none",
            ", ".join(made.needs.values()) or "nothing",
            made.runs,
            seconds,
        )


def _verdict(found: list[MatchingFault], fault: str) -> str:
    if not found:
        return "none"
    names = [name for each in found for name in each.names]
    return "right" if fault in names else f"wrong: {', '.join(names)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| fault | failures | share | as if | without it | smallest call has | runs | seconds |")
    print("| --- | ---: | --- | --- | --- | --- | ---: | ---: |")
    counts: Counter[str] = Counter()
    with FaultyKernels() as kernels:
        sample = Sample(given.cases, given.seed, kernels)
        names = sorted(kernels.sentences)
        random.Random(given.seed).shuffle(names)
        left = iter(names)
        while counts.total() < given.faults and (fault := next(left, None)) is not None:
            if (row := sample.row(fault)) is not None:
                counts[row.verdict.partition(":")[0]] += 1
                counts_without = "" if row.without == "none" else row.without
                print(
                    f"| {row.fault} | {row.failures} | {row.shared} | {row.verdict} | "
                    f"{counts_without} | {row.has} | {row.runs} | {row.seconds:.1f} |",
                    flush=True,
                )
    print("\n" + ", ".join(f"{number} {what}" for what, number in counts.most_common()))


if __name__ == "__main__":
    main()
