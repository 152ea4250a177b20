"""The output of ``gqa history``: tables of releases, regressions and fixes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from conformance.base.text import one_line
from conformance.base.words import plural
from conformance.cli.console import NOTHING, plain_table
from conformance.report.history import release_rows
from conformance.results.table import Table
from conformance.results.timeline import (
    UNSTABLE,
    CaseHistory,
    ChangeKind,
    GroupHistory,
    History,
)
from conformance.results.verdicts import TABLE, VERDICTS, verdict_word

#: The default number of rows of a table.
_MOST_ROWS: Final = 12
#: The share of regressed cases from which on a feature is shown by default.
_SHARE: Final = 0.1
#: The number of characters to which texts are cut.
_LONGEST: Final = 200


def draw_history(
    console: Console,
    joined: Table,
    history: History,
    features: Sequence[GroupHistory],
    everything: bool,
) -> None:
    """Print the releases of a target, its regressions, and failures that are fixed again.

    With ``everything`` also the entries and features without a failure, and every row.
    """
    versions = [release.version for release in history.series.tried]
    heading = (
        f"{history.series.name}: {plural(len(history.cases), 'case')} on "
        f"{plural(len(versions), 'release')}, {versions[0]} to {versions[-1]}"
    )
    console.print(Text(f"\n{_line(heading)}", style="bold"))
    _draw_releases(console, joined, history)
    most = None if everything else _MOST_ROWS
    draw = functools.partial(_draw_groups, console, most=most)
    regressed = [group for group in history.entries if group.regressed]
    regressed.sort(key=lambda group: -len(group.regressed))
    cases = plural(len(history.whole.regressed), "case")
    meaning = "right in an earlier release, and not in the last one that was tried"
    draw(f"Regressions: {meaning}: {cases}", regressed)
    if not regressed:
        meaning = "what was right in a release is right in the last one that tried it."
        console.print(Text(f"\nNo regressions: {meaning}"))
    broken = [group for group in history.entries if group.changed("broken")]
    cases = plural(sum(one.mended for one in history.cases.values()), "case")
    mended = [group for group in broken if not group.regressed]
    draw(f"Broken for a time, and right again: {cases}", mended)
    never_broken = [group for group in history.entries if not group.changed("broken")]
    gained = [
        (versions.index(since.first), group)
        for group in never_broken
        if (since := group.since) and not since.earliest and since.state == "full"
    ]
    gained.sort(key=lambda item: (item[0], len(item[1].members)), reverse=True)
    shown = [group for _, group in gained]
    draw("Right since a later release than the first", shown)
    named = {group.name for group in shown[:most]}
    others = [group for group in never_broken if group.name not in named]
    if everything:
        draw("The other entries", others)
        draw("By feature", features)
        return
    notable = [group for group in features if _share(group) >= _SHARE or _is_new(group)]
    notable.sort(key=_share, reverse=True)
    heading = "By feature: what regressed, and what did not work at all in the first release"
    draw(heading, notable)
    if others:
        rows = plural(len(others), "other row")
        console.print(Text(f"\nIn {rows} of the case files nothing broke; --all lists them."))


def draw_problems(console: Console, joined: Table) -> None:
    """Print problems of the files, targets that were not tried, and infrastructure failures."""
    for problem in joined.problems:
        console.print(Text(_line(problem), style="yellow"))
    for column in joined.columns:
        if column.target.unavailable is not None:
            _draw_problem(console, column.label, column.target.unavailable, column.target.fix)
    failures = Counter((label, one.message, one.fix) for label, one in joined.infrastructure)
    for (label, message, fix), number in list(failures.items())[:_MOST_ROWS]:
        times = f" ({number} times)" if number > 1 else ""
        _draw_problem(console, label, f"{message}{times}", fix)
    if len(failures) > _MOST_ROWS:
        rest = plural(len(failures) - _MOST_ROWS, "other infrastructure failure")
        console.print(Text(f"and {rest}", style="yellow"))


def _draw_problem(console: Console, label: str, sentence: str, fix: str | None) -> None:
    console.print(Text(_line(f"{label}: {sentence}"), style="yellow"), soft_wrap=True)
    if fix:
        console.print(Text(f"  fix: {_line(fix)}"), soft_wrap=True)


def _draw_releases(console: Console, joined: Table, history: History) -> None:
    """Print a row for each release: its score and changes, or why it was not tried."""
    failures = Counter(label for label, _ in joined.infrastructure)
    table = plain_table()
    table.add_column("release", no_wrap=True)
    styles = {"crash": TABLE["crash"].style, "timeout": TABLE["timeout"].style}
    styles |= {"broken": "red", "fixed": "green"}
    for name in ("right of asked", *styles, "not tried"):
        table.add_column(name, justify="right", header_style=styles.get(name), no_wrap=True)
    table.add_column("", overflow="fold")
    versions = [release.version for release in history.series.tried]
    for row in release_rows(joined, history):
        release, score = row.release, row.score
        if release.unavailable:
            note = Text(f"not available: {_line(release.unavailable)}", style="yellow")
            table.add_row(_line(release.version), *[NOTHING] * 6, note)
            continue
        place = versions.index(release.version)
        states = Counter(one.states[place] for one in history.cases.values())
        notes = []
        if states[UNSTABLE]:
            notes.append(f"{states[UNSTABLE]} unstable")
        if failed := sum(failures[column.label] for column in release.columns):
            notes.append(plural(failed, "infrastructure failure"))
        counts = [states["crash"], states["timeout"], *row.changed.values(), states[None]]
        table.add_row(
            _line(release.version),
            f"{score.right:,} of {score.asked:,}" if score.asked else "none asked",
            *(f"{count:,}" if count else NOTHING for count in counts),
            ", ".join(notes),
        )
    console.print(table, highlight=False)


def _draw_groups(
    console: Console, heading: str, groups: Sequence[GroupHistory], most: int | None
) -> None:
    """Print a row for each group: since when it is right, and the releases that changed it."""
    if not groups:
        return
    console.print(Text(f"\n{_line(heading)}", style="bold"))
    table = plain_table()
    table.add_column("cases", overflow="fold", min_width=24)
    table.add_column("regressed", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    table.add_column("broken in", overflow="fold")
    table.add_column("fixed in", overflow="fold")
    table.add_column("now", overflow="fold")
    for group in groups[:most]:
        table.add_row(
            _line(group.name),
            f"{len(group.regressed) or NOTHING} of {len(group.members)}",
            _since(group),
            _changes(group, "broken"),
            _changes(group, "fixed"),
            _now(group.regressed or group.members),
        )
    console.print(table, highlight=False)
    if most is not None and len(groups) > most:
        console.print(Text(f"  and {len(groups) - most} more", style="dim"))


def _since(group: GroupHistory) -> str:
    """The release since which all cases of a group are right, or some; ``never`` if none was."""
    since = group.since
    if since is None:
        return "unknown" if not group.spans else "never" if len(group.spans) == 1 else "no longer"
    return f"{_line(since.since)}{', partly' if since.state == 'partly' else ''}"


def _changes(group: GroupHistory, kind: ChangeKind) -> str:
    """The releases that changed cases, each with the number of cases unless it is all of them."""
    versions = [
        _line(version) + (f" ({len(those)})" if len(those) < len(group.members) else "")
        for version, those in group.changed(kind).items()
    ]
    return ", ".join(versions) or NOTHING


def _now(cases: Iterable[CaseHistory]) -> str:
    """The number of cases in each state, by the last release that tried the case."""
    counts = Counter(one.spans[-1].state if one.spans else "not tried" for one in cases)
    order = [*VERDICTS, UNSTABLE, "not tried"]
    return ", ".join(f"{counts[state]} {verdict_word(state)}" for state in order if counts[state])


def _share(group: GroupHistory) -> float:
    return len(group.regressed) / len(group.members)


def _is_new(group: GroupHistory) -> bool:
    """Whether no case of the group is right in the first release that was tried."""
    return group.first_state == "none"


def _line(text: str) -> str:
    """Untrusted text on one line."""
    return one_line(text, _LONGEST)
