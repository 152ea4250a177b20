"""Support of each entry by target and version, in the format of browser-compat-data.

Themes and entries correspond to features, targets to browsers. Only versions that were tried count:
if an entry passes in the first of them, its support begins at ``≤1.26.0``, because earlier versions
are unknown. The JSON Schema is
``reports/support.schema.json``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from packaging.version import InvalidVersion, Version

from conformance.report.score import scores
from conformance.report.text import clean
from conformance.results.join import Column, Joined
from conformance.results.records import CaseRecord, ResultRecord
from conformance.results.verdicts import VERDICTS, was_tried, worst
from conformance.results.wrong_outputs import only_presents, where_wrong

FORMAT: Final = "gqa-support/1"

#: The theme of cases that have results and no description.
UNDESCRIBED: Final = "(not described)"

#: ``full``: every case passes. ``partly``: some do. ``none``: none does. ``unknown``: some cases
#: were not tried, and the others pass.
_State = Literal["full", "partly", "none", "unknown"]

_NOTE: Final = 400
#: A statement lists at most this many causes.
_CAUSES: Final = 5


@dataclass(frozen=True)
class _Tried:
    """An entry in one version of a target."""

    version: str
    state: _State
    results: tuple[ResultRecord, ...]
    """Of the cases that were tried."""
    cases: int


def support_text(joined: Joined) -> str:
    """The JSON document."""
    return json.dumps(support(joined), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def support(joined: Joined) -> dict[str, Any]:
    """The document as JSON values: ``__meta``, then theme, entry and ``__compat``."""
    columns = _by_target(joined.columns)
    document: dict[str, Any] = {"__meta": _meta(joined, columns)}
    for (theme, name), ids in _entries(joined).items():
        described = [joined.cases[id] for id in ids if id in joined.cases]
        statements = {
            clean(target): _statements(joined, ids, versions)
            for target, versions in columns.items()
        }
        place = document.setdefault(_key(theme), {})
        place.setdefault(_key(name), {})["__compat"] = {
            **_about(name, described, len(ids)),
            "support": statements,
        }
    return document


def _key(name: str) -> str:
    """``name``, changed if the format reserves it."""
    name = clean(name)
    return f"·{name}" if name.startswith("__") else name


def _entries(joined: Joined) -> dict[tuple[str, str], list[str]]:
    entries: dict[tuple[str, str], list[str]] = {}
    for id in joined.ids:
        case = joined.cases.get(id)
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


# Targets and their versions


def _by_target(columns: Sequence[Column]) -> dict[str, dict[str, list[Column]]]:
    """The columns by target and adapter, then by version, oldest first."""
    found: dict[str, dict[str, list[Column]]] = {}
    for column in columns:
        about = column.target.describe
        if about is None or column.target.unavailable is not None:
            continue  # it was not tried
        adapter = f"+{about.adapter}" if about.adapter else ""
        called = column.target.name.rpartition("@")[0] or column.target.ep
        versions = found.setdefault(f"{called}{adapter}", {})
        versions.setdefault(about.version or "unknown", []).append(column)
    return {target: dict(sorted(v.items(), key=_age)) for target, v in found.items()}


def _age(item: tuple[str, object]) -> tuple[bool, Version]:
    """A sort key by version; texts that are no version come first, in the order of the columns."""
    try:
        return True, Version(item[0])
    except InvalidVersion:
        return False, Version("0")


def _meta(joined: Joined, columns: Mapping[str, Mapping[str, Sequence[Column]]]) -> dict[str, Any]:
    untried = [
        {"target": clean(column.label), "why": clean(column.target.unavailable)}
        for column in joined.columns
        if column.target.unavailable is not None
    ]
    return {
        "format": FORMAT,
        "suite": sorted({clean(run.header.suite) for run in joined.runs}),
        "corpus": sorted({clean(run.header.corpus) for run in joined.runs}),
        "timestamp": max(run.header.start for run in joined.runs).isoformat(),
        "complete": not joined.problems and not joined.infrastructure,
        "targets": {
            clean(target): {
                "versions_tried": [clean(version) for version in versions],
                "scores": {clean(v): _scores(joined, those) for v, those in versions.items()},
            }
            for target, versions in columns.items()
        },
        "not_tried": untried,
    }


def _scores(joined: Joined, columns: Sequence[Column]) -> dict[str, Any]:
    """The score of one version of a target; of several results of a case, the worst counts."""
    results: dict[str, ResultRecord | None] = {}
    for id in joined.ids:
        there = [r for c in columns if (r := joined.results.get((id, c.label)))]
        results[id] = worst(there) if there else None
    found = scores(joined.cases, results)
    themes = {clean(theme) or UNDESCRIBED: s.numbers() for theme, s in found.themes.items()}
    return {
        "specified": found.specified.numbers(),
        "established": found.established.numbers(),
        "requested": found.requested.numbers(),
        "themes": themes,
    }


# An entry on a target


def _statements(
    joined: Joined, ids: Sequence[str], versions: Mapping[str, Sequence[Column]]
) -> dict[str, Any] | list[dict[str, Any]]:
    """The support of an entry on a target: one statement, or several, the latest first.

    A statement holds from ``version_added`` until ``version_removed``, in the versions tried.
    """
    tried = [t for v, columns in versions.items() if (t := _tried(joined, ids, v, columns))]
    if not tried:
        return {"version_added": None, "notes": ["Not tried."]}
    sure = [t for t in tried if t.state != "unknown"]
    unsure = [_unsure(t) for t in tried if t.state == "unknown"]
    if not sure:
        return {"version_added": None, "notes": unsure}
    ranges = [(state, list(members)) for state, members in groupby(sure, key=lambda t: t.state)]
    statements = []
    for number, (state, members) in enumerate(ranges):
        if state == "none":
            continue
        first = members[0]
        # Versions before the first one tried are unknown.
        since = f"≤{clean(first.version)}" if first is tried[0] else clean(first.version)
        statement: dict[str, Any] = {"version_added": since}
        if number + 1 < len(ranges):
            statement["version_removed"] = clean(ranges[number + 1][1][0].version)
        if state == "partly":
            statement |= {"partial_implementation": True, "notes": _notes(members[-1])}
        statements.append(statement)
    last_state, last = ranges[-1]
    if last_state == "none":
        statements.append({"version_added": False, "notes": _notes(last[-1])})
    if last_state != "full" and tried[-1].state == "unknown":
        # All that was tried since passes, so the entry may work now.
        later = tried[tried.index(last[-1]) + 1 :]
        statements.append({"version_added": None, "notes": [_unsure(t) for t in later]})
        unsure = [note for note in unsure if note not in statements[-1]["notes"]]
    statements.reverse()
    if unsure:
        statements[0]["notes"] = [*statements[0].get("notes", []), *unsure]
    return statements[0] if len(statements) == 1 else statements


def _tried(
    joined: Joined, ids: Sequence[str], version: str, columns: Sequence[Column]
) -> _Tried | None:
    """The results of an entry in a version; None if none of its cases was tried."""
    found: list[ResultRecord] = []
    for id in ids:
        results = [joined.results.get((id, column.label)) for column in columns]
        there = [r for r in results if r is not None and was_tried(r)]
        if there:
            found.append(worst(there))
    if not found:
        return None
    right = sum(result.verdict == "pass" for result in found)
    state: _State
    if right == len(found):
        state = "full" if len(found) == len(ids) else "unknown"
    else:
        state = "partly" if right else "none"
    return _Tried(version, state, tuple(found), len(ids))


def _unsure(tried: _Tried) -> str:
    number = f"{len(tried.results)} of {tried.cases} cases"
    return f"In {clean(tried.version, 100)} only {number} were tried; they pass."


def _notes(tried: _Tried) -> list[str]:
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
