"""The output of ``gqa show --values``: the computation of one query, from scores to output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.base.text import clean
from conformance.case.case import Case
from conformance.cli.console import fits, print_table
from conformance.oracle import query_values as oracle
from conformance.oracle.cache import present_places
from conformance.oracle.read_call import OracleCall
from conformance.oracle.tolerance import CONSTANTS, shares
from conformance.report.repro.checks import is_of_the_variant
from conformance.report.repro.one_result import OneResult, class_of
from conformance.report.shown_query import Element, ShownQuery
from conformance.results.verdicts import verdict_word

#: The largest number of rows that are all shown; of a longer table, the rows that matter.
_FEW: Final = 24
#: Numbers of significant digits; the first with which a table fits into the terminal is taken.
_DIGITS: Final = (9, 6, 4, 3)
#: The columns whose numbers have three digits always.
_ROUGH: Final = ("budget", "share")
_ROTATION: Final = ("cos", "sin")

_HIDDEN: Final[dict[oracle.Hidden, str]] = {
    "no token": "0, beyond the length",
    "padding": "0, query is padding",
    "causal": "0, later than the query",
    "window": "0, before the window",
    "bias": "0, bias is -inf",
}
#: The cells of a table, numbers or texts, by the heads of its columns.
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Grid:
    """A table with all its rows; ``kept`` are those that are shown of a long table."""

    title: str
    columns: Columns
    kept: Iterable[int]


def draw_values(
    console: Console,
    case: Case,
    values: ShownQuery,
    one: OneResult | None,
    everything: bool = False,
) -> None:
    """Print the values of a query; long tables in full only if ``everything`` is set."""
    console.print(Text(clean(case.id), style="bold"), soft_wrap=True)
    for label, line in _head(case, values, one):
        console.print(Text.assemble((f"{label:<10}", "dim"), "  ", line), soft_wrap=True)
    for grid in grids(values, one):
        console.print()
        console.print(Text(grid.title, style="bold"))
        _print(console, grid, everything)


def _head(case: Case, values: ShownQuery, one: OneResult | None) -> Iterator[tuple[str, str]]:
    if one is not None:
        yield "on", f"{clean(one.result.target)}: {verdict_word(one.result.verdict)}"
        yield "reason", clean(one.result.reason)
        if is_of_the_variant(one.result):
            yield "", "The fault is in the variant; these are the values of the case itself."
        elif one.outputs is None and one.result.outcome == "ran":
            yield "", "A results file has one element of each output; without --results, --ep"
            yield "", "runs the case and shows all of them."
    if case.contract.demands == "rejects":
        yield "contract", "the call must be refused; these values are what it would compute"
    if (element := values.element) is not None:
        yield "element", str(element)
    if len(case.steps) > 1:
        yield "step", f"{values.step} of 0 … {len(case.steps) - 1}"
    work, batch, head, token = values.work, values.batch, values.head, values.token
    if token is None:
        yield "query", "the call has no query token"
        return
    call, place = work.call, int(work.call.query_starts[batch]) + token
    heads = f"head {head} (key/value head {head // work.group})"
    yield "query", f"batch {batch}, {heads}, token {token}"
    position = oracle.query_position(call, batch, token)
    yield "place", f"{place}" + (f", rotated by position {position}" if position >= 0 else "")
    past, length = call.past_lengths[batch], call.lengths[batch]
    yield "lengths", f"{past} past, {length} after the call, {call.total} keys"
    yield "logit", _formula(call, head)
    if undefined := oracle.why_undefined(work, batch, head, token):
        yield "undefined", f"{undefined}: these elements of output are not compared"
    if element is not None and element.output.startswith("present") and values.row is None:
        yield "row", f"{element.index[2]} of the present holds no token, so it is undefined"


def _formula(call: OracleCall, head: int) -> str:
    """The formula of a logit, with the numbers of the call."""
    text = f"{call.scale:.9g} · q·k"
    if call.softcap:
        text = f"{call.softcap:.9g} · tanh({text} / {call.softcap:.9g})"
    text += " + bias" if call.bias is not None else ""
    text += "; causal" if call.causal else "; not causal"
    text += f", window of {call.window}" if call.window is not None else ""
    return text + (f", sink {call.sink[head]:.9g}" if call.sink is not None else "")


def grids(values: ShownQuery, one: OneResult | None = None) -> Iterator[Grid]:
    """The tables of a query and of the row of the presents, beside a result."""
    work, batch, head, token = values.work, values.batch, values.head, values.token
    call, size, kv_head = work.call, work.call.head_size, head // work.group
    if token is not None:
        yield _keys(values, token)
        yield from _vector(values, one, Element("output_qk", (batch, head, token, 0)), {})
        yield from _vector(values, one, Element("output", (batch, token, head * size)), {})
        columns = _columns(oracle.query_steps(call, batch, head, token))
        if len(columns) > 1:
            attention, row = work.block_of(token)
            columns["used"] = [*attention.query[batch, kv_head, head % work.group, row]]
        title = _title("query", (batch, token, head * size), "d")
        kept = {*range(4), size - 2, size - 1}
        yield Grid(title, {"d": [*map(str, range(size))], **columns}, kept)
    if values.row is not None:
        place = present_places(call)[batch, values.row]
        past_row, new, position = (int(of[place]) for of in oracle.origins(work, batch))
        about = f"new token {new}" if new >= 0 else f"copied from row {past_row} of the past"
        key, value = map(_columns, oracle.stored_steps(work, batch, kv_head, place))
        if token is not None and oracle.query_position(call, batch, token) == position:
            key = {name: key[name] for name in key if name not in _ROTATION}  # they are above
        first = (batch, kv_head, values.row, 0)
        rotated = f", position {position}" if position >= 0 else ""
        yield from _vector(values, one, Element("present_key", first), key, about + rotated)
        yield from _vector(values, one, Element("present_value", first), value, about)


def _columns(steps: oracle.Steps) -> Columns:
    """The columns of the steps of a head; cos and sin are empty where it is not rotated."""
    return {
        name: _unless(np.isnan(cells) & (name in _ROTATION), cells) for name, cells in steps.items()
    }


def _unless(blank: Iterable[bool], cells: Iterable[Any], text: str = "") -> list[Any]:
    """The cells, with a text in place of those that are blank."""
    return [text if no else cell for no, cell in zip(blank, cells, strict=True)]


def _keys(values: ShownQuery, token: int) -> Grid:
    work, batch, head, element = values.work, values.batch, values.head, values.element
    call, count = work.call, work.call.total
    a, row_of_block = work.block_of(token)
    at = batch, head // work.group, head % work.group, row_of_block
    past_row, new_token, position = oracle.origins(work, batch)
    present_row, probability = oracle.present_rows(call, batch), a.probabilities[at]
    origin = [
        f"past {row}" if row >= 0 else f"new {new}" if new >= 0 else ""
        for row, new in zip(past_row, new_token, strict=True)
    ]
    columns: Columns = {"key": [*map(str, range(count))], "from": origin}
    if values.row is not None:
        columns["row"] = _unless(present_row < 0, map(str, present_row))
    if oracle.query_position(call, batch, token) >= 0:
        columns["position"] = _unless(position < 0, map(str, position))
    columns["score"] = [*a.scores[at]]
    if call.softcap:
        columns["capped"] = [*a.capped[at]]
    if call.bias is not None:
        of_batch, of_head = min(batch, len(call.bias) - 1), min(head, call.bias.shape[1] - 1)
        columns["bias"] = [*call.bias[of_batch, of_head, token]]
    if call.softcap or call.bias is not None:
        columns["logit"] = [*a.logits[at]]
    hidden = oracle.why_hidden(call, batch, token, a.logits[at])
    last = [_HIDDEN.get(why) or p for why, p in zip(hidden, probability, strict=True)]
    columns["probability"] = last
    changes = [j for j in range(1, count) if hidden[j] != hidden[j - 1]]
    best = np.argsort(-probability, kind="stable")[:3]
    kept = {0, 1, count - 2, count - 1, call.query_starts[batch] + token, *best}
    kept |= {*changes, *(j - 1 for j in changes)}
    if values.row is not None:
        kept.add(present_places(call)[batch, values.row])
    if element is not None and element.output == "output_qk":
        kept.add(element.index[-1])
    if element is not None and element.output == "output":
        d = element.index[-1] % call.head_size
        columns[f"value[{d}]"] = [*a.value[batch, head // work.group, :, d]]
    if call.sink is not None:
        of_sink = "logit" if "logit" in columns else "score"
        cells = {"key": "sink", of_sink: call.sink[head], "probability": a.sink_probability[at]}
        columns = {name: [*column, cells.get(name, "")] for name, column in columns.items()}
        kept.add(count)
    return Grid("keys", columns, kept)


def _title(name: str, first: tuple[int, ...], index: str) -> str:
    """The name of a vector: ``output[0, 3, 48 + d]``."""
    *leading, start = first
    return f"{name}[{', '.join(map(str, (*leading, f'{start} + {index}' if start else index)))}]"


def _vector(
    values: ShownQuery, one: OneResult | None, first: Element, before: Columns, about: str = ""
) -> Iterator[Grid]:
    """The table of an output from an element on, if it is connected: expected and returned values.

    ``before`` are the columns of the steps that lead to it.
    """
    name, (*leading, start) = first.output, first.index
    if name not in values.expected:
        return
    expected, element = values.expected[name], values.element
    index = "key" if name == "output_qk" else "d"
    size = values.work.call.head_size if name == "output" else expected.shape[-1]
    count = max(size, *map(len, before.values()), 0)
    # the number of elements of a head in one byte: 2 if packed; the last may be alone
    each = -(-count // size)
    last = start + np.arange(count) // each
    value, unit = expected.value[(*leading, last)], expected.unit[(*leading, last)]
    got, known = np.zeros(count), np.zeros(count, bool)
    if one is not None:
        returned = one.returned(values.step, expected)[(*leading, last)]
        got, known = returned.filled(0.0), ~np.ma.getmaskarray(returned)
    share, undefined = shares(got, value, unit, class_of(one)), np.isnan(unit)
    columns = {index: [*map(str, range(count))], **before}
    columns["byte" if each > 1 else "expected"] = _unless(undefined, value, "undefined")
    columns["budget"] = _unless(undefined, CONSTANTS[class_of(one)] * unit)
    if known.any():
        columns["got"] = _unless(~known, got)
        if each > 1:  # the even element is in the low half of its byte
            byte = np.nan_to_num(got).clip(0, 255).astype(int)
            codes = (byte >> 4 * (np.arange(count) % each)) % 16 - 8
            columns["got code"] = _unless(~known, map(str, codes))
        columns["share"] = _unless(~known | undefined, share)
    worst = np.argsort(-np.where(known, share, 0.0), kind="stable")[:6]
    kept = {*range(4), count - 2, count - 1, *worst[known[worst]]}
    if element is not None and (element.output, [*element.index[:-1]]) == (name, leading):
        columns[""] = _unless(last != element.index[-1], ["←"] * count)
        kept |= {*np.flatnonzero(last == element.index[-1])}
    title = _title(name, first.index, index if each == 1 else f"{index} // {each}")
    yield Grid(f"{title}  {about}".rstrip(), columns, kept)


def _print(console: Console, grid: Grid, everything: bool) -> None:
    """Print the rows with as many digits as fit."""
    count = len(next(iter(grid.columns.values())))
    kept = set(range(count)) if everything or count <= _FEW else {*grid.kept} & {*range(count)}
    bounds = sorted({0, count, *kept, *(row + 1 for row in kept)})  # the rows between stay together
    for digits in _DIGITS:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for head, cells in grid.columns.items():
            number = any(isinstance(cell, float) for cell in cells)
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for start, end in pairwise(bounds):
            row = {head: cells[start:end] for head, cells in grid.columns.items()}
            texts = [Text(_cell(head, cells, digits)) for head, cells in row.items()]
            table.add_row(*texts, style=_style(row) if end == start + 1 else "dim")
        if fits(console, table):
            break
    print_table(console, table)


def _cell(head: str, cells: Sequence[Any], digits: int) -> str:
    """The text of a cell, or of the cells of a column in rows that are left out."""
    numbers = [cell for cell in cells if isinstance(cell, float)]
    if len(cells) == 1:
        return f"{numbers[0]:.{3 if head in _ROUGH else digits}g}" if numbers else cells[0]
    if head == "probability":  # rows that are left out are hidden for one reason, if they are
        return f"{np.sum(numbers):.3g} in all" if numbers else cells[0]
    if head == "share":
        return f"≤ {max(numbers):.3g}" if numbers else ""
    return f"… {len(cells)}" if head in ("key", "d") else ""


def _style(row: Mapping[str, Sequence[Any]]) -> str:
    """Hidden keys are dim; elements beyond their budget are red."""
    (share,), (probability,) = row.get("share", [""]), row.get("probability", [0.0])
    if isinstance(share, float) and share > 1:
        return "red"
    return "dim" if isinstance(probability, str) else ""
