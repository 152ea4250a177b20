"""The shares of the error budget that correct kernels use, and those that faults cause.

``python -m conformance.maintain.calibration RESULTS.jsonl... --power POWER.json`` prints both, for
each dtype, from what ``gqa run --results`` and ``maintain.power --json`` wrote.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from conformance.results.errors import ResultsError
from conformance.results.reader import Run, read

DTYPES: Final = ("float32", "float16", "bfloat16")

#: The largest share that a correct kernel may use, and the least that a fault must reach on a case.
RIGHT_MOST: Final = 0.5
FAULT_LEAST: Final = 2.0


@dataclass(frozen=True, order=True)
class Point:
    """A share of a budget, with the name of its case and target or of its mutant."""

    share: float
    name: str


Points = Mapping[str, Sequence[Point]]
"""By dtype, ascending."""


def right(runs: Iterable[Run]) -> dict[str, list[Point]]:
    """The share of every result that passed and has compared elements, by the query's dtype."""
    points: dict[str, list[Point]] = {dtype: [] for dtype in DTYPES}
    for run in runs:
        dtypes = {
            case.id: next((i.dtype for i in case.call.inputs if i.name == "query"), None)
            for case in run.cases.values()
        }
        for result in run.results:
            dtype = dtypes.get(result.case)
            if result.verdict == "pass" and result.share is not None and dtype in points:
                points[dtype].append(Point(result.share, f"{result.case} on {result.target}"))
    return {dtype: sorted(found) for dtype, found in points.items()}


class MutantRecord(BaseModel):
    """The needed fields of an entry of ``maintain.power --json``; others are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mutant: str
    numerical: bool = False
    """Whether its fault is in the numbers, and not in what it rejects or how it ends."""
    kills: int = 0
    largest_share: dict[str, float | None] = {}
    """By dtype, over all cases; null or missing if nothing was compared."""


_MUTANTS: Final = TypeAdapter(list[MutantRecord])

#: The kernel without a fault, which is in the file too.
CORRECT: Final = "correct"


def read_power(path: Path) -> list[MutantRecord]:
    """Read what ``maintain.power --json`` wrote.

    Raises:
        ResultsError: the file cannot be read, or has another format.
    """
    try:
        return _MUTANTS.validate_json(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"Cannot read {path}: {error.strerror or error}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        told = f"not a file of maintain.power: {where}: {first['msg']}."
        raise ResultsError(f"{path}: {told}") from None


def joined(runs: Iterable[Sequence[MutantRecord]]) -> list[MutantRecord]:
    """The mutants of several runs, each once, with its largest shares over the runs."""
    found: dict[str, MutantRecord] = {}
    for mutant in (mutant for run in runs for mutant in run):
        known = found.get(mutant.mutant, mutant)
        shares = dict(known.largest_share)
        for dtype, share in mutant.largest_share.items():
            seen = shares.get(dtype)
            shares[dtype] = share if seen is None else max(seen, share if share is not None else 0)
        found[mutant.mutant] = MutantRecord(
            mutant=mutant.mutant,
            numerical=known.numerical or mutant.numerical,
            kills=max(known.kills, mutant.kills),
            largest_share=shares,
        )
    return list(found.values())


def killed(mutants: Iterable[MutantRecord]) -> list[MutantRecord]:
    """The numerical mutants that some case kills."""
    return [m for m in mutants if m.numerical and m.kills and m.mutant != CORRECT]


def faults(mutants: Iterable[MutantRecord]) -> dict[str, list[Point]]:
    """The largest share of every killed numerical mutant, by dtype."""
    points: dict[str, list[Point]] = {dtype: [] for dtype in DTYPES}
    for mutant in killed(mutants):
        for dtype, share in mutant.largest_share.items():
            if share is not None and dtype in points:
                # NaN in place of a number is a fault of any size.
                points[dtype].append(Point(math.inf if math.isnan(share) else share, mutant.mutant))
    return {dtype: sorted(found) for dtype, found in points.items()}


def findings(right: Points, mutants: Iterable[MutantRecord]) -> list[str]:
    """One sentence for each violation of the two limits."""
    found = [
        f"{point.name} uses {point.share:.2g} of its budget; a correct kernel uses at most"
        f" {RIGHT_MOST:g}."
        for points in right.values()
        for point in points
        if point.share > RIGHT_MOST
    ]
    for mutant in killed(mutants):
        shares = [share for share in mutant.largest_share.values() if share is not None]
        if not any(math.isnan(share) or share >= FAULT_LEAST for share in shares):
            largest = max(shares, default=0.0)
            found.append(
                f"The fault {mutant.mutant} has a share of at most {largest:.2g} of the budget;"
                f" {FAULT_LEAST:g} is required on some case."
            )
    return found


def described(points: Sequence[Point], thing: str) -> str:
    """One line on a distribution: number, smallest, median and largest."""
    if not points:
        return f"no {thing}s"
    middle, last = points[len(points) // 2].share, points[-1].share
    plural = "" if len(points) == 1 else "s"
    return (
        f"{len(points)} {thing}{plural}: least {_short(points[0].share)}, "
        f"median {_short(middle)}, largest {_short(last)}"
    )


def _short(share: float) -> str:
    if math.isinf(share):
        return "∞"
    if share >= 1e4:
        digits, exponent = f"{share:.0e}".split("e")
        power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
        return power if digits == "1" else f"{digits}·{power}"
    return f"{share:.2g}" if share < 10 else f"{share:.0f}"


_SUPERSCRIPTS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the numbers; 0 if both limits hold, 1 if not, 3 for files that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.calibration",
        description="How much of the error budget correct kernels and mutants use.",
    )
    parser.add_argument("results", nargs="+", type=Path, help="files of gqa run --results")
    parser.add_argument(
        "--power", type=Path, action="append", default=[], help="from maintain.power --json; repeat"
    )
    given = parser.parse_args(arguments)
    try:
        of_right = right(read(path) for path in given.results)
        mutants = joined(map(read_power, given.power))
        of_faults = faults(mutants)
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 3
    for dtype in DTYPES:
        print(f"{dtype:9} {described(of_right[dtype], 'result')}")
        print(f"{'':9} {described(of_faults[dtype], 'mutant')}")
    broken = findings(of_right, mutants)
    for sentence in broken:
        print(sentence)
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
