"""The cells of the matrix as a table: a row for each case on each target, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Final

from conformance.report.text import clean
from conformance.results.join import Joined
from conformance.results.records import CaseRecord, ResultRecord

FORMAT: Final = "gqa-cells/1"

# A spreadsheet takes what begins like this for a formula; the wide forms too.
_FORMULA: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n")


def cells(joined: Joined) -> Iterator[dict[str, Any]]:
    """Each result as one flat record, case by case in the order of the columns.

    Values are strings, numbers, booleans or null; what JSON has no number for is ``nan``, ``inf``
    or ``-inf``, as in the results file. Texts are as the results file has them.
    """
    ids = dict.fromkeys([*joined.cases, *(id for id, _ in joined.results)])
    for id in ids:
        for column in joined.columns:
            result = joined.results.get((id, column.label))
            if result is not None:
                yield _cell(joined.cases.get(id), column.label, result)


def _cell(case: CaseRecord | None, label: str, result: ResultRecord) -> dict[str, Any]:
    told = result.model_dump(mode="json", exclude={"errors", "relation"})
    ms = told["ms"] or {}
    known = told["expectation"] or {}
    return {
        "case": result.case,
        "theme": case.theme if case else "",
        "entry": case.name if case else "",
        "title": case.title if case else "",
        "target": label,
        "verdict": result.verdict,
        "unexpected": result.unexpected,
        "vague": result.vague,
        "outcome": result.outcome,
        "stage": result.stage,
        "share": told["share"],
        "values_right": result.values_right,
        "reason": result.reason,
        "code": result.code,
        "message": result.message,
        "placement": result.placement,
        "load_ms": ms.get("load"),
        "run_ms": ms.get("run"),
        "total_ms": ms.get("total"),
        "demands": case.contract.demands if case else None,
        "basis": case.contract.basis if case else None,
        "expected_verdict": known.get("verdict"),
        "expected_why": known.get("why"),
        "expected_link": known.get("link"),
        "reproduce": result.reproduce,
    }


_FIELDS: Final = (
    "case", "theme", "entry", "title", "target", "verdict", "unexpected", "vague", "outcome",
    "stage", "share", "values_right", "reason", "code", "message", "placement", "load_ms",
    "run_ms", "total_ms", "demands", "basis", "expected_verdict", "expected_why", "expected_link",
    "reproduce",
)  # fmt: skip


def csv_text(joined: Joined) -> str:
    """The cells as CSV (RFC 4180) with a row of names; null is empty.

    Texts are cleaned, and one that a spreadsheet would take for a formula has a ``'`` before it.
    """
    made = io.StringIO()
    writer = csv.writer(made, quoting=csv.QUOTE_MINIMAL)
    writer.writerow(_FIELDS)
    for cell in cells(joined):
        writer.writerow([_written(cell[field]) for field in _FIELDS])
    return made.getvalue()


def _written(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(value) if isinstance(value, str) else value


def plain(text: str) -> str:
    """``text`` cleaned, and no formula to any spreadsheet."""
    text = clean(text)
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def json_text(joined: Joined) -> str:
    """The cells as JSON: ``{"format": …, "targets": […], "problems": […], "cells": […]}``."""
    targets = [
        {"label": column.label, **column.target.model_dump(mode="json")}
        for column in joined.columns
    ]
    infrastructure = [
        {"label": label, **trouble.model_dump(mode="json", exclude={"kind"})}
        for label, trouble in joined.infrastructure
    ]
    head = {
        "format": FORMAT,
        "targets": targets,
        "problems": list(joined.problems),
        "infrastructure": infrastructure,
    }
    # A cell a line: such files are looked at and compared line by line.
    rows = ",\n".join(_dumped(cell) for cell in cells(joined))
    return f'{_dumped(head)[:-1]}, "cells": [\n{rows}\n]}}\n'


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
