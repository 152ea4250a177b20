"""Compares the shares of the error budget that correct kernels use with those that faults cause.

``python -m conformance.maintain.calibration RESULTS.jsonl... --power POWER.json`` prints both for
each dtype, from files of ``gqa run --results`` and ``maintain.power --json``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.base.words import plural
from conformance.maintain import run_command
from conformance.maintain.power import CORRECT
from conformance.results.reader import Run, read

DTYPES: Final = ("float32", "float16", "bfloat16")

#: The largest share of a correct kernel, and the share that a fault must reach on some case.
RIGHT_MOST: Final = 0.5
FAULT_LEAST: Final = 2.0

Points = Mapping[str, Sequence[tuple[float, str]]]
"""By dtype, in ascending order: shares of the budget, each with a case and target, or a mutant."""


def right(runs: Iterable[Run]) -> Points:
    """The shares of all results that passed and have compared elements, by the query's dtype."""
    points: dict[str, list[tuple[float, str]]] = {dtype: [] for dtype in DTYPES}
    for run in runs:
        dtypes = {
            case.id: next((i.dtype for i in case.call.inputs if i.name == "query"), None)
            for case in run.cases.values()
        }
        for result in run.results:
            dtype = dtypes.get(result.case)
            if result.verdict == "pass" and result.share is not None and dtype in points:
                points[dtype].append((result.share, f"{result.case} on {result.target}"))
    return {dtype: sorted(shares) for dtype, shares in points.items()}


def killed(runs: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """The largest share by dtype of each numerical mutant that a case in one of the runs kills.

    A run has the records of `conformance.maintain.power.MutantScore`. NaN counts as infinite.
    """
    largest: dict[str, dict[str, float]] = {}
    every = [mutant for run in runs for mutant in run if mutant["mutant"] != CORRECT]
    numerical = {mutant["mutant"] for mutant in every if mutant["numerical"]}
    dead = {mutant["mutant"] for mutant in every if mutant["kills"]}
    for mutant in every:
        if (name := mutant["mutant"]) in numerical & dead:
            shares = largest.setdefault(name, {})
            for dtype, share in mutant["largest_share"].items():
                size = math.inf if math.isnan(share) else share
                shares[dtype] = max(size, shares.get(dtype, 0.0))
    return largest


def faults(mutants: Mapping[str, Mapping[str, float]]) -> Points:
    """The shares that :func:`killed` returned, by dtype."""
    return {
        dtype: sorted((shares[dtype], name) for name, shares in mutants.items() if dtype in shares)
        for dtype in DTYPES
    }


def findings(right: Points, mutants: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A sentence for each violation of the two limits."""
    sentences = [
        f"{name} uses {share:.2g} of its budget; a correct kernel uses at most {RIGHT_MOST:g}."
        for points in right.values()
        for share, name in points
        if share > RIGHT_MOST
    ]
    for mutant, shares in mutants.items():
        largest = max(shares.values(), default=0.0)
        if largest < FAULT_LEAST:
            sentences.append(
                f"The fault {mutant} has a share of at most {largest:.2g} of the budget;"
                f" {FAULT_LEAST:g} is required on some case."
            )
    return sentences


def described(points: Sequence[tuple[float, str]], thing: str) -> str:
    """A line about a distribution: number, smallest, median and largest."""
    if not points:
        return f"no {thing}s"
    least, middle, largest = (f"{points[n][0]:.3g}" for n in (0, len(points) // 2, -1))
    number = plural(len(points), thing)
    return f"{number}: least {least}, median {middle}, largest {largest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the numbers; 0 if both limits hold, 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.calibration",
        description="How much of the error budget correct kernels and mutants use.",
    )
    parser.add_argument("results", nargs="+", type=Path, help="files of gqa run --results")
    parser.add_argument(
        "--power", type=Path, action="append", default=[], help="from maintain.power --json; repeat"
    )
    options = parser.parse_args(arguments)
    of_right = right(read(path) for path in options.results)
    mutants = killed(json.loads(path.read_bytes()) for path in options.power)
    of_faults = faults(mutants)
    for dtype in DTYPES:
        print(f"{dtype:9} {described(of_right[dtype], 'result')}")
        print(f"{'':9} {described(of_faults[dtype], 'mutant')}")
    broken = findings(of_right, mutants)
    for sentence in broken:
        print(sentence)
    return 1 if broken else 0


if __name__ == "__main__":
    run_command(main)
