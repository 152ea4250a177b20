"""Support of each entry by target and version, in the format of browser-compat-data.

Themes and entries correspond to features, targets to browsers. Only versions that were tried
count: if an entry passes in the first of them, its support begins at ``≤1.26.0``, because earlier
versions are unknown. `conformance.results.timeline` derives it. Where a target was tried in several
versions, an entry has the history of each of its cases, too. The JSON Schema is
``reports/support.schema.json``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from conformance.base.text import clean
from conformance.report.history import spans_json
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.score import Scores
from conformance.results.table import Table
from conformance.results.timeline import Group, GroupHistory, History, histories
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import VERDICTS
from conformance.results.wrong_outputs import only_presents, where_wrong

FORMAT: Final = "gqa-support/1"

#: The theme of cases that have results and no description.
UNDESCRIBED: Final = "(not described)"

_NOTE: Final = 400
#: A statement lists at most this many causes.
_CAUSES: Final = 5


def support_text(table: Table, indent: int | None = 1) -> str:
    """The JSON document; on one line, a third smaller, without an ``indent``."""
    separators = None if indent else (",", ":")
    text = json.dumps(
        support(table), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return f"{text}\n"


def support(table: Table) -> dict[str, Any]:
    """The document as JSON values: ``__meta``, then theme, entry and ``__compat``."""
    found = histories(table, least=1)
    document: dict[str, Any] = {"__meta": _meta(table, found)}
    for (theme, name), ids in _entries(table).items():
        described = [table.cases[id] for id in ids if id in table.cases]
        about = _about(name, described, len(ids))
        about["support"] = {
            clean(one.series.name): _statements(
                GroupHistory(name, tuple(one.cases[id] for id in ids))
            )
            for one in found
        }
        several = [one for one in found if len(one.series.tried) > 1]
        if several:
            about["history"] = {
                clean(one.series.name): {clean(id): spans_json(one.cases[id]) for id in ids}
                for one in several
            }
        place = document.setdefault(_key(theme), {})
        place.setdefault(_key(name), {})["__compat"] = about
    return document


def _key(name: str) -> str:
    """``name``, changed if the format reserves it."""
    name = clean(name)
    return f"·{name}" if name.startswith("__") else name


def _entries(table: Table) -> dict[tuple[str, str], list[str]]:
    entries: dict[tuple[str, str], list[str]] = {}
    for id in table.ids:
        case = table.cases.get(id)
        place = (case.theme, case.name) if case else (UNDESCRIBED, id)
        entries.setdefault(place, []).append(id)
    return entries


def _about(name: str, described: Sequence[CaseRecord], cases: int) -> dict[str, Any]:
    first = described[0] if described else None
    text = (first.title or first.why or first.question) if first else ""
    about: dict[str, Any] = {"description": clean(text or name), "cases": cases}
    if first:
        about["source_file"] = clean(first.file)
        tags = dict.fromkeys(tag for case in described for tag in case.tags)
        if tags:
            about["tags"] = [clean(tag) for tag in tags]
    return about


# The runs


def _meta(table: Table, found: Sequence[History]) -> dict[str, Any]:
    untried = [
        {"target": clean(column.label), "why": clean(column.target.unavailable)}
        for column in table.columns
        if column.target.unavailable is not None
    ]
    return {
        "format": FORMAT,
        "suite": sorted({clean(run.header.suite) for run in table.runs}),
        "corpus": sorted({clean(run.header.corpus) for run in table.runs}),
        "timestamp": max(run.header.start for run in table.runs).isoformat(),
        "complete": not table.problems and not table.infrastructure,
        "targets": {
            clean(one.series.name): {
                "versions_tried": [clean(release.version) for release in one.series.tried],
                "scores": {
                    clean(release.version): _scores(table.scores(release.labels))
                    for release in one.series.tried
                },
            }
            for one in found
        },
        "not_tried": untried,
        "uncalled": [*map(clean, uncalled_sentences(column.target for column in table.columns))],
    }


def _scores(found: Scores) -> dict[str, Any]:
    """The score of one version of a target."""
    themes = {clean(theme) or UNDESCRIBED: s.numbers() for theme, s in found.themes.items()}
    return {
        "specified": found.specified.numbers(),
        "established": found.established.numbers(),
        "requested": found.requested.numbers(),
        "themes": themes,
    }


# An entry on a target


def _statements(entry: GroupHistory) -> dict[str, Any] | list[dict[str, Any]]:
    """The support of an entry on a target: one statement, or several, the latest first.

    A statement holds from ``version_added`` until ``version_removed``, in the versions tried.
    """
    tried = {group.version: group for group in entry.tried}
    if not tried:
        return {"version_added": None, "notes": ["Not tried."]}
    unsure = [_unsure(group) for group in tried.values() if group.state == "unknown"]
    ranges = entry.spans
    if not ranges:
        return {"version_added": None, "notes": unsure}
    statements = []
    for number, span in enumerate(ranges):
        if span.state == "none":
            continue
        statement: dict[str, Any] = {"version_added": clean(span.since)}
        if number + 1 < len(ranges):
            statement["version_removed"] = clean(ranges[number + 1].first)
        if span.state == "partly":
            notes = _notes(tried[span.last])
            statement |= {"partial_implementation": True, "notes": notes}
        statements.append(statement)
    last = ranges[-1]
    if last.state == "none":
        statements.append({"version_added": False, "notes": _notes(tried[last.last])})
    later = entry.tried[entry.tried.index(tried[last.last]) + 1 :]
    if last.state != "full" and later:
        # All that was tried since passes, so the entry may work now.
        statements.append({"version_added": None, "notes": [_unsure(group) for group in later]})
        unsure = [note for note in unsure if note not in statements[-1]["notes"]]
    statements.reverse()
    if unsure:
        statements[0]["notes"] = [*statements[0].get("notes", []), *unsure]
    return statements[0] if len(statements) == 1 else statements


def _unsure(tried: Group) -> str:
    parts = [f"only {len(tried.results)} of {tried.cases} cases were tried; they pass"]
    if tried.unstable:
        number = f"{tried.unstable} of {tried.cases} cases"
        every = len(tried.results) == tried.cases
        parts = [*([] if every else parts), f"{number} had another result that did not repeat"]
    return f"In {clean(tried.version, 100)} {'; '.join(parts)}."


def _notes(tried: Group) -> list[str]:
    """The verdicts by number, and the known causes, in the version of ``tried``."""
    counts = Counter(result.verdict for result in tried.results)
    presents = Counter(result.verdict for result in tried.results if only_presents(result))
    only = {verdict: f" ({number} only in presents)" for verdict, number in presents.items()}
    parts = [f"{counts[v]} {v}{only.get(v, '')}" for v in VERDICTS if counts[v]]
    if untried := tried.cases - len(tried.results):
        parts.append(f"{untried} not tried")
    notes = [f"{clean(tried.version, 100)}: {', '.join(parts)} of {tried.cases} cases."]
    causes = list(dict.fromkeys(_causes(tried.results)))
    notes += causes[:_CAUSES]
    if len(causes) > _CAUSES:
        notes.append(f"And {len(causes) - _CAUSES} more causes.")
    return notes


def _causes(results: Sequence[ResultRecord]) -> Iterator[str]:
    for result in results:
        known = result.expectation
        if result.verdict != "pass" and known is not None:
            where = f" {where_wrong(result)}" if result.wrong_outputs else ""
            yield clean(f"{result.verdict}{where}: {known.why} {known.link}", _NOTE)
