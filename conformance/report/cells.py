"""All results as CSV or JSON, a row for each case on each target."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Final

from conformance.base.text import clean
from conformance.results.shareable import shared_command
from conformance.results.table import Cell, Table
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import flaky_text

FORMAT: Final = "gqa-cells/1"

# A spreadsheet reads a text that begins with one of these, even full-width, as a formula.
_FORMULA: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠", "\t", "\r", "\n")


def cells(table: Table) -> Iterator[dict[str, Any]]:
    """The results as flat records: case by case, and within a case in the order of the columns.

    Values are strings, numbers, booleans or null. Numbers that JSON does not have are ``nan``,
    ``inf`` or ``-inf``, as in the results file. Texts are unchanged.
    """
    yield from map(_fields, table.cells)


def _fields(cell: Cell) -> dict[str, Any]:
    case, result, contract = cell.case, cell.result, cell.contract
    fields = result.model_dump(mode="json", exclude={"errors", "relation"})
    ms = fields["ms"] or {}
    known = fields["expectation"] or {}
    return {
        "case": result.case,
        "theme": cell.theme,
        "entry": case.name if case else "",
        "title": case.title if case else "",
        "target": cell.label,
        "verdict": result.verdict,
        "unexpected": result.unexpected,
        "vague": result.vague,
        "hazard": result.hazard,
        "reading": result.reading,
        "outcome": result.outcome,
        "stage": result.stage,
        "share": fields["share"],
        "values_right": result.values_right,
        "wrong_outputs": " ".join(result.wrong_outputs),
        "reason": result.reason,
        "code": result.code,
        "message": result.message,
        "placement": result.placement,
        "kernels": " ".join(result.kernels or ()),
        "other_kernel": result.other_kernel,
        "load_ms": ms.get("load"),
        "run_ms": ms.get("run"),
        "total_ms": ms.get("total"),
        "demands": contract.demands if contract else None,
        "basis": contract.basis if contract else None,
        "disputed": (contract.disputed or None) if contract else None,
        "flaky": flaky_text(result.flaky) if result.flaky else None,
        "expected_verdict": known.get("verdict"),
        "expected_why": known.get("why"),
        "expected_link": known.get("link"),
        "reproduce": shared_command(result.reproduce),
    }


_FIELDS: Final = (
    "case", "theme", "entry", "title", "target", "verdict", "unexpected", "vague", "hazard",
    "reading", "outcome", "stage", "share", "values_right", "wrong_outputs", "reason", "code",
    "message", "placement", "kernels", "other_kernel", "load_ms", "run_ms", "total_ms", "demands",
    "basis", "disputed", "flaky", "expected_verdict", "expected_why", "expected_link", "reproduce",
)  # fmt: skip


def csv_text(table: Table) -> str:
    """The cells as CSV (RFC 4180) with a header row; null is empty.

    Texts are cleaned; one that a spreadsheet would read as a formula gets the prefix ``'``.
    """
    made = io.StringIO()
    writer = csv.writer(made, quoting=csv.QUOTE_MINIMAL)
    writer.writerow(_FIELDS)
    for cell in cells(table):
        writer.writerow([_written(cell[field]) for field in _FIELDS])
    return made.getvalue()


def _written(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return plain(value) if isinstance(value, str) else value


def plain(text: str) -> str:
    """``text`` cleaned, and with a prefix if a spreadsheet would read it as a formula."""
    text = clean(text)
    return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def json_text(table: Table) -> str:
    """The cells as JSON: ``{"format": …, "targets": […], "problems": […], …, "cells": […]}``."""
    targets = [
        {"label": column.label, **column.target.model_dump(mode="json")} for column in table.columns
    ]
    infrastructure = [
        {"label": label, **trouble.model_dump(mode="json", exclude={"kind"})}
        for label, trouble in table.infrastructure
    ]
    instability = [
        {"label": label, **record.model_dump(mode="json", exclude={"kind"})}
        for label, records in table.instability.items()
        for record in records
    ]
    head = {
        "format": FORMAT,
        "targets": targets,
        "problems": list(table.problems),
        "infrastructure": infrastructure,
        "instability": instability,
        "uncalled": uncalled_sentences(column.target for column in table.columns),
    }
    # A line for each cell, so that files can be compared line by line.
    rows = ",\n".join(_dumped(cell) for cell in cells(table))
    return f'{_dumped(head)[:-1]}, "cells": [\n{rows}\n]}}\n'


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
