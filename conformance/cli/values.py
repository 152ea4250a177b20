"""The output of ``gqa show --values``: the computation of one query, from scores to output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.base.text import clean
from conformance.case.case import Case
from conformance.cli.console import fits, print_table
from conformance.oracle.numbers import Float
from conformance.oracle.values import Hidden, QueryValues, Rotation, RowValues, StoredHead
from conformance.report.repro.checks import is_of_the_variant
from conformance.report.values import Returned, Values

#: The largest number of rows that are all shown; of a longer table, the rows that matter.
_FEW: Final = 24
#: Numbers of significant digits; the first with which a table fits into the terminal is taken.
_DIGITS: Final = (9, 6, 4, 3)

_HIDDEN: Final[dict[Hidden, str]] = {
    "no token": "0, beyond the length",
    "padding": "0, query is padding",
    "causal": "0, later than the query",
    "window": "0, before the window",
    "bias": "0, bias is -inf",
}


@dataclass(frozen=True)
class _Column:
    """A column of a table: its head and its cells, which are numbers or texts."""

    head: str
    cells: Sequence[Any]
    digits: int = 99
    """The largest number of significant digits."""

    def cell(self, row: int, digits: int) -> str:
        """The text of a cell, with at most ``digits`` significant digits."""
        cell = self.cells[row]
        return cell if isinstance(cell, str) else f"{cell:.{min(digits, self.digits)}g}"


@dataclass(frozen=True)
class _Grid:
    """A table with all its rows."""

    title: str
    columns: Sequence[_Column]
    kept: Iterable[int]
    """The rows that matter, which are shown in a long table."""
    styles: Sequence[str]
    """The style of each row."""
    note: Callable[[range], str] = lambda run: ""
    """The text that stands for rows that are left out …"""
    noted: str = ""
    """… and the head of its column."""


def draw_values(
    console: Console,
    case: Case,
    values: Values,
    returned: Returned | None,
    everything: bool = False,
) -> None:
    """Print the values of a query; long tables in full only if ``everything`` is set."""
    console.print(Text(clean(case.id), style="bold"), soft_wrap=True)
    for label, line in _head(case, values, returned):
        console.print(Text.assemble((f"{label:<10}", "dim"), "  ", line), soft_wrap=True)
    for grid in _grids(values):
        console.print()
        console.print(Text(grid.title, style="bold"))
        _print(console, grid, everything)


def _head(case: Case, values: Values, returned: Returned | None) -> Iterator[tuple[str, str]]:
    if returned is not None:
        result = returned.result
        yield "on", f"{clean(returned.target)}: {result.verdict}"
        yield "reason", clean(result.reason)
        if is_of_the_variant(result):
            yield "", "The fault is in the variant; these are the values of the case itself."
        elif returned.outputs is None and result.outcome == "ran":
            yield "", "A results file has one element of each output; without --results, --ep"
            yield "", "runs the case and shows all of them."
    if case.contract.demands == "rejects":
        yield "contract", "the call must be rejected; these values are what it would compute"
    if values.element is not None:
        yield "element", str(values.element)
    if len(case.steps) > 1:
        yield "step", f"{values.step} of 0 … {len(case.steps) - 1}"
    query = values.query
    if query is None:
        yield "query", "the call has no query token"
        return
    yield (
        "query",
        f"batch {query.batch}, head {query.head} (key/value head {query.kv_head}),"
        f" token {query.token}",
    )
    rotated = f", rotated by position {query.position}" if query.position >= 0 else ""
    yield "place", f"{query.place}{rotated}"
    call = query.call
    past, length = call.past_lengths[query.batch], call.lengths[query.batch]
    yield "lengths", f"{past} past, {length} after the call, {call.total} keys"
    yield "logit", _formula(query)
    if query.undefined:
        yield "undefined", f"{query.undefined}: these elements of output are not compared"
    element = values.element
    if element is not None and element.output.startswith("present") and values.row is None:
        yield "row", f"{element.index[2]} of the present holds no token, so it is undefined"


def _formula(query: QueryValues) -> str:
    """The formula of a logit, with the numbers of the call."""
    text = f"{query.call.scale:.9g} · q·k"
    if query.call.softcap:
        text = f"{query.call.softcap:.9g} · tanh({text} / {query.call.softcap:.9g})"
    if query.keys.bias is not None:
        text += " + bias"
    masks = ["causal"] if query.call.causal else ["not causal"]
    if query.call.window is not None:
        masks.append(f"window of {query.call.window}")
    if query.sink is not None:
        masks.append(f"sink {query.sink:.9g}")
    return f"{text}; {', '.join(masks)}"


def _grids(values: Values) -> Iterator[_Grid]:
    query, row, outputs = values.query, values.row, values.outputs
    if query is not None:
        yield _keys(query, values)
        if "output_qk" in outputs:
            yield _vector(values, "output_qk", "key")
        if "output" in outputs:
            yield _vector(values, "output", "d")
        yield _query(query)
    if row is not None:
        for name, head in (("present_key", row.key), ("present_value", row.value)):
            if name in outputs:
                rotation = row.rotation if name == "present_key" else None
                before = _stored(head, rotation, query, row)
                yield _vector(values, name, "d", before, _origin(row, rotation))


def _keys(query: QueryValues, values: Values) -> _Grid:
    keys, count = query.keys, len(query.keys.score)
    origin = [
        f"past {row}" if row >= 0 else f"new {new}" if new >= 0 else ""
        for row, new in zip(keys.past_row, keys.new_token, strict=True)
    ]
    columns = [_Column("key", [*map(str, range(count))]), _Column("from", origin)]
    if values.row is not None:
        columns.append(_Column("row", [_or_nothing(row) for row in keys.present_row]))
    if query.position >= 0:
        columns.append(_Column("position", [_or_nothing(place) for place in keys.position]))
    columns.append(_Column("score", [*keys.score]))
    if query.call.softcap:
        columns.append(_Column("capped", [*keys.capped]))
    if keys.bias is not None:
        columns.append(_Column("bias", [*keys.bias]))
    if query.call.softcap or keys.bias is not None:
        columns.append(_Column("logit", [*keys.logit]))
    last = [_HIDDEN.get(why) or p for why, p in zip(keys.hidden, keys.probability, strict=True)]
    columns.append(_Column("probability", last))
    styles = ["dim" if why else "" for why in keys.hidden]
    changes = [j for j in range(1, count) if keys.hidden[j] != keys.hidden[j - 1]]
    best = np.argsort(-keys.probability, kind="stable")[:3]
    kept = {0, 1, count - 2, count - 1, query.place, *changes, *(j - 1 for j in changes)}
    kept |= {*map(int, best)}
    if values.element is not None and values.element.output == "output_qk":
        kept.add(values.element.index[-1])
    if values.row is not None:
        kept.add(values.row.place)

    def note(run: range) -> str:
        if keys.hidden[run[0]]:
            return _HIDDEN[keys.hidden[run[0]]]
        return f"{keys.probability[run.start : run.stop].sum():.3g} in all"

    if (d := _element_of_head(values)) >= 0:
        columns.append(_Column(f"value[{d}]", [*keys.value[:, d]]))
    if query.sink is not None:
        cells: dict[str, float | str] = {"key": "sink", "probability": query.sink_probability}
        of_sink = "logit" if "logit" in [column.head for column in columns] else "score"
        cells[of_sink] = query.sink
        columns = [_Column(c.head, [*c.cells, cells.get(c.head, "")]) for c in columns]
        styles.append("")
        kept.add(count)
    return _Grid("keys", columns, kept, styles, note, "probability")


def _element_of_head(values: Values) -> int:
    """The index in its head of the element that is shown; -1 if none of output is."""
    if values.query is None or values.element is None or values.element.output != "output":
        return -1
    return values.element.index[-1] % len(values.query.output)


def _or_nothing(number: int) -> str:
    """The number as text; empty if it is negative, which means that there is none."""
    return "" if number < 0 else str(number)


def _query(query: QueryValues) -> _Grid:
    columns = [*_rotation(query.query)]
    if len(columns) > 1:
        columns.append(_Column("used", [*query.query.rotated]))
    start, count = query.head * len(query.output), len(query.output)
    index = _Column("d", [*map(str, range(count))])
    title = _title("query", (query.batch, query.token, start), "d")
    return _Grid(title, [index, *columns], {*range(4), count - 2, count - 1}, [""] * count)


def _rotation(rotation: Rotation) -> Iterator[_Column]:
    yield _Column("given", [*rotation.given])
    if rotation.normed is not None:
        yield _Column("normed", [*rotation.normed])
    if rotation.cos is not None and rotation.sin is not None:
        yield _Column("cos", _known(rotation.cos))
        yield _Column("sin", _known(rotation.sin))


def _known(numbers: Float) -> list[float | str]:
    return ["" if np.isnan(x) else float(x) for x in numbers]


def _stored(
    head: StoredHead, rotation: Rotation | None, query: QueryValues | None, row: RowValues
) -> Iterator[_Column]:
    """The columns from an input to the codes that a quantised cache stores."""
    same = query is not None and query.position == row.position
    for column in [_Column("given", [*head.given])] if rotation is None else _rotation(rotation):
        if not (same and column.head in ("cos", "sin")):  # they are in the query's table
            yield column
    if head.code is not None:
        if rotation is not None and len([*_rotation(rotation)]) > 1:
            yield _Column("exact", [*head.exact])
        yield _Column("code", [*(head.code + 0.0)])  # without -0
        yield _Column("stands for", [*(head.stored + 0.0)])


def _origin(row: RowValues, rotation: Rotation | None) -> str:
    if row.new_token < 0:
        return f"copied from row {row.past_row} of the past"
    rotated = rotation is not None and row.position >= 0
    return f"new token {row.new_token}" + (f", position {row.position}" if rotated else "")


def _title(name: str, first: tuple[int, ...], index: str) -> str:
    """The name of a vector: ``output[0, 3, 48 + d]``."""
    *leading, start = first
    return f"{name}[{', '.join(map(str, (*leading, f'{start} + {index}' if start else index)))}]"


def _vector(
    values: Values, name: str, index: str, before: Iterable[_Column] = (), about: str = ""
) -> _Grid:
    """The table of a vector of an output: expected and returned values; ``before`` are columns."""
    vector, element, before = values.outputs[name], values.element, [*before]
    count = max([len(vector.expected), *(len(column.cells) for column in before)])
    # the number of elements of a head in one byte: 2 if packed; the last may be alone
    each = -(-count // len(vector.expected))
    there = [d // each for d in range(count)]
    expected, budget = vector.expected[there], vector.budget[there]
    got, share, known = vector.got[there], vector.share[there], vector.known[there]
    columns = [_Column(index, [*map(str, range(count))]), *before]
    undefined = np.isnan(budget)
    told = ["undefined" if no else x for x, no in zip(expected, undefined, strict=True)]
    columns.append(_Column("byte" if each > 1 else "expected", told))
    columns.append(_Column("budget", _known(budget), digits=3))
    if known.any():
        columns.append(_Column("got", [x if ok else "" for x, ok in zip(got, known, strict=True)]))
        if each > 1:  # the even element is in the low half of its byte
            byte = np.nan_to_num(got).clip(0, 255).astype(int)
            codes = (byte >> 4 * (np.arange(count) % each)) % 16 - 8
            texts = [str(code) if ok else "" for code, ok in zip(codes, known, strict=True)]
            columns.append(_Column("got code", texts))
        shares = zip(share, known & ~undefined, strict=True)
        columns.append(_Column("share", [x if ok else "" for x, ok in shares], digits=3))
    wrong = known & ~(share <= 1)
    shown = []
    if element is not None and element.index[:-1] == vector.first[:-1] and element.output == name:
        index_in_vector = element.index[-1] - vector.first[-1]
        shown = [d for d in range(count) if there[d] == index_in_vector]
        columns.append(_Column("", ["←" if d in shown else "" for d in range(count)]))
    worst = np.argsort(-np.where(known, share, 0.0), kind="stable")[:6]
    kept = {*range(4), count - 2, count - 1, *shown, *(int(d) for d in worst if known[d])}

    def note(run: range) -> str:
        part = share[run.start : run.stop][known[run.start : run.stop]]
        return f"≤ {part.max():.3g}" if part.size else ""

    title = _title(name, vector.first, index if each == 1 else f"{index} // {each}")
    styles = ["red" if bad else "" for bad in wrong]
    return _Grid(f"{title}  {about}".rstrip(), columns, kept, styles, note, "share")


def _print(console: Console, grid: _Grid, everything: bool) -> None:
    """Print the rows with as many digits as fit."""
    count = len(grid.columns[0].cells)
    kept = set(range(count)) if everything or count <= _FEW else {*grid.kept} & {*range(count)}
    for digits in _DIGITS:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in grid.columns:
            number = any(isinstance(cell, float) for cell in column.cells)
            table.add_column(column.head, justify="right" if number else "left", no_wrap=True)
        for run in _runs(count, kept):
            style = grid.styles[run[0]] if len(run) == 1 else "dim"
            table.add_row(*map(Text, _cells(grid, run, digits)), style=style)
        if fits(console, table):
            break
    print_table(console, table)


def _cells(grid: _Grid, run: range, digits: int) -> list[str]:
    """The texts of a row, or of a run of rows that are left out."""
    if len(run) == 1:
        return [column.cell(run[0], digits) for column in grid.columns]
    notes = {grid.columns[0].head: f"… {len(run)}", grid.noted: grid.note(run)}
    return [notes.get(column.head, "") for column in grid.columns]


def _runs(count: int, kept: set[int]) -> Iterator[range]:
    """Each kept row alone, and the rows between them as runs; a run of one row is kept."""
    start = 0
    for row in [*sorted(kept), count]:
        if row > start:
            yield range(start, row)
        if row < count:
            yield range(row, row + 1)
        start = row + 1
