"""Markdown for the summary of a CI job: a run in one page, and what changed since another.

Whatever comes from a runtime, a case file or a results file stands in code spans, where nothing is
markup, nobody is mentioned and no issue is referred to. All else is written here. A page is cut to
a number of bytes, because a job's summary that is too long is not shown at all; what is left out
is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from conformance.report.changes import Change, Changes
from conformance.report.text import clean
from conformance.results.join import Joined
from conformance.results.records import ResultRecord
from conformance.results.verdicts import VERDICTS, is_silent_failure, severity

#: A summary's most bytes, in UTF-8.
MOST_BYTES: Final = 60_000
#: Of a report and what changed, so many bytes are for the changes.
_FOR_CHANGES: Final = 30_000

#: A text is cut to so many characters.
_TEXT: Final = 400
#: cmark knows fences of code spans up to 80 backticks; longer runs are shown as something else.
_MOST_BACKTICKS: Final = 8
# What may stand between < and > as an address: nothing that ends it, and no @.
_ADDRESS: Final = re.compile(r"https://[A-Za-z0-9.-]+(?:/[A-Za-z0-9._~/?=&%+#:-]*)?")


@dataclass(frozen=True)
class Section:
    """A heading, what always stands below it, and items as far as there is room.

    ``share``: how much of the page the section may take before those after it had their turn.
    """

    heading: str
    always: tuple[str, ...]
    items: tuple[str, ...]
    noun: str
    share: float = 1.0


def changes_markdown(changes: Changes, limit: int = MOST_BYTES) -> str:
    """What changed, in at most ``limit`` bytes: why it is worse, totals, then what broke first."""
    return _fitted([*_changes(changes)], limit)


def summary_markdown(joined: Joined, limit: int = MOST_BYTES) -> str:
    """A run or several, in at most ``limit`` bytes: what is wrong with them first."""
    return _fitted([*_summary(joined)], limit)


def report_markdown(joined: Joined, changes: Changes | None = None) -> str:
    """The summary, after what changed where a run was compared with."""
    if changes is None:
        return summary_markdown(joined)
    first = changes_markdown(changes, _FOR_CHANGES)
    return f"{first}\n{summary_markdown(joined, MOST_BYTES - len(first.encode()) - 1)}"


def code(text: str, most: int = _TEXT) -> str:
    """``text`` in one line as a code span that nothing in it can end, for a table too."""
    text = " ".join(clean(text).split())
    if len(text) > most:
        text = text[:most].rstrip() + " …"
    # A cell ends at a |, in a code span too, and which backslashes prevent that is a matter of
    # the renderer.
    text = text.replace("|", "¦")
    text = re.sub(f"`{{{_MOST_BACKTICKS + 1},}}", lambda run: "ˋ" * len(run[0]), text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{space}{text}{space}{fence}" if text else "(nothing)"


def link(address: str) -> str:
    """An address to follow, if it is one; else text."""
    if len(address) <= _TEXT and _ADDRESS.fullmatch(address):
        return f"<{address}>"
    return code(address)


# What changed


def _changes(changes: Changes) -> Iterator[Section]:
    heading = "# Worse than before" if changes.worse else "# Nothing is worse than before"
    yield Section(
        heading,
        (),
        tuple(f"- {code(reason)}" for reason in changes.reasons),
        "reasons",
        share=0.2,
    )
    if changes.notes:
        notes = tuple(f"- {code(note)}" for note in changes.notes)
        yield Section("To know:", (), notes, "notes", share=0.1)
    yield _totals(changes)
    for title, found in (
        ("Newly broken", changes.broken),
        ("Vanished", changes.vanished),
        ("Fixed", changes.fixed),
        ("Changed", changes.changed),
        ("New", changes.new),
        ("Slower", changes.slower),
    ):
        if found:
            items = tuple(_alike(changes, found))
            yield Section(f"## {title}: {len(found):,}", (), items, "more kinds of call")


def _totals(changes: Changes) -> Section:
    """A row a target: each verdict's number before and now, where it is not the same."""
    present = [
        verdict
        for verdict in VERDICTS
        if any(m.totals_before[verdict] or m.totals_after[verdict] for m in changes.targets)
    ]
    rows = []
    for match in changes.targets:
        names = [code(name, 80) for name in (match.before, match.after) if name is not None]
        if match.before is None:
            names = [f"{names[0]} (new)"]
        elif match.after is None:
            names = [f"{names[0]} (gone)"]
        cells = [
            " → ".join(dict.fromkeys(names)),
            *(_moved(match.totals_before[v], match.totals_after[v]) for v in present),
            _moved(sum(match.totals_before.values()), sum(match.totals_after.values())),
        ]
        rows.append(_row(cells))
    return Section(
        "## Totals, before → now",
        _head("target", *present, "results"),
        tuple(rows),
        "targets",
        share=0.2,
    )


def _moved(before: int, after: int) -> str:
    return f"{after:,}" if before == after else f"{before:,} → {after:,}"


def _alike(changes: Changes, found: Iterable[Change]) -> Iterator[str]:
    """An item for the cases of one entry whose verdicts moved alike on a target."""
    for entry, members in changes.alike(found):
        first = members[0]
        target = first.target
        if len(members) == 1:
            what = f"- {code(first.case)} on {code(target, 80)}: {code(first.sentence, 700)}"
        else:
            what = (
                f"- {len(members):,} cases of {code(entry)} on {code(target, 80)}; the first is "
                f"{code(first.case)}: {code(first.sentence, 700)}"
            )
        again = first.after if first.kind in ("broken", "changed", "slower") else None
        yield what + (_again(again) if again else "")


# A run


def _summary(joined: Joined) -> Iterator[Section]:
    yield Section("# Conformance of GroupQueryAttention", (), (), "")
    if wrong := tuple(_wrong_with_the_run(joined)):
        heading = f"## What is wrong with the run: {len(wrong):,}"
        yield Section(heading, (), wrong, "problems", share=0.2)
    yield _counts(joined)
    unexpected = sorted(
        ((key, result) for key, result in joined.results.items() if result.unexpected),
        key=lambda item: severity(item[1]),
    )
    if unexpected:
        yield Section(
            f"## Unexpected: {len(unexpected):,}",
            (),
            tuple(_unexpected(label, result) for (_, label), result in unexpected),
            "unexpected results",
            share=0.5,
        )
    yield from _silent(joined)
    yield from _known(joined)
    yield Section("## Versions", (), tuple(_versions(joined)), "lines")


def _wrong_with_the_run(joined: Joined) -> Iterator[str]:
    for problem in joined.problems:
        yield f"- {code(problem)}"
    for column in joined.columns:
        if column.target.unavailable is not None:
            fix = f"; mend it with {code(column.target.fix)}" if column.target.fix else ""
            why = code(column.target.unavailable)
            yield f"- {code(column.label, 80)} was not tried: {why}{fix}"
    for label, trouble in joined.infrastructure:
        about = f", {code(trouble.case)}" if trouble.case else ""
        fix = f"; mend it with {code(trouble.fix)}" if trouble.fix else ""
        yield f"- Infrastructure, {code(label, 80)}{about}: {code(trouble.message)}{fix}"


def _counts(joined: Joined) -> Section:
    counts = {column.label: Counter[str]() for column in joined.columns}
    for (_, label), result in joined.results.items():
        count = counts[label]
        count[result.verdict] += 1
        count["unexpected"] += result.unexpected
        count["known"] += result.known is not None
        count["results"] += 1
    present = [v for v in VERDICTS if any(count[v] for count in counts.values())]
    columns = (*present, "unexpected", "known", "results")
    return Section(
        "## Results",
        _head("target", *columns),
        tuple(
            _row([code(label, 80), *(f"{count[name]:,}" for name in columns)])
            for label, count in counts.items()
        ),
        "targets",
        share=0.2,
    )


def _unexpected(label: str, result: ResultRecord) -> str:
    known = result.expectation
    said = f", expected {known.verdict}" if known is not None else ""
    return (
        f"- **{result.verdict}**{said}: {code(result.case)} on {code(label, 80)}: "
        f"{code(result.reason)}{_again(result)}"
    )


def _again(result: ResultRecord) -> str:
    return f"; again with {code(result.reproduce)}"


def _silent(joined: Joined) -> Iterator[Section]:
    """Wrong numbers without a word, by theme: the most first."""
    themes: dict[str, list[tuple[str, ResultRecord]]] = {}
    for (id, label), result in joined.results.items():
        if is_silent_failure(result):
            case = joined.cases.get(id)
            themes.setdefault(case.theme if case else id, []).append((label, result))
    if not themes:
        return
    items = []
    for theme, members in sorted(themes.items(), key=lambda item: -len(item[1])):
        counts = Counter(label for label, _ in members)
        where = ", ".join(f"{number:,} on {code(label, 80)}" for label, number in counts.items())
        items.append(f"- {code(theme)}: {where}; the first is {code(members[0][1].case)}")
    number = sum(map(len, themes.values()))
    heading = f"## Silently wrong results: {number:,}"
    yield Section(heading, (), tuple(items), "themes", share=0.5)


def _known(joined: Joined) -> Iterator[Section]:
    """The causes of what is expected to go wrong: the worst first."""
    causes: dict[tuple[int, str, str, str, str], list[str]] = {}
    for (id, label), result in joined.results.items():
        known = result.known
        if known is not None:
            key = severity(result), result.verdict, label, known.why, known.link
            causes.setdefault(key, []).append(id)
    if not causes:
        return
    ordered = sorted(causes.items(), key=lambda item: item[0][0])
    items = tuple(
        f"- {len(ids):,} {verdict} on {code(label, 80)}: {code(why)} {link(where)}; "
        f"the first is {code(ids[0])}"
        for (_, verdict, label, why, where), ids in ordered
    )
    heading = f"## Known: {sum(map(len, causes.values())):,}, of {len(causes):,} causes"
    yield Section(heading, (), items, "causes", share=0.7)


def _versions(joined: Joined) -> Iterator[str]:
    for column in joined.columns:
        about = column.target.describe
        if about is None:
            continue
        told = {"device": about.device or "", **about.versions}
        rest = ", ".join(code(f"{name} {said}", 100) for name, said in told.items() if said)
        runtime = code(f"{about.runtime} {about.version}", 100)
        yield f"- {code(column.label, 80)}: {runtime}" + (f", {rest}" if rest else "")
    for run in joined.runs:
        header = run.header
        yield (
            f"- {code(run.path.name, 80)}: suite {code(header.suite, 80)}, corpus "
            f"{code(header.corpus, 80)}, selected {code(header.selection.text, 200)}, "
            f"begun {header.start:%Y-%m-%d %H:%M} {code(header.start.tzname() or '', 20)}"
        )


# Lines, and how many of them there is room for


def _head(*names: str) -> tuple[str, ...]:
    return _row(names), "| --- |" + " ---: |" * (len(names) - 1)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _fitted(sections: Sequence[Section], limit: int) -> str:
    """The sections, with as many items as fit in ``limit`` bytes.

    Room for every heading, and for the line that counts what is left out, is set aside first.
    Then each section takes up to its share, in order; then in order whatever there is.
    """
    frames = [_lines(section, 0) for section in sections]
    room = limit - _size("\n".join(frames)) - len(sections)
    shown = [0] * len(sections)
    for whole in (False, True):
        for number, section in enumerate(sections):
            most = room if whole else min(room, int(section.share * limit))
            for item in section.items[shown[number] :]:
                size = _size(item) + 1
                if size > most:
                    break
                most -= size
                room -= size
                shown[number] += 1
    return "\n".join(_lines(*pair) for pair in zip(sections, shown, strict=True))


def _lines(section: Section, shown: int) -> str:
    lines = [section.heading, "", *section.always, *section.items[:shown]]
    left = len(section.items) - shown
    if left:
        lines += ["", f"… and {left:,} {section.noun} left out here."]
    return "\n".join(lines).rstrip("\n") + "\n"


def _size(text: str) -> int:
    return len(text.encode())
