"""The maps of an error as lines of text, for the terminal and for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import Final, NamedTuple

from conformance.base.words import plural
from conformance.results.records import ErrorMap, OutputErrorRecord

#: What the positions and the elements of a head are.
_NOUNS: Final = {"output": ("query", "element"), "output_qk": ("key", "key")}
#: The mark of each edge, and the words that come before its position.
_WORDS: Final = {"new": "+ new from", "window": "^ window from", "end": "| ends before"}
#: A position, and the words of the edge that is before it.
Edge = tuple[int, str]
#: The most sequences whose edges are drawn.
_MOST_SEQUENCES: Final = 8
_LEGEND: Final = {
    "0": "0 within the budget",
    "123456789": "1 to 9 up to 10, 100, … times the budget",
    "X": "X the worst",
    "!": "! not finite",
    "#": "# wrong at a hidden key",
    "-": "- hidden",
    ".": ". undefined",
}


class PictureLine(NamedTuple):
    """A line of a picture: a label, the characters of a map, and a note."""

    label: str
    cells: str = ""
    note: str = ""


def picture(error: OutputErrorRecord) -> Iterator[PictureLine]:
    """The lines of both maps with their edges, and the legend; none if there is no map."""
    where = error.where
    if where is None or not any(where.rows):
        return
    position, element = _NOUNS.get(error.output, ("row", "element"))
    height, across = _block(where.heads, where.rows), _block(where.positions, where.rows[0])
    down = "query" if error.output == "output_qk" else position
    yield PictureLine(f"{error.output}, {_sides('head', height, position, across)}:")
    for number, cells in enumerate(where.rows):
        yield PictureLine(_head_label(where, number * height), cells)
    yield from _ruler(where, position, across)
    used = set("".join(where.rows))
    worst = where.worst
    if worst is not None and any(worst.rows):
        height, across = _block(worst.tokens, worst.rows), _block(worst.elements, worst.rows[0])
        row = worst.batch * (where.heads // max(len(where.lengths), 1)) + worst.head
        edges = _edges(where, worst.batch, position) if down == position else ()
        yield PictureLine(
            f"worst, {_head_label(where, row)}, {_sides(down, height, element, across)}:"
        )
        for number, cells in enumerate(worst.rows):
            here = [words for at, words in edges if at // height == number]
            yield PictureLine(f"{down} {number * height}", cells, ", ".join(here))
        used |= set("".join(worst.rows))
    yield PictureLine(", ".join(words for each, words in _LEGEND.items() if used & set(each)) + ".")


def text_of(lines: Iterator[PictureLine]) -> Iterator[str]:
    """The lines as text, with the characters of all maps in the same column."""
    found = list(lines)
    width = max((len(line.label) for line in found if line.cells), default=0)
    for line in found:
        yield f"{line.label:<{width}}  {line.cells}  {line.note}".rstrip()


def _head_label(where: ErrorMap, row: int) -> str:
    """The head that a row begins with, and its sequence if there are several."""
    sequences = len(where.lengths)
    sequence, head = divmod(row, where.heads // max(sequences, 1) or 1)
    return f"sequence {sequence}, head {head}" if sequences > 1 else f"head {row}"


def _ruler(where: ErrorMap, position: str, block: int) -> Iterator[PictureLine]:
    """For each sequence that differs from those before, its length, and its edges with marks."""
    found: dict[tuple[int, tuple[Edge, ...]], int] = {}
    for sequence, length in enumerate(where.lengths):
        found.setdefault((length, _edges(where, sequence, position)), sequence)
    for (length, edges), sequence in list(found.items())[:_MOST_SEQUENCES]:
        marks = {at // block: words[0] for at, words in edges}
        cells = "".join(marks.get(number, " ") for number in range(len(where.rows[0])))
        label = f"sequence {sequence}" if len(where.lengths) > 1 else ""
        notes = [plural(length, "token"), *(words for _, words in edges)]
        yield PictureLine(label, cells, ", ".join(notes))


def _edges(where: ErrorMap, sequence: int, position: str) -> tuple[Edge, ...]:
    """The edges inside a sequence: the position, and the words with their mark."""
    found = [(kind, of[sequence]) for kind, of in where.edges.items() if sequence < len(of)]
    return tuple(
        (at, f"{_WORDS[kind]} {position} {at}")
        for kind, at in found
        if (0 if kind == "window" else 1) <= at < where.positions
    )


def _block(length: int, shown: Sized) -> int:
    """How many items a row or a character stands for."""
    return max(math.ceil(length / max(len(shown), 1)), 1)


def _sides(down: str, height: int, across: str, width: int) -> str:
    """What the rows and the columns of a map are."""
    words = []
    for noun, size in ((down, height), (across, width)):
        several = "queries" if noun == "query" else f"{noun}s"
        words.append(f"{several} by {size}" if size > 1 else several)
    return " × ".join(words)
