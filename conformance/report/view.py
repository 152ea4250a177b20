"""Results → what the page shows: themes, groups, rows and cells, and the details behind a cell.

Nothing here knows HTML. All text that comes out of here went through `text.clean`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from conformance.report.text import clean, deep_clean
from conformance.results import (
    VERDICTS,
    CaseRecord,
    Error,
    Joined,
    ResultRecord,
    Run,
    Target,
    Verdict,
    worst,
)

MEANING: Mapping[Verdict, str] = {
    "crash": "the process died of a signal, an abort or a panic",
    "timeout": "no answer within the time limit; the process was killed",
    "wrong": "it ran, and its values, shape or dtype are not what the contract demands",
    "accepted": "it ran a call that it must refuse",
    "fallback": "it ran, but on another execution provider than the one asked for",
    "unsupported": "it refused cleanly, with a message, a call that it should compute",
    "pass": "as the contract demands",
    "skip": "could not be tried here",
}

Mark = Literal["unexpected", "known", ""]


@dataclass(frozen=True)
class Cell:
    """A case on a target."""

    verdict: Verdict
    mark: Mark
    vague: bool


@dataclass(frozen=True)
class Tally:
    """All cases of a group on a target: the worst verdict, and of how many cases."""

    verdict: Verdict
    number: int
    total: int
    counts: tuple[tuple[Verdict, int, int], ...]
    """Verdict, how many of it, and how many before those."""
    unexpected: int
    known: int
    vague: int
    row: int
    """The row to open: an unexpected one if there are any, and of those the worst."""


@dataclass(frozen=True)
class Axis:
    """An axis of a row; ``width`` in characters is the same for all rows of the group."""

    name: str
    label: str
    width: int


@dataclass(frozen=True)
class Row:
    """A case. ``number`` is its place in the details."""

    number: int
    id: str
    axes: tuple[Axis, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Group:
    """An entry of a case file: one case, or those that its axes multiply out to."""

    id: str
    name: str
    why: str
    rows: tuple[Row, ...]
    tallies: tuple[Tally | None, ...]


@dataclass(frozen=True)
class Theme:
    """A case file and the question it answers."""

    name: str
    question: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Head:
    """A column's target, and its results by verdict."""

    label: str
    ep: str
    version: str
    """Empty if the label has it already."""
    adapter: str
    device: str
    unavailable: str
    counts: Mapping[Verdict, int]
    total: int
    unexpected: int
    known: int
    refused: int
    """So many of the known are clean refusals, and no defects."""


@dataclass(frozen=True)
class Finding:
    """Marked results of one verdict, of one group on one target; ``row`` is the first."""

    row: int
    column: int
    id: str
    """Of the case, or of the group if there are several."""
    first: str
    """Id of the first case."""
    number: int
    label: str
    verdict: Verdict
    mark: Mark
    reason: str
    """Why it is so; of a known defect, what its expectation says."""


@dataclass(frozen=True)
class Trouble:
    """Why the report is to be read with care. ``fix``: the command that mends it, or nothing."""

    where: str
    sentence: str
    fix: str


@dataclass(frozen=True)
class Page:
    """All that the template needs."""

    heads: tuple[Head, ...]
    themes: tuple[Theme, ...]
    unexpected: tuple[Finding, ...]
    known: tuple[Finding, ...]
    troubles: tuple[Trouble, ...]
    runs: tuple[Mapping[str, Any], ...]
    cases: int
    results: int


def page(joined: Joined) -> tuple[Page, dict[str, Any]]:
    """What the page shows at once, and the details behind its cells, as JSON.

    The details are ``{"columns": […], "devices": […], "cases": […], "pool": […], "error_fields":
    […]}``: a case has its results in the order of the columns, as there are devices, and whatever
    many of them share stands once, in the pool.
    """
    cases = _all_cases(joined)
    labels = [column.label for column in joined.columns]
    grid = {id: [joined.results.get((id, label)) for label in labels] for id in cases}
    numbers = {id: number for number, id in enumerate(cases)}
    themes = tuple(_themes(cases, grid, numbers))
    heads = tuple(
        _head(clean(column.label), column.target, [row[n] for row in grid.values()])
        for n, column in enumerate(joined.columns)
    )
    shown = Page(
        heads=heads,
        themes=themes,
        unexpected=tuple(_findings("unexpected", themes, cases, grid, heads)),
        known=tuple(_findings("known", themes, cases, grid, heads)),
        troubles=tuple(_troubles(joined)),
        runs=tuple(_run(run) for run in joined.runs),
        cases=len(cases),
        results=sum(head.total for head in heads),
    )
    return shown, _details(joined, cases, grid, [head.device for head in heads])


def _all_cases(joined: Joined) -> dict[str, CaseRecord | None]:
    """Every case with a description or a result; None for one that has only results."""
    cases: dict[str, CaseRecord | None] = dict(joined.cases)
    for id, _ in joined.results:
        cases.setdefault(id, None)
    return cases


def _themes(
    cases: Mapping[str, CaseRecord | None],
    grid: Mapping[str, Sequence[ResultRecord | None]],
    numbers: Mapping[str, int],
) -> Iterator[Theme]:
    themes: dict[str, dict[str, list[str]]] = {}
    for id, case in cases.items():
        theme, name = (case.theme, case.name) if case else ("", id)
        themes.setdefault(theme, {}).setdefault(name, []).append(id)
    for theme, groups in themes.items():
        first = next((cases[ids[0]] for ids in groups.values()), None)
        yield Theme(
            name=clean(theme),
            question=clean(first.question) if first else "Results for cases not described here",
            groups=tuple(
                _group(theme, name, [(id, cases[id]) for id in ids], grid, numbers)
                for name, ids in groups.items()
            ),
        )


def _group(
    theme: str,
    name: str,
    members: Sequence[tuple[str, CaseRecord | None]],
    grid: Mapping[str, Sequence[ResultRecord | None]],
    numbers: Mapping[str, int],
) -> Group:
    described = [case for _, case in members if case]
    widths: dict[str, int] = {}
    for case in described:
        for axis, label in case.axes.items():
            # Names break at underscores, labels do not break.
            longest = max(len(part) for part in [*axis.split("_"), label])
            widths[axis] = min(max(widths.get(axis, 3), longest), 24)
    rows = tuple(
        Row(
            number=numbers[id],
            id=clean(id),
            axes=tuple(
                Axis(clean(axis), clean(label), widths[axis]) for axis, label in case.axes.items()
            )
            if case
            else (),
            cells=tuple(_cell(result) if result else None for result in grid[id]),
        )
        for id, case in members
    )
    columns = zip(*(grid[id] for id, _ in members), strict=True)
    whys = {case.why for case in described}
    return Group(
        id=clean(f"{theme}/{name}" if theme else name),
        name=clean(name),
        why=clean(whys.pop()) if len(whys) == 1 else "",
        rows=rows,
        tallies=tuple(_tally(column, [row.number for row in rows]) for column in columns),
    )


def _cell(result: ResultRecord) -> Cell:
    return Cell(result.verdict, _mark(result), result.vague)


def _mark(result: ResultRecord) -> Mark:
    if result.unexpected:
        return "unexpected"
    return "known" if result.expectation is not None else ""


def _tally(results: Iterable[ResultRecord | None], numbers: Sequence[int]) -> Tally | None:
    there = [(n, result) for n, result in zip(numbers, results, strict=True) if result]
    if not there:
        return None
    counts = Counter(result.verdict for _, result in there)
    marks = Counter(_mark(result) for _, result in there)
    row, _ = min(there, key=lambda x: (not x[1].unexpected, VERDICTS.index(x[1].verdict)))
    verdict = worst(counts)
    parts = [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]
    ends = accumulate(n for _, n in parts)
    return Tally(
        verdict=verdict,
        number=counts[verdict],
        total=len(there),
        counts=tuple((verdict, n, end - n) for (verdict, n), end in zip(parts, ends, strict=True)),
        unexpected=marks["unexpected"],
        known=marks["known"],
        vague=sum(result.vague for _, result in there),
        row=row,
    )


def _findings(
    mark: Mark,
    themes: Iterable[Theme],
    cases: Iterable[str],
    grid: Mapping[str, Sequence[ResultRecord | None]],
    heads: Sequence[Head],
) -> list[Finding]:
    ids = list(cases)
    findings = []
    for group in (group for theme in themes for group in theme.groups):
        alike: dict[tuple[Verdict, int, str | None], list[Row]] = {}
        for row in group.rows:
            for column, cell in enumerate(row.cells):
                if cell and cell.mark == mark:
                    why = _why(grid[ids[row.number]][column], mark)
                    alike.setdefault((cell.verdict, column, why), []).append(row)
        for (verdict, column, why), rows in alike.items():
            first = grid[ids[rows[0].number]][column]
            assert first is not None  # it has a cell
            findings.append(
                Finding(
                    row=rows[0].number,
                    column=column,
                    id=rows[0].id if len(rows) == 1 else group.id,
                    first=rows[0].id,
                    number=len(rows),
                    label=heads[column].label,
                    verdict=verdict,
                    mark=mark,
                    reason=clean(why or first.reason, 400),
                )
            )
    return sorted(findings, key=lambda finding: VERDICTS.index(finding.verdict))


def _why(result: ResultRecord | None, mark: Mark) -> str | None:
    """What is known of an expected result: several causes in a group are several findings."""
    known = result.expectation if result and mark == "known" else None
    return known.why if known else None


def _head(label: str, target: Target, results: Sequence[ResultRecord | None]) -> Head:
    about = target.describe
    there = [result for result in results if result]
    counts = Counter(result.verdict for result in there)
    return Head(
        label=label,
        ep=clean(target.ep),
        version=clean(about.version) if about and about.version not in label else "",
        adapter=clean(about.adapter or "") if about else "",
        device=clean(about.device or "") if about else "",
        unavailable=clean(target.unavailable or ""),
        counts={verdict: counts[verdict] for verdict in VERDICTS},
        total=len(there),
        unexpected=sum(_mark(result) == "unexpected" for result in there),
        known=sum(_mark(result) == "known" for result in there),
        refused=sum(_mark(r) == "known" and r.verdict == "unsupported" for r in there),
    )


def _troubles(joined: Joined) -> Iterator[Trouble]:
    for problem in joined.problems:
        yield Trouble("", clean(problem), "")
    for column in joined.columns:
        if column.target.unavailable is not None:
            reason, fix = column.target.unavailable, column.target.fix or ""
            yield Trouble(clean(column.label), f"Not tried: {clean(reason)}", clean(fix))
    for label, record in joined.infrastructure:
        where = f"{label}, {record.case}" if record.case else label
        yield Trouble(clean(where), clean(record.message, 2_000), clean(record.fix or ""))


def _run(run: Run) -> dict[str, Any]:
    """Where the numbers come from, for the foot of the page."""
    header = deep_clean(run.header.model_dump(mode="json"))
    footer = run.footer and deep_clean(run.footer.model_dump(mode="json"))
    return {"file": clean(str(run.path)), "header": header, "footer": footer}


class _Pool:
    """Values by number, each kept once."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: object) -> int:
        key = json.dumps(value)
        number = self._numbers.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


# What cases and results have in common with many others.
_POOLED_CASE = ("file", "why", "tags", "links", "contract", "relation")
_POOLED_RESULT = (
    "message", "reason", "stderr", "expectation", "placement", "errors", "relation",
)  # fmt: skip
ERROR_FIELDS = (
    "output",
    "step",
    "index",
    "got",
    "want",
    "absolute",
    "relative",
    "budget",
    "share",
    "needed",
    "compared",
    "undefined",
)


def _details(
    joined: Joined,
    cases: Mapping[str, CaseRecord | None],
    grid: Mapping[str, Sequence[ResultRecord | None]],
    devices: Sequence[str],
) -> dict[str, Any]:
    pool = _Pool()
    return {
        "columns": [clean(column.label) for column in joined.columns],
        "devices": list(devices),
        "cases": [
            _case_details(id, case, pool)
            | {"results": [result and _result_details(result, pool) for result in grid[id]]}
            for id, case in cases.items()
        ],
        "pool": pool.values,
        "error_fields": ERROR_FIELDS,
    }


def _case_details(id: str, case: CaseRecord | None, pool: _Pool) -> dict[str, Any]:
    if case is None:
        return {"id": clean(id)}
    wanted = {"id", "call", *_POOLED_CASE}
    details: Any = deep_clean(case.model_dump(mode="json", include=wanted))
    for field in _POOLED_CASE:
        details[field] = pool.add(details[field])
    call = details["call"]
    for side in ("inputs", "outputs"):
        call[side] = [
            pool.add({field: said for field, said in port.items() if said is not None})
            for port in call[side]
        ]
    details["call"] = pool.add(call)
    return details  # type: ignore[no-any-return]


def _result_details(result: ResultRecord, pool: _Pool) -> dict[str, Any]:
    wanted = _told(result.model_dump(mode="json", exclude={"kind", "case", "target", "errors"}))
    details: Any = deep_clean(wanted)
    if result.errors:
        details["errors"] = [_error_details(error) for error in result.errors]
    for field in ("share", "ms"):
        if field in details:
            details[field] = _short(details[field])
    for field in _POOLED_RESULT:
        if field in details:
            details[field] = pool.add(details[field])
    return details  # type: ignore[no-any-return]


def _error_details(error: Error) -> list[Any]:
    """The values of `ERROR_FIELDS`: many passes have many of them, so their names stand once."""
    fields: Any = deep_clean(error.model_dump(mode="json", include=set(ERROR_FIELDS)))
    digits = {"got": 17, "want": 17}
    return [_short(fields[name], digits.get(name, 4)) for name in ERROR_FIELDS]


def _short(value: Any, digits: int = 4) -> Any:
    """A JSON value whose numbers have no more than so many digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: _short(number, digits) for name, number in value.items()}
    return value


def _told(value: Mapping[str, Any]) -> dict[str, Any]:
    """``value`` without the fields that say nothing."""
    silent = {"unexpected", "vague"}
    return {k: v for k, v in value.items() if v or (v is not None and v == 0 and k not in silent)}
