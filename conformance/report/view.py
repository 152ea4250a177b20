"""The content of the HTML page: the summary, and all details of each cell.

This module does not depend on HTML. All text that it returns has passed `text.clean`, except causes
and what the template takes from the table; the template cleans these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from pydantic_core import to_jsonable_python

from conformance.base.findings import PREFIX
from conformance.base.paths import data_path
from conformance.base.text import clean, deep_clean
from conformance.case.contract import BASES
from conformance.diagnosis.explanation import explanations_of
from conformance.report.encoding import EncodedPlace, Encoder, Repeated
from conformance.report.error_picture import picture
from conformance.report.history import sentence
from conformance.report.repro.issue import issue_parts
from conformance.report.repro.reproduction import no_program, program_of, template_text
from conformance.results.causes import Cause, causes, ended_by, symptom
from conformance.results.compare import Change, RunDifferences
from conformance.results.instability import is_unstable
from conformance.results.records import (
    CaseRecord,
    ExpectationRecord,
    OutputErrorRecord,
    ResultRecord,
    TargetRecord,
)
from conformance.results.score import FEW_TARGETS, Score, Scores
from conformance.results.shareable import shared_command
from conformance.results.table import Cell, Column, Table
from conformance.results.timeline import (
    CHANGE_KINDS,
    CaseHistory,
    History,
    Release,
    histories,
    older_labels,
)
from conformance.results.verdicts import (
    VERDICTS,
    Verdict,
    colour_of,
    drawing_of,
    verdict_word,
)
from conformance.targets.catalogue import script_of

#: The theme of cases without a description.
UNDESCRIBED: Final = "undescribed"


@dataclass(frozen=True)
class Head:
    """A column: its target, and the numbers of its results."""

    label: str
    series: str
    """The name of its series of releases; empty if the target has one release."""
    newest: bool
    """Whether the table shows it by default: it is the newest release tried of its target."""
    target: TargetRecord
    counts: Mapping[Verdict, int]
    scores: Scores
    shared: Score | None
    """For a column that the table shows by default: the score over the calls that all of these
    tried."""
    total: int
    silent: int
    """The number of silent failures."""
    unexpected: int
    known: int

    @property
    def filter(self) -> str:
        """Its name in the filter ``target``: that of the series for its newest release."""
        return self.series if self.series and self.newest else self.label


@dataclass(frozen=True)
class Page:
    """The data for the template."""

    heads: tuple[Head, ...]
    histories: Sequence[History]
    """The histories of targets that were tried in several releases."""
    themes: Mapping[str, Mapping[str, str]]
    """The name and the question of each theme that has a score, profiles first."""
    generated: Collection[str]
    """The themes of these that are generated."""
    unexpected: Sequence[Cause[Cell]]
    shared: Sequence[Sequence[str]]
    """What unexpected results share: a heading and sentences for each kind."""
    known: Sequence[Cause[Cell]]
    skipped: Mapping[tuple[str, str], int]
    """The number of cases that were not tried, by target and reason."""
    past: Collection[str]
    """The labels of older releases whose instability is known: nobody has to act."""
    runs: Sequence[object]
    """The path, header and footer of each run."""
    cases: int
    results: int
    findings: tuple[str, ...]
    """The findings to which expectations link: ``docs/findings/….md``."""
    filters: Mapping[str, Collection[str]]
    """The values of the filters theme, tag, dtype, basis and history that any case has."""
    wrong: Collection[tuple[str, ...]]
    """The wrong outputs of the results, each combination once."""

    def head_of(self, release: Release) -> Head:
        """The head of a release's column."""
        return next(head for head in self.heads if head.label == clean(release.label))

    @property
    def newest(self) -> tuple[Head, ...]:
        """The columns that the table shows by default."""
        return tuple(head for head in self.heads if head.newest)

    @property
    def many(self) -> bool:
        """Whether it begins with the themes, since its targets are many."""
        return len(self.newest) > FEW_TARGETS


def page(
    table: Table, changes: RunDifferences | None = None
) -> tuple[Page, dict[str, Any], dict[str, Any]]:
    """The summary, the cells of the table, and the bug reports; the last two are JSON values.

    The cells are ``{"verdicts": […], "bases": {…}, "colours": […], "targets": […], "series": […],
    "themes": […], "groups": […], "cases": […]}``, in the form of `report.encoding`. A case has its
    history in each series, the index of its first bug report, and its results in the order of the
    targets, null if there is none; the ``look`` of a result has the fields that decide how it is
    shown.

    The reports are ``{"reports": [[head, data, issue, fence], …], "templates": {…}}``; head,
    template and data together are the program. Reports are separate because they are most of the
    text, and few of them are read.
    """
    cases = _in_order(table)
    all_changes = changes.all() if changes else ()
    changed = {(each.case, each.target): each for each in all_changes if each.after}
    release_histories = histories(table)
    series, older = _places(table, release_histories), older_labels(release_histories)
    newest = [column.label for column in table.columns if column.label not in older]
    shared = table.shared_scores(newest)
    heads = tuple(
        _head(
            table,
            column,
            shared.get(column.label),
            next((one["label"] for one in series if n in one["columns"]), ""),
            column.label in newest,
        )
        for n, column in enumerate(table.columns)
    )
    marked = [cell for cell in table.cells if cell.mark]
    listed = causes(marked, lambda cell: cell.result, lambda cell: cell.label)
    known = [cause for cause in listed if cause.example.known]
    links = {clean(cause.known.link) for cause in known}
    encoder = Encoder()
    rows, themes = _cases(table, cases, release_histories, encoder), _themes(cases)
    scored = [theme for theme in themes if heads and theme in heads[0].scores.themes]
    profiles_first = sorted(scored, key=lambda theme: theme not in table.profiles)
    shown = Page(
        heads=heads,
        histories=release_histories,
        themes={theme: themes[theme] for theme in profiles_first},
        generated=_generated() & set(themes),
        unexpected=[cause for cause in listed if cause.example.unexpected],
        shared=[one.lines for one in explanations_of(table) if one.lines],
        known=known,
        skipped=_skipped(table),
        past={label for label in older if not is_unstable(table.instability.get(label, ()))},
        runs=[
            deep_clean(
                to_jsonable_python({"file": run.path, "header": run.header, "footer": run.footer})
            )
            for run in table.runs
        ],
        cases=len(cases),
        results=sum(head.total for head in heads),
        findings=tuple(sorted(link for link in links if link.startswith(PREFIX))),
        filters=_filters(rows.values(), cases),
        wrong={tuple(cell.result.wrong_outputs) for cell in table.cells},
    )
    return shown, *_cells(table, heads, cases, rows, changed, series, encoder)


#: The themes that come first: real models, calls of exported models, and layers that share a cache.
_FIRST: Final = ("models", "exports", "omitted_kv", "shared_kv", "decode_shapes", "omitted_present")


def _in_order(table: Table) -> dict[str, CaseRecord | None]:
    """The cases in the order of the page: those of `_FIRST` first, generated ones last."""
    generated = _generated()

    def place(id: str) -> int:
        theme = case.theme if (case := table.cases.get(id)) else ""
        return _FIRST.index(theme) if theme in _FIRST else len(_FIRST) + (theme in generated)

    return {id: table.cases.get(id) for id in sorted(table.rows, key=place)}


def _generated() -> set[str]:
    """The themes that the covering array generates."""
    return {file.stem for file in (data_path("cases") / "covering").glob("*.yaml")}


def _places(table: Table, release_histories: Sequence[History]) -> list[dict[str, Any]]:
    """The series of the table with the indices of their columns, the oldest release first."""
    number = {column.label: n for n, column in enumerate(table.columns)}
    return [
        {
            "label": clean(one.series.name),
            "columns": [number[c.label] for r in one.series.releases for c in r.columns],
            "versions": [clean(r.version) for r in one.series.releases for _ in r.columns],
            "newest": number[one.series.tried[-1].label],
        }
        for one in release_histories
    ]


def entries(cause: Cause[Cell]) -> Sequence[tuple[str, int]]:
    """The entries of the cases of a cause with the number of cases, the largest number first."""
    return Counter(
        cell.case.entry if cell.case else cell.result.case for cell in cause.members
    ).most_common()


def _skipped(table: Table) -> dict[tuple[str, str], int]:
    reasons = Counter(
        (clean(cell.label), clean(cell.result.reason, 400))
        for cell in table.cells
        if not cell.tried
    )
    return dict(reasons.most_common())


def _head(table: Table, column: Column, shared: Score | None, series: str, newest: bool) -> Head:
    cells = table.column_cells(column.label)
    counts, marks = Counter(cell.verdict for cell in cells), Counter(cell.mark for cell in cells)
    return Head(
        label=clean(column.label),
        series=series,
        newest=newest,
        target=column.target,
        counts={verdict: counts[verdict] for verdict in VERDICTS},
        scores=table.scores([column.label]),
        shared=shared,
        total=len(cells),
        silent=sum(cell.silent for cell in cells),
        unexpected=marks["unexpected"],
        known=marks["known"],
    )


def _cases(
    table: Table,
    cases: Mapping[str, CaseRecord | None],
    release_histories: Sequence[History],
    encoder: Encoder,
) -> dict[str, dict[str, Any]]:
    """The row of each case, without its results; inputs and outputs are encoded already."""
    entries = dict.fromkeys(_entry(id, case) for id, case in cases.items())
    groups = {entry: number for number, entry in enumerate(entries)}
    rows: dict[str, dict[str, Any]] = {}
    ports: dict[object, EncodedPlace] = {}
    contracts: dict[str, Repeated] = {}
    for id, case in cases.items():
        rows[id] = {
            **_case_details(id, case, encoder, ports, contracts),
            "group": groups[_entry(id, case)],
        }
        if release_histories:
            rows[id]["history"] = [
                _history_details(one.cases[id], one.series.name) for one in release_histories
            ]
    return rows


def _filters(
    rows: Iterable[Mapping[str, Any]], cases: Mapping[str, CaseRecord | None]
) -> dict[str, set[str]]:
    rows = list(rows)
    return {
        "theme": {clean(_entry(id, case)[0]) or UNDESCRIBED for id, case in cases.items()},
        "tag": {tag for row in rows for tag in row.get("tags", ())},
        "dtype": {row["dtype"] for row in rows if row.get("dtype")},
        "basis": {case.contract.basis for case in cases.values() if case},
        "history": {
            value for row in rows for one in row.get("history", ()) for value in one["filters"]
        },
    }


def _cells(
    table: Table,
    heads: Sequence[Head],
    cases: Mapping[str, CaseRecord | None],
    rows: Mapping[str, dict[str, Any]],
    changes: Mapping[tuple[str, str], Change],
    series: Sequence[Mapping[str, Any]],
    encoder: Encoder,
) -> tuple[dict[str, Any], dict[str, Any]]:
    reports: list[list[list[str]]] = []
    texts: dict[str, str] = {}  # of the reports, each once
    looks: dict[object, tuple[dict[str, Any], Repeated]] = {}
    known: dict[object, Repeated] = {}
    colours: dict[str, int] = {}  # with the severity of the worst result that has it
    for id, case in cases.items():
        row = rows[id]
        row |= {"report": len(reports), "results": []}
        outputs: dict[str, int] = {}
        verdicts = [(label, clean(label), cell.verdict) for label, cell in table.rows[id].items()]
        for column in table.columns:
            cell = table.rows[id].get(column.label)
            if cell is None:
                row["results"].append(None)
                continue
            result, key = cell.result, _key_of_look(cell)
            if key not in looks:
                made = _look(cell)
                looks[key] = made, Repeated(made)
                severe = colours.get(made["colour"], cell.severity)
                colours[made["colour"]] = min(severe, cell.severity)
            look, shared = looks[key]
            details = _result_details(result, changes.get((id, column.label)), known)
            details["look"] = shared
            if result.bits is not None:
                details["bits"] = outputs.setdefault(result.bits, len(outputs))
            row["results"].append(encoder.add(details))
            if case is not None and look["reported"]:
                elsewhere = [(name, v) for label, name, v in verdicts if label != column.label]
                report = _report(case, result, column.target, elsewhere)
                reports.append([[texts.setdefault(text, text) for text in part] for part in report])
    members: dict[tuple[str, str], list[CaseRecord | None]] = {}
    for id, case in cases.items():
        members.setdefault(_entry(id, case), []).append(case)
    themes = {theme: n for n, theme in enumerate(dict.fromkeys(theme for theme, _ in members))}
    cells = {
        "verdicts": {verdict: verdict_word(verdict) for verdict in VERDICTS},
        "bases": {name: f"{name}: {text[0].lower()}{text[1:-1]}" for name, text in BASES.items()},
        "colours": sorted(colours, key=lambda colour: colours[colour]),
        "targets": [
            {
                "label": head.label,
                "device": clean((head.target.describe and head.target.describe.device) or ""),
                "unavailable": bool(head.target.unavailable),
                "template": template_of(head.target),
                "no_program": no_program(head.target.ep),
            }
            for head in heads
        ],
        "series": series,
        "themes": [*_themes(cases).values()],
        "groups": [_group(entry, those, themes[entry[0]]) for entry, those in members.items()],
        "cases": list(rows.values()),
    }
    used = {name for column in table.columns if (name := template_of(column.target))}
    templates = {name: template_text(name) for name in sorted(used)}
    in_reports = Encoder()
    for text in sorted(texts, key=lambda text: text[:9]):
        texts[text] = in_reports.add(text)  # similar ones are adjacent, which compresses better
    placed = ([[texts[text] for text in part] for part in report] for report in reports)
    return encoder.whole(cells), in_reports.whole({"reports": placed, "templates": templates})


def template_of(target: TargetRecord) -> str | None:
    """The template of the target's programs, if they are in Python; the page shows no others."""
    script = script_of(target.ep)
    return script.template if script and script.template.endswith(".py") else None


def _history_details(history: CaseHistory, series: str) -> dict[str, Any]:
    """The fields that the page shows for a history, and its values for the filter ``history``.

    ``since`` is null if the case is not right in the last release.
    """
    last = history.spans[-1] if history.spans else None
    filters = {
        "regressed": history.regressed,
        "mended": history.mended,
        **{
            f"{kind}:{series} {version}": True
            for kind in CHANGE_KINDS
            for version in history.changed_in(kind)
        },
    }
    return {
        "text": clean(sentence(history)),
        "since": clean(last.first) if last and history.since else None,
        "earliest": last is not None and (last.earliest or bool(last.untried)),
        "filters": [clean(value) for value, has in filters.items() if has],
    }


def _entry(id: str, case: CaseRecord | None) -> tuple[str, str]:
    """The theme of a case and the name of its entry; "" and the id if it is not described."""
    return (case.theme, case.name) if case else ("", id)


def _themes(cases: Mapping[str, CaseRecord | None]) -> dict[str, dict[str, str]]:
    """The name and the question of each theme."""
    questions: dict[str, str] = {}
    for id, case in cases.items():
        question = case.question if case else "Cases without a description in the file"
        questions.setdefault(_entry(id, case)[0], question)
    return {
        theme: {"name": clean(theme) or UNDESCRIBED, "question": clean(question)}
        for theme, question in questions.items()
    }


def _group(
    entry: tuple[str, str], members: Sequence[CaseRecord | None], theme: int
) -> dict[str, Any]:
    """The row of an entry of a case file: of one case, or of all cases of its axes."""
    name, case = clean(entry[1]), members[0]
    reasons = {one.why if one else "" for one in members}
    return {
        "theme": theme,
        "id": clean("/".join(filter(None, entry))),
        "name": name,
        "title": (clean(case.title) if case else "") or name,
        "why": clean(reasons.pop()) if len(reasons) == 1 else "",
    }


_port: Final = attrgetter("name", "state", "shape", "dtype")
_CALL = {"attributes": True, "steps": True, "graph": {"file", "nodes"}}
#: The fields of a case that the page shows.
_CASE: Final[Any] = {
    **dict.fromkeys(("id", "axes", "file", "why", "tags", "links", "relation"), True),
    "contract": {"basis"},
    "call": _CALL,
}


def _case_details(
    id: str,
    case: CaseRecord | None,
    encoder: Encoder,
    known: dict[object, EncodedPlace],
    contracts: dict[str, Repeated],
) -> dict[str, Any]:
    """The fields of a case.

    ``known`` are the inputs and outputs that are encoded already, and ``contracts`` the contracts
    so far, as JSON.
    """
    if case is None:
        return {"id": clean(id)}
    details: Any = deep_clean(case.model_dump(mode="json", include=_CASE))
    terms, call = case.contract.model_dump_json(), details["call"]
    if terms not in contracts:
        contracts[terms] = Repeated(deep_clean(case.contract.model_dump(mode="json")))
    details["contract"] = contracts[terms]
    dtypes = [clean(port.dtype) for port in case.call.inputs if port.dtype]
    if call.get("graph"):  # its first input may be token ids
        dtypes = [word for word in dtypes if "float" in word] or dtypes
    query = next(iter(dtypes), "")
    details["dtype"] = details["axes"].get("dtype", query)  # an axis takes precedence
    ports: dict[str, list[EncodedPlace]] = {}
    for name, those in (("inputs", case.call.inputs), ("outputs", case.call.outputs)):
        ports[name] = []
        for port in those:
            fields = *_port(port), getattr(port, "values", None)
            if fields not in known:
                known[fields] = encoder.add(_port_details(*fields))
            ports[name].append(known[fields])
    details["call"] = ports | call
    return details  # type: ignore[no-any-return]


def _port_details(
    name: str, state: str, shape: Sequence[object] | None, dtype: str | None, values: str | None
) -> dict[str, Any]:
    shown = {"name": name, "state": state, "shape": shape and [*shape], "dtype": dtype}
    shown["values"] = values
    return {field: deep_clean(value) for field, value in shown.items() if value is not None}


_looks: Final = attrgetter(
    "target", "verdict", "unexpected", "vague", "hazard", "outcome", "stage", "code", "placement",
    "kernels", "values_right", "other_kernel", "wrong_outputs",
)  # fmt: skip
_expects: Final = attrgetter("file", "line", "verdict", "link", "why")


def _key_of_look(cell: Cell) -> object:
    """What `_look` depends on."""
    result = cell.result
    ended = (result.message, result.reason) if result.verdict == "crash" else None
    return _looks(result), ended, _key_of(result.expectation), cell.asked, cell.case is None


def _key_of(known: ExpectationRecord | None) -> object:
    return known and (*_expects(known), str(known.flaky))


def _look(cell: Cell) -> dict[str, Any]:
    """The fields by which the page draws, counts and filters a result; many results share them.

    ``severity`` is 0 for the worst. ``part`` is null for a call that was not tried. ``asked`` says
    whether the result counts for the score, and ``reported`` whether it has a bug report.
    """
    result = cell.result
    has = {
        "vague": result.vague,
        "hazard": result.hazard,
        "not specified": result.verdict == "unsupported" and not cell.mark,
    }
    flags = [flag for flag in has if has[flag]]
    as_it_should = result.verdict == "pass" and not flags and not result.unexpected
    return {
        "verdict": result.verdict,
        "word": verdict_word(result.verdict),
        "colour": colour_of(result),
        "drawing": drawing_of(result),
        "severity": cell.severity,
        "part": cell.part,
        "asked": cell.asked,
        "silent": cell.silent,
        "reported": cell.case is not None and cell.tried and not as_it_should,
        "mark": cell.mark,
        "note": clean(cell.note),
        "ended_by": clean(ended_by(result)),
        "flags": flags,
        "wrong": list(result.wrong_outputs),
        "outcome": result.outcome,
        "stage": result.stage,
        "code": clean(result.code or ""),
        "placement": clean(result.placement or ""),
        "kernels": [*map(clean, result.kernels or ())],
        "values_right": result.values_right,
    }


def _result_details(
    result: ResultRecord, change: Change | None, known: dict[object, Repeated]
) -> dict[str, Any]:
    """The fields of a result that are not in its look; ``known`` are the expectations so far."""
    details: dict[str, Any] = {
        "hazard": result.hazard,
        "message": result.message,
        "reason": result.reason,
        "relation": result.relation and result.relation.model_dump(mode="json"),
        "ms": result.ms and result.ms.model_dump(mode="json"),
        "stderr": result.stderr,
        "insensitive": result.insensitive,
        "contract": result.contract and result.contract.model_dump(mode="json"),
    }
    details = {name: deep_clean(value) for name, value in details.items() if value}
    if expected := result.expectation:
        key = _key_of(expected)
        if key not in known:
            known[key] = Repeated(deep_clean(expected.model_dump(mode="json")))
        details["expectation"] = known[key]
    command = clean(shared_command(result.reproduce))
    if command:  # without the id, it is that of other cases, too
        details["reproduce"] = command.split(clean(result.case))
    if result.errors:
        details["errors"] = [_error_details(error) for error in result.errors]
    if cause := clean(symptom(result)):
        details["symptom"] = cause
    if "ms" in details:
        details["ms"] = _short(details["ms"])
    if change is not None:
        details["change"] = {"kind": change.kind, "sentence": clean(change.sentence)}
    return details


#: Takes the place of a program that is not in Python.
_BY_COMMAND: Final = (
    "gqa export, with this case and target, writes a program that needs only the runtime."
)


def _report(
    case: CaseRecord,
    result: ResultRecord,
    target: TargetRecord,
    elsewhere: Sequence[tuple[str, Verdict]],
) -> tuple[Sequence[str], ...]:
    """The comment and the data of the program, the bug report up to the program, and its end."""
    program = program_of(case, result, target)
    if program.language != "python" and program.missing is None:
        program = replace(program, missing=_BY_COMMAND)
    text, fence = issue_parts(case, result, target, program, elsewhere)
    return program.head, program.data, text.split("\n\n"), [fence] if fence else []


def _error_details(error: OutputErrorRecord) -> dict[str, Any]:
    fields = error.model_dump(mode="json", exclude={"where"})
    fields |= {"output": clean(error.output), "where": deep_clean([*map(list, picture(error))])}
    digits = {"got": 17, "want": 17}
    shown = {name: _short(value, digits.get(name, 4)) for name, value in fields.items()}
    return {name: value for name, value in shown.items() if value is not None}


def _short(value: Any, digits: int = 4) -> Any:
    """A JSON value with its numbers rounded to ``digits`` significant digits."""
    if isinstance(value, float):
        short = float(f"{value:.{digits}g}")
        return short if math.isfinite(short) else value
    if isinstance(value, dict):
        return {name: _short(number, digits) for name, number in value.items()}
    return value
