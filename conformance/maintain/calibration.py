"""The shares of the error budget that correct kernels use, and those that faults cause.

``python -m conformance.maintain.calibration RESULTS.jsonl... --power POWER.json -o FILE.svg``
draws both, for each dtype, from what ``gqa run --results`` and ``gqa power --json`` wrote.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

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
    """The needed fields of an entry of ``gqa power --json``; others are ignored."""

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
    """Read what ``gqa power --json`` wrote.

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
        raise ResultsError(f"{path}: not a file of gqa power: {where}: {first['msg']}.") from None


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


# --- the picture ---

#: The edges of the bins are powers of √2, so that 0.5, 1 and 2 are among them. Shares outside the
#: first and the last edge, including 0 and infinity, are in a bin of their own at each end.
FIRST, LAST = -24, 46
_BINS: Final = LAST - FIRST + 2

_LEFT, _RIGHT, _STEP = 92, 20, 11
_TOP, _UP, _DOWN, _GAP, _BOTTOM = 96, 74, 74, 62, 66
_WIDTH: Final = _LEFT + _STEP * _BINS + _RIGHT

_STYLE: Final = """
svg { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; --band: #fff1c7;
  --right: #1a7f64; --fault: #c4432b; }
@media (prefers-color-scheme: dark) { svg { --page: #0d1117; --ink: #f0f6fc; --soft: #9198a1;
  --line: #3d444d; --band: #3a2e0a; --right: #3fb996; --fault: #f0806a; } }
text { font: 13px system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif;
  fill: var(--ink); }
.soft { fill: var(--soft); font-size: 12px; }
.head { font-weight: 600; font-size: 15px; }
.dtype { font-weight: 600; }
.page { fill: var(--page); }
.band { fill: var(--band); }
.right { fill: var(--right); }
.fault { fill: var(--fault); }
.base { stroke: var(--soft); }
.grid { stroke: var(--line); }
.mark { stroke: var(--soft); stroke-dasharray: 3 3; }
"""


def bin_of(share: float) -> int:
    """The bin, from 0 on, that a share falls into; a share on an edge belongs below it."""
    if share <= 2.0 ** (FIRST / 2):
        return 0
    if share > 2.0 ** (LAST / 2):
        return _BINS - 1
    place = math.ceil(2 * math.log2(share) - 1e-9)
    return place - FIRST


def _x(share: float) -> float:
    """Where a share stands on the axis."""
    return _LEFT + _STEP * (1 + 2 * math.log2(share) - FIRST)


def svg(right: Points, faults: Points) -> str:
    """Draw, for each dtype, the correct kernels' shares upwards and the mutants' downwards."""
    height = _TOP + len(DTYPES) * (_UP + _DOWN + _GAP) - _GAP + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img">',
        "<title>Error as a share of the budget: right kernels and mutants, by dtype</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
        _text(20, 28, "Error as a share of the budget", "head"),
        '<rect class="right" x="20" y="41" width="12" height="12"/>',
        _text(38, 52, "upwards: results of right kernels, each by its worst element"),
        '<rect class="fault" x="460" y="41" width="12" height="12"/>',
        _text(478, 52, "downwards: mutants, each by its worst case"),
    ]
    for number, dtype in enumerate(DTYPES):
        base = _TOP + number * (_UP + _DOWN + _GAP) + _UP
        parts += _panel(base, dtype, right.get(dtype, ()), faults.get(dtype, ()))
    parts += _axis(height - 22)
    return "\n".join([*parts, "</svg>", ""])


def _panel(base: float, dtype: str, right: Sequence[Point], faults: Sequence[Point]) -> list[str]:
    """One dtype's two histograms above and below the line at ``base``, each at full height."""
    left, end = _LEFT, _WIDTH - _RIGHT
    low, high = _x(RIGHT_MOST), _x(FAULT_LEAST)
    parts = [
        f'<rect class="band" x="{low:g}" y="{base - _UP}" width="{high - low:g}" '
        f'height="{_UP + _DOWN}"/>'
    ]
    for exponent in _decades():
        parts.append(_line(_x(10.0**exponent), base - _UP, base + _DOWN, "grid"))
    for share in (RIGHT_MOST, 1.0, FAULT_LEAST):
        parts.append(_line(_x(share), base - _UP, base + _DOWN, "mark"))
    parts += _bars(base, -_UP, right, "right")
    parts += _bars(base, _DOWN, faults, "fault")
    parts.append(f'<path class="base" d="M{left} {base}H{end}"/>')
    parts.append(_text(20, base + 4, dtype, "dtype"))
    parts.append(_text(left, base - _UP - 6, described(right, "result"), "soft"))
    parts.append(_text(left, base + _DOWN + 16, described(faults, "mutant"), "soft"))
    return parts


def _bars(base: float, room: float, points: Sequence[Point], name: str) -> list[str]:
    """A histogram as one path; ``room`` is the height of its highest bar, negative upwards.

    The bins at the two ends are ignored in the scale, because the many mutants that break a copy
    (∞) would flatten all other bars; their counts are written beside their bars.
    """
    counts = [0] * _BINS
    for point in points:
        counts[bin_of(point.share)] += 1
    most = max(counts[1:-1], default=0) or max(counts)
    heights = [room * min(count / most, 1) if count else 0.0 for count in counts]
    d = "".join(
        f"M{_LEFT + _STEP * number + 1} {base}v{height:.1f}h{_STEP - 2}V{base}z"
        for number, height in enumerate(heights)
        if height
    )
    parts = [f'<path class="{name}" d="{d}"/>']
    for number in (0, _BINS - 1):
        if counts[number]:
            y = base + heights[number] + (14 if room > 0 else -4)
            x = _LEFT + _STEP * (number + 0.5)
            parts.append(_text(x, y, str(counts[number]), "soft", "middle"))
    return parts


def _decades() -> range:
    return range(math.ceil(FIRST / 2 * math.log10(2)), math.floor(LAST / 2 * math.log10(2)) + 1)


def _axis(y: float) -> Iterator[str]:
    """Labels of the decades, the three marks above the band, and the two ends."""
    for exponent in _decades():
        label = f"{10.0**exponent:g}" if -4 < exponent < 4 else _short(10.0**exponent)
        yield _text(_x(10.0**exponent), y, label, "soft", "middle")
    for share in (RIGHT_MOST, FAULT_LEAST):
        yield _text(_x(share), y, f"{share:g}", "soft", "middle")
    yield _text(_LEFT + _STEP / 2, y, "0", "soft", "middle")
    yield _text(_WIDTH - _RIGHT - _STEP / 2, y, "∞", "soft", "middle")


def _line(x: float, y1: float, y2: float, name: str) -> str:
    return f'<path class="{name}" d="M{x:g} {y1:g}V{y2:g}"/>'


def _text(x: float, y: float, text: str, name: str = "", anchor: str = "start") -> str:
    kind = f' class="{name}"' if name else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{escape(text)}</text>'


# --- the command ---


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture and print the numbers.

    Returns 0 if both limits hold, 1 if not, 3 for files that cannot be read or written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.calibration",
        description="Draw how much of the error budget correct kernels and mutants use.",
    )
    parser.add_argument("results", nargs="+", type=Path, help="files of gqa run --results")
    parser.add_argument(
        "--power", type=Path, action="append", default=[], help="file of gqa power --json; repeat"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="the SVG file")
    given = parser.parse_args(arguments)
    try:
        of_right = right(read(path) for path in given.results)
        mutants = joined(map(read_power, given.power))
        of_faults = faults(mutants)
        try:
            given.output.write_text(svg(of_right, of_faults), encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"Cannot write {given.output}: {error.strerror}.") from None
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
