"""Markdown for the summary of a CI job: a run, and the changes from a baseline.

Sentences have no markup, mentions of people or references to issues: what could be one is in a code
span, as names are. CI systems do not show a summary that is too long, so its size is limited, and
it has the number of omitted items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from conformance.base.interrupts import undisturbed
from conformance.base.tuning import one_thread
from conformance.report.history import release_rows, sentence
from conformance.report.repro.escaping import code, link, prose
from conformance.results.causes import Cause, causes
from conformance.results.compare import Change, RunDifferences
from conformance.results.instability import instability_examples, instability_text
from conformance.results.records import ResultRecord
from conformance.results.score import FEW_TARGETS, SHOWN, Score, in_words, shown_parts
from conformance.results.shareable import shared_command
from conformance.results.table import Cell, Table
from conformance.results.timeline import History, histories, older_labels
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import VERDICTS, verdict_word

if TYPE_CHECKING:
    from conformance.diagnosis.explanation import Explanation

#: The largest size of a summary, in bytes of UTF-8.
MOST_BYTES: Final = 60_000
#: The largest size of the changes in a report that also has a summary, in bytes.
_FOR_CHANGES: Final = 30_000


@dataclass(frozen=True)
class Section:
    """A heading, lines that are always shown, and as many items as there is room for.

    ``noun`` is the name of the items in the line about omitted ones. ``share`` is the share of the
    page that the section may use before later sections get theirs.
    """

    heading: str
    items: Sequence[str]
    noun: str
    share: float = 1.0
    always: Sequence[str] = ()


def changes_markdown(changes: RunDifferences, limit: int = MOST_BYTES) -> str:
    """The changes in at most ``limit`` bytes: why the run is worse, totals, then each kind."""
    return _fitted([*_changes(changes)], limit)


def summary_markdown(table: Table, limit: int = MOST_BYTES) -> str:
    """The summary of one or more runs in at most ``limit`` bytes, problems of the runs first."""
    return _fitted([*_summary(table)], limit)


def report_markdown(table: Table, changes: RunDifferences | None = None) -> str:
    """The summary, after the changes if there are any."""
    if changes is None:
        return summary_markdown(table)
    first = changes_markdown(changes, _FOR_CHANGES)
    return f"{first}\n{summary_markdown(table, MOST_BYTES - len(first.encode()) - 1)}"


# What changed


def _changes(changes: RunDifferences) -> Iterator[Section]:
    heading = "# Worse than the baseline" if changes.worse else "# Not worse than the baseline"
    yield Section(heading, [f"- {prose(reason)}" for reason in changes.reasons], "reasons", 0.2)
    if changes.notes:
        yield Section("Notes:", [f"- {prose(note)}" for note in changes.notes], "notes", 0.1)
    yield _totals(changes)
    yield from _shared(_explanations(changes))
    for heading, members in changes.kinds():
        items = [*_groups(changes, members)]
        yield Section(f"## {heading}: {len(members):,}", items, "more groups")


def _explanations(of: Table | RunDifferences) -> list[Explanation]:
    """What the unexpected results of a table share, or the newly broken ones of changes."""
    if isinstance(of, RunDifferences) and not of.by_kind["broken"]:
        return []
    with one_thread(), undisturbed():  # NumPy, ONNX and pydantic, as commands do
        from conformance.diagnosis import explanation
    if isinstance(of, RunDifferences):
        return explanation.explanations_of_changes(of)
    return explanation.explanations_of(of)


def _shared(explanations: Iterable[Explanation]) -> Iterator[Section]:
    """What failures share, a section for each kind of failure."""
    for one in explanations:
        if lines := one.lines:
            yield Section(
                f"**{prose(lines[0], 300)}**", [f"- {prose(x)}" for x in lines[1:]], "lines", 0.1
            )


def _totals(changes: RunDifferences) -> Section:
    """A row for each target with the numbers of its verdicts, before and now if they differ."""
    verdicts = changes.verdicts
    rows = [
        _row([match.title(lambda label: code(label, 80)), *match.counts(verdicts)])
        for match in changes.targets
    ]
    head = _head("target", *map(verdict_word, verdicts), "results")
    return Section("## Totals, before → now", rows, "targets", 0.2, head)


def _groups(changes: RunDifferences, changed: Iterable[Change]) -> Iterator[str]:
    """An item for each cause for which cases changed from and to the same verdicts."""
    for rows, members in changes.grouped(changed):
        first = members[0]
        where, what = f" on {code(first.target, 80)}", prose(first.sentence, 700)
        item = f"{code(first.case)}{where}: {what}"
        if len(members) > 1:
            of = code(rows[0]) if len(rows) == 1 else f"{len(rows):,} rows"
            item = f"{len(members):,} cases of {of}{where}, such as {code(first.case)}: {what}"
        repeated = first.after if first.kind in ("broken", "changed") else None
        yield f"- {item}" + (_reproduce(repeated) if repeated else "")


# A run


def _summary(table: Table) -> Iterator[Section]:
    yield Section("# Conformance of GroupQueryAttention", (), "")
    if problems := [*_problems(table)]:
        yield Section(f"## Problems of the run: {len(problems):,}", problems, "problems", 0.2)
    if uncalled := uncalled_sentences(column.target for column in table.columns):
        items = [f"- {prose(sentence)}" for sentence in uncalled]
        yield Section("## Parts of the operator that no case calls", items, "runtimes", 0.1)
    series = histories(table)
    yield from _scores(table, series)
    for history in series:
        yield from _releases(table, history)
    yield _counts(table)
    unexpected = [cell for cell in table.cells if cell.mark == "unexpected"]
    if unexpected:
        by_cause = causes(unexpected, lambda cell: cell.result, lambda cell: cell.label)
        heading = f"## Unexpected results: {len(unexpected):,}"
        items = [*map(_cause, by_cause)]
        yield from _shared(_explanations(table))
        yield Section(heading, items, "other causes", 0.5)
    yield from _silent(table)
    yield from _known(table)
    yield Section("## Versions", [*_versions(table)], "lines")


def _problems(table: Table) -> Iterator[str]:
    for trouble in table.troubles():
        where, message = code(trouble.label, 80), prose(trouble.message)
        about = f", {code(trouble.case)}" if trouble.case else ""
        sentence = {
            "problem": message,
            "not tried": f"{where} was not tried: {message}",
            "failure": f"Infrastructure failure, {where}{about}: {message}",
        }[trouble.kind]
        yield f"- {sentence}" + (f"; fix: {code(trouble.fix)}" if trouble.fix else "")
    for label, text in table.growth().items():
        yield f"- {code(label, 80)}: {code(text)}"
    for label, records in table.instability.items():
        yield f"- {code(label, 80)}: {prose(instability_text(records))}"
        yield from (f"  - {prose(text, 700)}" for text in instability_examples(records))


def _scores(table: Table, series: Sequence[History]) -> Iterator[Section]:
    """The scores by target, then by theme: profiles of models first, then the largest gaps.

    By theme, there are only columns for the newest release of each target. If these are many, the
    themes come first, in words.
    """
    by_label = {column.label: table.scores([column.label]) for column in table.columns}
    newest = [label for label in by_label if label not in older_labels(series)]
    shared = table.shared_scores(newest)
    beside = ["right of calls tried by all"] if shared else []
    others = [part for part in shown_parts(by_label.values()) if part != "right"]
    names = ["right of asked", *beside, *(SHOWN[part].label for part in others), "not tried"]
    rows = []
    for label, scores in by_label.items():
        score = scores.whole
        numbers = [*(score.parts[part] for part in others), score.not_tried]
        asked = [_right(score, percent=True)]
        if shared:
            asked.append(_right(shared[label], percent=True) if label in shared else "")
        asked += [f"{number:,}" for number in numbers]
        rows.append(_row([code(label, 80), *asked, _right(scores.requested)]))
    note = "Calls that were tried; those that are only requested are counted apart."
    head = (note, "", *_head("target", *names, "right of requested"))
    by_target = Section("## Score", rows, "targets", 0.2, head)
    shown = [by_label[label].themes for label in newest]
    themes = list(shown[0]) if shown else []
    by_theme = {theme: [scores[theme] for scores in shown] for theme in themes}

    def place(theme: str) -> tuple[bool, int]:
        return theme not in table.profiles, sum(each.right - each.asked for each in by_theme[theme])

    many = len(newest) > FEW_TARGETS
    told = _told if many else _right
    rows = [_row([code(theme), *map(told, by_theme[theme])]) for theme in sorted(themes, key=place)]
    note = "Specified calls that are right, of those that were tried."
    if many:
        note = "Specified calls that were tried, the worst result first."
    head = (note, "", *_head("theme", *(code(label, 80) for label in newest)))
    by_themes = Section("## Score by theme", rows, "themes", 0.15, head)
    sections = (by_themes, by_target) if many else (by_target, by_themes)
    yield from sections if rows else (by_target,)


def _releases(table: Table, history: History) -> Iterator[Section]:
    """The releases of a target, the newest first, and the cases that regressed, by entry."""
    name, whole = history.series.name, history.whole
    rows = []
    for row in reversed(release_rows(table, history)):
        version = code(row.release.version, 80)
        if row.release.unavailable:
            rows.append(_row([version, "not available", "", "", ""]))
            continue
        numbers = (*row.changed.values(), row.score.not_tried)
        rows.append(_row([version, _right(row.score), *(f"{n:,}" for n in numbers)]))
    head = _head("release", "right of asked", "broken", "fixed", "not tried")
    yield Section(f"## Releases of {code(name, 80)}", rows, "releases", 0.1, head)
    regressed = [group for group in history.entries if group.regressed]
    if not regressed:
        return
    regressed.sort(key=lambda group: -len(group.regressed))
    items = [
        f"- {code(group.name)}: {len(group.regressed):,} of {len(group.members):,}; the first is "
        f"{code(group.regressed[0].case)}: {prose(sentence(group.regressed[0]))}"
        for group in regressed
    ]
    heading = f"## Regressed on {code(name, 80)}: {len(whole.regressed):,}"
    note = "Right in an earlier release, and not in the last one in which they were tried."
    yield Section(heading, items, "rows", 0.2, (note, ""))


def _right(score: Score, percent: bool = False) -> str:
    if not score.asked:
        return "none asked"
    share = f" ({score.percent} %)" if percent else ""
    return f"{score.right:,} of {score.asked:,}{share}"


def _told(score: Score) -> str:
    return "; ".join(map(": ".join, in_words(score))) or "not tried"


def _counts(table: Table) -> Section:
    counts = {column.label: Counter[str]() for column in table.columns}
    for cell in table.cells:
        counts[cell.label].update(filter(None, (cell.verdict, cell.mark, "results")))
        counts[cell.label]["unstable"] = len(table.instability.get(cell.label, ()))
    present = [v for v in VERDICTS if any(count[v] for count in counts.values())]
    unstable = ("unstable",) if table.instability else ()
    columns = (*present, *unstable, "unexpected", "known", "results")
    rows = [
        _row([code(label, 80), *(f"{count[name]:,}" for name in columns)])
        for label, count in counts.items()
    ]
    return Section("## Results", rows, "targets", 0.2, _head("target", *map(verdict_word, columns)))


def _cause(cause: Cause[Cell]) -> str:
    """A cause with its known defect, or else the reason of an example and how to reproduce it."""
    result = cause.example
    expected = result.expectation
    what, known = f"**{cause.verdict}** on {code(cause.label, 80)}", result.known
    if expected and not known:
        what += f", expected {verdict_word(expected.verdict)}"
    why = prose(known.why if known else result.reason.rstrip("."))
    source = f" {link(known.link, code)}" if known else ""
    such = f"{code(result.case)}{'' if known else _reproduce(result)}"
    return f"- {len(cause.members):,} {what}: {why}{source}; such as {such}"


def _reproduce(result: ResultRecord) -> str:
    return f"; reproduce: {code(shared_command(result.reproduce))}"


def _silent(table: Table) -> Iterator[Section]:
    """The silently wrong results by theme, the largest number first."""
    themes: dict[str, list[Cell]] = {}
    for cell in table.cells:
        if cell.silent:
            themes.setdefault(cell.theme if cell.case else cell.result.case, []).append(cell)
    if not themes:
        return
    items = []
    for theme, members in sorted(themes.items(), key=lambda item: -len(item[1])):
        counts = Counter(cell.label for cell in members)
        only = Counter(cell.label for cell in members if cell.only_presents)
        where = ", ".join(
            f"{number:,} on {code(label, 80)}{_only(only[label])}"
            for label in (column.label for column in table.columns)
            if (number := counts[label])
        )
        items.append(f"- {code(theme)}: {where}; the first is {code(members[0].result.case)}")
    number = sum(map(len, themes.values()))
    presents = sum(cell.only_presents for members in themes.values() for cell in members)
    heading = f"## Silently wrong results: {number:,}{_only(presents)}"
    yield Section(heading, items, "themes", 0.5)


def _only(presents: int) -> str:
    """The number of results that are wrong only in presents, in brackets; empty if none is."""
    return f" ({presents:,} only in presents)" if presents else ""


def _known(table: Table) -> Iterator[Section]:
    """The results with a known defect by cause, the worst first."""
    known = [cell for cell in table.cells if cell.result.known]
    if not known:
        return
    by_cause = causes(known, lambda cell: cell.result, lambda cell: cell.label)
    heading = f"## Results with a known defect: {len(known):,}, of {len(by_cause):,} causes"
    yield Section(heading, [*map(_cause, by_cause)], "causes", 0.7)


def _versions(table: Table) -> Iterator[str]:
    for column in table.columns:
        about = column.target.describe
        if about is None:
            continue
        versions = {"device": about.device or "", **about.versions}
        rest = ", ".join(code(f"{name} {text}", 100) for name, text in versions.items() if text)
        runtime = code(f"{about.runtime} {about.version}", 100)
        yield f"- {code(column.label, 80)}: {runtime}" + (f", {rest}" if rest else "")
    for run in table.runs:
        header = run.header
        yield (
            f"- {code(run.path.name, 80)}: suite {code(header.suite, 80)}, corpus "
            f"{code(header.corpus, 80)}, selected {code(header.selection.text, 200)}, "
            f"started {header.start:%Y-%m-%d %H:%M} {code(header.start.tzname() or '', 20)}"
        )


# Layout


def _head(*names: str) -> tuple[str, ...]:
    return _row(names), "| --- |" + " ---: |" * (len(names) - 1)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _fitted(sections: Sequence[Section], limit: int) -> str:
    """The sections, with as many items as fit in ``limit`` bytes.

    Headings and the lines about omitted items are always there. Of the remaining space, each
    section first uses up to its share; then the sections use the rest, in their order.
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
        lines += ["", f"… and {left:,} {section.noun} omitted."]
    return "\n".join(lines).rstrip("\n") + "\n"


def _size(text: str) -> int:
    return len(text.encode())
