"""Histories in words and as JSON, with the score of each release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conformance.base.text import clean
from conformance.results.timeline import (
    CHANGE_KINDS,
    UNSTABLE,
    CaseHistory,
    ChangeKind,
    GroupHistory,
    History,
    K,
    Release,
    Span,
)
from conformance.results.verdicts import verdict_word

if TYPE_CHECKING:
    from conformance.results.score import Score
    from conformance.results.table import Table


@dataclass(frozen=True)
class ReleaseRow:
    """A release with its score and, by kind, the number of cases that changed in it."""

    release: Release
    score: Score
    changed: Mapping[ChangeKind, int]


def release_rows(joined: Table, history: History) -> list[ReleaseRow]:
    """A row for each release, the oldest first; a release that was not tried has zeros."""
    from conformance.results.score import Score  # imports pydantic

    changed = {kind: history.whole.changed(kind) for kind in CHANGE_KINDS}
    return [
        ReleaseRow(
            release,
            Score() if release.unavailable else joined.scores(release.labels).whole,
            {kind: len(those.get(release.version, ())) for kind, those in changed.items()},
        )
        for release in history.series.releases
    ]


# Words


def short(version: str) -> str:
    """A version without a patch number of 0: ``1.27``."""
    return version.removesuffix(".0") if version.count(".") > 1 else version


def since_words(first: str, last: str, untried: Sequence[str]) -> str:
    """``since 1.27.0``, or ``in 1.32.0; 1.27 to 1.31 not tried``: only releases before, all of
    which were tried, tell since when it is so."""
    if not untried:
        return f"since {first}"
    there = " to ".join(dict.fromkeys((first, last)))
    return f"in {there}; {' to '.join(dict.fromkeys((untried[0], untried[-1])))} not tried"


def since(span: Span[K]) -> str:
    """The same of a span: ``since ≤1.25.1`` where nothing is known before."""
    first = short(span.first if span.untried else span.since)
    return since_words(first, short(span.last), [*map(short, span.untried)])


def sentence(history: CaseHistory) -> str:
    """The history of a case in a few words: ``wrong 1.28–1.30, right since 1.31``.

    It mentions at most the last change and the state before; `CaseHistory.spans` has all. Empty if
    the case was never tried.
    """
    if not history.spans:
        return ""
    last = history.spans[-1]
    if last.state == "pass":
        broken = _broken_before(history)
        right = f"right {since(last)}" if broken or last.untried else since(last)
        return f"{broken}, {right}" if broken else right
    state = f"{verdict_word(last.state)} {since(last)}"
    if history.regressed and last.state != UNSTABLE:
        *_, change = history.changes
        return f"right until {short(change.last)}, {state}"
    return state


def _broken_before(history: CaseHistory) -> str:
    """The last releases with a broken case; empty if it never broke, or is still broken."""
    if not history.mended:
        return ""
    *_, fixed = history.changes
    broken = next(change for change in reversed(history.changes) if change.kind == "broken")
    until = "" if broken.version == fixed.last else f"–{short(fixed.last)}"
    return f"{verdict_word(broken.state)} {short(broken.version)}{until}"


# As JSON

FORMAT: Final = "gqa-history/1"


def history_json(
    joined: Table,
    histories: Sequence[History],
    features: Mapping[str, Mapping[str, str | None]],
) -> dict[str, object]:
    """Histories as JSON values: the releases, entries, features and cases of each target."""
    return {
        "format": FORMAT,
        "suite": sorted({clean(run.header.suite) for run in joined.runs}),
        "corpus": sorted({clean(run.header.corpus) for run in joined.runs}),
        "complete": not joined.problems and not joined.infrastructure,
        "targets": {
            clean(one.series.name): {
                "releases": [_release_json(row) for row in release_rows(joined, one)],
                "entries": {clean(group.name): _group_json(group) for group in one.entries},
                "features": {
                    clean(group.name): _group_json(group) for group in one.by_feature(features)
                },
                "cases": {clean(id): _spans_json(case) for id, case in one.cases.items()},
            }
            for one in histories
        },
    }


def _release_json(row: ReleaseRow) -> dict[str, object]:
    release = row.release
    about: dict[str, object] = {
        "version": clean(release.version),
        "target": clean(release.label),
    }
    if release.unavailable:
        return {**about, "unavailable": clean(release.unavailable)}
    return about | {"score": row.score.numbers()} | dict(row.changed)


def _group_json(group: GroupHistory) -> dict[str, object]:
    since = group.since
    return {
        "cases": len(group.members),
        "since": since and clean(since.since),
        "partly": since is not None and since.state == "partly",
        **{
            f"{kind}_in": {
                clean(version): [clean(one.case) for one in those]
                for version, those in group.changed(kind).items()
            }
            for kind in CHANGE_KINDS
        },
        "regressed": [clean(one.case) for one in group.regressed],
    }


def _spans_json(history: CaseHistory) -> dict[str, object]:
    """The history of a case as JSON values: ``since``, ``broken_in``, ``fixed_in``, ``spans``."""
    return {
        "since": None if history.since is None else clean(history.since),
        **{f"{kind}_in": [*map(clean, history.changed_in(kind))] for kind in CHANGE_KINDS},
        "spans": [_span_json(span) for span in history.spans],
    }


def _span_json(span: Span[str]) -> dict[str, object]:
    between = {"unknown": [clean(version) for version in span.unknown]} if span.unknown else {}
    return {
        "state": span.state,
        "first": clean(span.since),
        "last": clean(span.last),
        **between,
    }
