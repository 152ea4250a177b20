"""Badges: an SVG for each target, with its numbers as text and in the verdicts' colours."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

from conformance.base.paths import data_path
from conformance.base.text import one_line
from conformance.results.score import Score
from conformance.results.table import Cell, Table
from conformance.results.verdicts import (
    SOFTWARE,
    VERDICTS,
    Drawn,
    is_of_software,
    ranks_as,
)

#: Longer names are cut to this many characters.
_MOST: Final = 60
_HEIGHT: Final = 24
#: Height of the strip below, in which each verdict has its share of the width.
_STRIP: Final = 4


@dataclass(frozen=True)
class Badge:
    """An SVG document, and a file name that is unique in the run."""

    file: str
    svg: str


def badges(table: Table) -> tuple[Badge, ...]:
    """A badge for each column, and one for each profile in it."""
    colours = verdict_colours()
    made: list[Badge] = []
    taken: set[str] = set()
    for column in table.columns:
        scores = table.scores([column.label])
        cells = table.column_cells(column.label)
        tried = scores.whole.asked + scores.requested.asked
        wanted = [(column.label, cells, scores.whole, tried)]
        for profile, score in scores.themes.items():
            if profile not in table.profiles:
                continue
            own = [cell for cell in cells if cell.theme == profile]
            wanted.append((f"{column.label}.{profile}", own, score, score.asked))
        for label, own, score, tried in wanted:
            file = _file_name(label, taken)
            taken.add(file.lower())
            incomplete = bool(column.run.problems)
            made.append(Badge(file, _badge(label, own, score, tried, incomplete, colours)))
    return tuple(made)


#: The parts of the strip, worst first.
_PARTS: Final[tuple[Drawn, ...]] = (*VERDICTS, SOFTWARE)


def verdict_colours() -> dict[Drawn, str]:
    """The strongest colour of each verdict, and of `SOFTWARE`, on which white can be read."""
    style = (data_path("reports") / "report.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--(\w+)-loud: (#[0-9a-f]{6})\b", style)))  # dark is last
    return {part: light[part] for part in _PARTS}


def _file_name(label: str, taken: set[str]) -> str:
    """A file name of letters, digits and other characters that every file system allows."""
    stem = re.sub(r"[^A-Za-z0-9._+@-]+", "-", label).strip("-.")[:80] or "target"
    name, number = f"{stem}.svg", 1
    while name.lower() in taken:
        number += 1
        name = f"{stem}-{number}.svg"
    return name


def _badge(
    label: str,
    cells: Sequence[Cell],
    score: Score,
    tried: int,
    incomplete: bool,
    colours: dict[Drawn, str],
) -> str:
    unexpected = [cell for cell in cells if cell.mark == "unexpected"]
    text = f"{score.right:,} of {score.asked:,} calls right" if tried else "not tried"
    if tried and score.not_tried:
        text += f", {score.not_tried:,} not tried"
    if tried:
        text += f", {len(unexpected):,} unexpected"
    if incomplete:
        text += ", run incomplete"
    # Grey where the results say nothing about the runtime.
    otherwise: Drawn = "pass" if tried and not incomplete else "skip"
    worst = min(unexpected, key=lambda cell: cell.severity, default=None)
    colour = colours[ranks_as(worst.result) if worst else otherwise]
    strip: Counter[Drawn] = Counter(
        SOFTWARE if is_of_software(cell.result) else ranks_as(cell.result) for cell in cells
    )
    return _svg(one_line(label, _MOST), text, colour, strip, colours)


def _svg(
    left: str, right: str, colour: str, counts: Counter[Drawn], colours: dict[Drawn, str]
) -> str:
    """Two texts beside each other, and the strip below them."""
    first, second = _width(left) + 16, _width(right) + 16
    width = first + second
    size = {"width": str(width), "height": str(_HEIGHT), "viewBox": f"0 0 {width} {_HEIGHT}"}
    label = {"role": "img", "aria-label": f"{left}: {right}"}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **label})
    SubElement(svg, "title").text = f"{left}: {right}"
    _box(svg, 0, 0, width, _HEIGHT, "#2d3138")
    _box(svg, first, 0, second, _HEIGHT, colour)
    total = sum(counts.values())
    at = 0.0
    for part in _PARTS:
        if counts[part]:
            share = width * counts[part] / total
            _box(svg, at, _HEIGHT - _STRIP, share, _STRIP, colours[part])
            at += share
    for x, text, wide in ((8, left, first - 16), (first + 8, right, second - 16)):
        # With a fixed length, a wider font on another system still fits the box.
        place = {"x": str(x), "y": "14", "textLength": str(wide), "fill": "#fff"}
        font = {"font-family": "Verdana, DejaVu Sans, sans-serif", "font-size": "11"}
        SubElement(svg, "text", place | font).text = text
    return tostring(svg, encoding="unicode") + "\n"


def _box(svg: Element, x: float, y: float, width: float, height: float, colour: str) -> None:
    numbers = {"x": x, "y": y, "width": width, "height": height}
    SubElement(svg, "rect", {k: f"{v:g}" for k, v in numbers.items()} | {"fill": colour})


def _width(text: str) -> int:
    """The approximate width of ``text`` in 11 px Verdana, in px."""
    narrow, wide = "il|.,:;'!j1I[]()tf ", "mwMW%@"
    total = 0.0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF" or character in wide:
            total += 11
        else:
            total += 4.5 if character in narrow and not character.isdigit() else 7
    return max(8, round(total))
