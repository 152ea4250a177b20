"""The terminal output of ``gqa run``."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from conformance.base.paths import shown
from conformance.base.text import clean
from conformance.base.words import listed, not_run, plural
from conformance.case.case import Case
from conformance.cli.common import Status
from conformance.cli.console import NOTHING, SafeConsole, make_console, plain_table, print_table
from conformance.report.terminal import tell, tell_trouble
from conformance.results.causes import abstract, causes
from conformance.results.descriptions import case_record
from conformance.results.growth import growth_texts
from conformance.results.instability import instability_lines
from conformance.results.records import InfrastructureRecord, InstabilityRecord, ResultRecord
from conformance.results.results_error import ResultsError
from conformance.results.uncalled import uncalled_sentences
from conformance.results.verdicts import TABLE, VERDICTS, ranks_as, verdict_word, was_tried, worst
from conformance.results.wrong_outputs import only_presents
from conformance.run.assessment import CaseResult
from conformance.run.target import DescribedTarget

if TYPE_CHECKING:
    from conformance.diagnosis.explanation import Explanation

#: The largest number of known defects that are listed; more are only counted.
FEW_CAUSES: Final = 8


@dataclass
class RunSummary:
    """The results of a run so far."""

    until: float = math.inf
    """The time of `time.monotonic` at which the run is stopped."""
    results: list[tuple[Case, ResultRecord]] = field(default_factory=list)
    troubles: list[InfrastructureRecord] = field(default_factory=list)
    instability: list[InstabilityRecord] = field(default_factory=list)
    untried: dict[str, str] = field(default_factory=dict)
    """A sentence for each target that tried no case, by its name."""
    begun: bool = False
    """Whether the results file has been started."""
    writing: ResultsError | None = None
    """The error that left the results file incomplete."""
    interrupted: bool = False
    not_run: int = 0
    """The number of cases that were left when the run ended, on all targets together."""
    targets: Sequence[DescribedTarget] = ()
    """The targets of the run, once all are described."""
    explanations: list[str] = field(default_factory=list)
    """What the failures share, and what they are like."""
    explained: list[Explanation] = field(default_factory=list)
    beside: list[tuple[Case, ResultRecord]] = field(default_factory=list)
    """The results of calls that were tried beside the run."""
    smallest: list[str] = field(default_factory=list)
    """Texts about the smallest calls that still fail."""

    def add(self, case: Case, record: ResultRecord) -> None:
        """Add a result."""
        self.results.append((case, record))

    def enough(self, most: int | None) -> bool:
        """Whether time is up, or there are ``most`` failures that make the exit status 1."""
        if time.monotonic() >= self.until:
            return True
        if most is None:
            return False
        unexpected = sum(result.unexpected for _, result in self.results)
        return unexpected + len(self.troubles) + self._unstable >= most

    @property
    def _unstable(self) -> int:
        """The number of unexpected results that did not repeat."""
        return sum(record.unexpected for record in self.instability)

    @property
    def kept(self) -> bool:
        """Whether there is a complete results file."""
        return self.begun and self.writing is None

    def status(self) -> int:
        """The exit status of ``gqa run``."""
        if self.interrupted:
            return Status.INTERRUPTED
        if self.troubles or self.untried or self.writing:
            return Status.INFRASTRUCTURE
        red = self._unstable or any(result.unexpected for _, result in self.results)
        return Status.UNEXPECTED if red else Status.AS_EXPECTED


class Terminal:
    """The output of a run, while it goes on and when it is over.

    If ``verbose``, it lists all unexpected results and known defects, not one of each cause.
    """

    def __init__(
        self, out: Console | None = None, err: Console | None = None, verbose: bool = False
    ) -> None:
        self.out = out or make_console()
        self.err = err or SafeConsole(stderr=True)
        self.verbose = verbose

    def line(self, text: str) -> None:
        """Print untrusted text on one line."""
        self.out.print(clean(text), markup=False, highlight=False, soft_wrap=True)

    def target(self, ready: DescribedTarget) -> None:
        """One line on a target; the summary has the reason if it is not available."""
        if ready.described is not None:
            about = f"{ready.described.runtime} {ready.described.version}"
            self.line(f"{ready.name}: {about} on {ready.described.device}")
        else:
            self.line(f"{ready.name} {'did not start' if ready.broken else 'is not available'}")

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Callable[[CaseResult], None]]:
        """A live progress bar on a terminal, else a line for every tenth of the work.

        The function that it gives counts a record.
        """
        counts: Counter[str] = Counter()
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.description}", markup=False),
        )
        bar = Progress(*columns, console=self.err, transient=True, refresh_per_second=8)
        with bar if self.err.is_terminal else contextlib.nullcontext():
            task = bar.add_task("starting", total=total)

            def count(record: CaseResult) -> None:
                counts[getattr(record, "verdict", "infrastructure")] += 1
                every = (*VERDICTS, "infrastructure")
                words = [f"{counts[w]} {verdict_word(w)}" for w in every if counts[w]]
                bar.update(task, advance=1, description=", ".join(words))
                done = counts.total()
                tenth = done == total or done * 10 // total != (done - 1) * 10 // total
                if tenth and not self.err.is_terminal:
                    text = f"{done}/{total}  {', '.join(words)}"
                    self.err.print(text, markup=False, highlight=False, soft_wrap=True)

            yield count

    def summary(self, summary: RunSummary) -> None:
        """Print the verdicts by theme, unexpected results, known defects and failures.

        If there are only a few results, all of them are printed in full.
        """
        if summary.results:
            self._print_counts(summary)
        few = len(summary.results) <= _FEW
        listed = [
            (case, result)
            for case, result in summary.results
            if result.unexpected or (few and result.outcome != "unavailable")
        ]
        for text in (_in_full if self.verbose else _by_cause)(listed):
            self.line(text)
        for text in summary.explanations:
            self.line(text)
        if summary.smallest:
            self.line("\nSmallest calls that still fail:")
        for text in summary.smallest:
            self.line(text)
        results = [result for _, result in summary.results]
        self._list_known(results, few)
        self._list_skipped(results)
        if not few:
            self._list_warnings(summary.results)
        self.troubles(summary)
        for text in uncalled_sentences(ready.record() for ready in summary.targets):
            self.line("\n" + text)
        self.out.print(_closing(summary), highlight=False, soft_wrap=True)

    def troubles(self, summary: RunSummary) -> None:
        """Print infrastructure failures, unstable results, and targets that tried nothing."""
        for text in _failures(summary.troubles, every=self.verbose):
            self.line(text)
        for text in instability_lines(summary.instability):
            self.line(text)
        tried = (result for _, result in summary.results if was_tried(result))
        for target, text in growth_texts((one.target, one.grown_mb) for one in tried).items():
            self.line(f"\n{target}: {text}")
        writing = [str(summary.writing)] if summary.writing else []
        for text in (*summary.untried.values(), *writing):
            self.line("\n" + text)

    def _print_counts(self, summary: RunSummary) -> None:
        """Print the verdicts of each theme and target."""
        rows: dict[tuple[str, str], list[ResultRecord]] = {}
        for case, result in summary.results:
            rows.setdefault((case.theme, result.target), []).append(result)
        ordered = [*sorted(rows.items()), (("all", ""), [result for _, result in summary.results])]
        print_table(self.out, _table(ordered, summary.instability))

    def _list_known(self, results: Sequence[ResultRecord], printed: bool) -> None:
        """List the known defects, worst first, each with its link and one case.

        All of them if it is verbose; else if there are only a few and they are not yet ``printed``.
        """
        groups = causes((result for result in results if result.known), lambda result: result)
        if not groups or (printed and not self.verbose):
            return
        if len(groups) > FEW_CAUSES and not self.verbose:
            self.line(f"\n{len(groups)} known defects; list them with --verbose.")
            return
        self.line("\nKnown defects:")
        for cause in groups:
            self.line(f"  {len(cause.members)} {cause.sentence}")
            self.line(f"      {cause.known.link}\n      {cause.example.case}")

    def _list_warnings(self, results: Sequence[tuple[Case, ResultRecord]]) -> None:
        """List, once each, the cases that could not detect a fault in some part of their calls."""
        warned = {case.id: (case, r.insensitive) for case, r in results if r.insensitive}
        if not warned:
            return
        self.line("\nWarnings:")
        for case, sentence in list(warned.values())[:FEW_CAUSES]:
            self.line(f"  {shown(case.file)}:{case.line}: {case.label}: {sentence}")
        if len(warned) > FEW_CAUSES:
            self.line(f"  and for {plural(len(warned) - FEW_CAUSES, 'other case')}")

    def _list_skipped(self, results: Sequence[ResultRecord]) -> None:
        """List why targets that tried cases skipped others, the most frequent reason first."""
        tried = {result.target for result in results if was_tried(result)}
        reasons = Counter(
            (result.target, result.reason)
            for result in results
            if not was_tried(result) and result.target in tried
        )
        if not reasons:
            return
        other_kernel = any(result.other_kernel for result in results)
        self.line("\nNot tried:" if other_kernel else "\nSkipped:")
        for (target, reason), cases in reasons.most_common(FEW_CAUSES):
            self.line(f"  {cases} on {target}: {reason}")
        if len(reasons) > FEW_CAUSES:
            self.line(f"  and for {plural(len(reasons) - FEW_CAUSES, 'other reason')}")


def _closing(summary: RunSummary) -> str:
    results = [result for _, result in summary.results]
    known = [result for result in results if result.known and not result.flaky]
    refused = sum(result.verdict == "unsupported" for result in known)
    unexpected = sum(result.unexpected for result in results)
    counts = (
        ("known failure*", len(known) - refused),
        ("known refusal*", refused),
        ("flaky", sum(bool(result.flaky) for result in results)),
        ("vague refusal*", sum(result.vague for result in results)),
        ("hazard*", sum(result.hazard is not None for result in results)),
        ("by another kernel", sum(result.other_kernel for result in results)),
        ("insensitive case*", len({each.case for each in results if each.insensitive})),
        ("unstable", len(summary.instability)),
    )
    parts = [plural(len(results), "result"), f"{unexpected} unexpected"]
    parts += [f"{n} {what.replace('*', 's' if n > 1 else '')}" for what, n in counts if n]
    if summary.untried:
        parts.append(f"nothing tested on {listed(list(summary.untried))}")
    if summary.troubles:
        parts.append(plural(len(summary.troubles), "infrastructure failure"))
    if summary.not_run or summary.interrupted:
        how = "interrupted" if summary.interrupted else "stopped"
        parts.append(f"{how}: {not_run(summary.not_run)}")
    style = "red" if summary.status() else "green"
    return f"\n[{style}]{escape(', '.join(parts))}[/]"


#: The head of the column that counts results whose presents alone are wrong.
_BESIDE: Final = "□ only in presents"

_Counted = tuple[tuple[str, str], Sequence[ResultRecord]]


def _table(rows: Sequence[_Counted], unstable: Sequence[InstabilityRecord]) -> Table:
    """The verdicts of each theme and target; the last row is the total."""
    _, every = rows[-1]
    several = len({result.target for result in every}) > 1
    present = [v for v in VERDICTS if any(result.verdict == v for result in every)]
    table = plain_table()
    table.add_column("theme", no_wrap=True)
    if several:
        table.add_column("target", overflow="fold")
    for verdict in present:
        row = TABLE[verdict]
        head = f"{row.sign} {verdict_word(verdict)}"
        table.add_column(head, justify="right", header_style=row.style, no_wrap=True)
    beside = any(map(only_presents, every))
    if beside:
        table.add_column(_BESIDE, justify="right", no_wrap=True)
    if unstable:
        table.add_column("unstable", justify="right", header_style="yellow", no_wrap=True)
    table.add_column("unexpected", justify="right", no_wrap=True)
    for (theme, target), members in rows:
        cells = [escape(theme), *([escape(target)] if several else [])]
        for verdict in present:
            those = [result for result in members if result.verdict == verdict]
            cells.append(_number(those, TABLE[ranks_as(worst(those))].style if those else ""))
        if beside:
            cells.append(_number([*filter(only_presents, members)], "none"))
        if unstable:
            here = {(result.case, result.target) for result in members}
            met = [one for one in unstable if (one.case, one.target) in here]
            cells.append(_number(met, "yellow"))
        cells.append(_number([result for result in members if result.unexpected], "bold red"))
        table.add_row(*cells)
    return table


def _number(results: Sequence[object], style: str) -> str:
    return f"[{style}]{len(results)}[/]" if results else f"[dim]{NOTHING}[/]"


# The lists of unexpected results and of failures

#: The largest number of results that are all listed in full.
_FEW: Final = 3

#: Of more results one of each cause is listed: in full up to this number of lines …
_SCREENFUL: Final = 40
#: … then this number of causes with a line each; the rest is only counted.
_SHORT: Final = 8
#: The number of ids that are named of the cases with the cause of an example.
_IDS: Final = 3


def _in_full(results: Iterable[tuple[Case, ResultRecord]]) -> Iterator[str]:
    """The text of each result, with all its lines."""
    for case, result in results:
        yield "\n" + "\n".join(tell(case_record(case), result))


def _by_cause(results: Sequence[tuple[Case, ResultRecord]]) -> Iterator[str]:
    """Texts about results: all in full if they are few, else the simplest of each cause."""
    if len(results) <= _FEW:
        yield from _in_full(results)
        return
    from conformance.diagnosis.shared import simplicity  # takes its time

    groups = causes(sorted(results, key=lambda pair: simplicity(pair[0])), lambda pair: pair[1])
    shown = printed = 0
    for cause in groups:
        if printed >= _SCREENFUL:
            break
        shown += 1
        (text,) = _in_full(cause.members[:1])
        if others := [result.case for _, result in cause.members[1:]]:
            text = f"\n{len(cause.members)} {cause.sentence}. One of them:{text}{_also(others)}"
        printed += text.count("\n")
        yield text
    short, left = groups[shown : shown + _SHORT], groups[shown + _SHORT :]
    if short:
        yield "\nOther causes:"
    for cause in short:
        _, first = cause.members[0]
        yield f"  {len(cause.members)} {cause.sentence}\n      {first.reproduce}"
    if left:
        number = plural(sum(len(cause.members) for cause in left), "result")
        yield f"  and {number} of {plural(len(left), 'other cause')}"
    if len(groups) < len(results) or short:
        yield (
            f"\n{len(results)} unexpected results of {plural(len(groups), 'cause')}; "
            "print all in full with --verbose, run only these again with --lf."
        )


def _also(ids: Sequence[str]) -> str:
    """The line that names other cases with the cause of an example."""
    more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
    return f"\n  also      {', '.join(ids[:_IDS])}{more}"


def _failures(troubles: Iterable[InfrastructureRecord], *, every: bool) -> Iterator[str]:
    """The texts of infrastructure failures; without ``every`` one for each message."""
    groups: dict[tuple[str, str, str | None], list[InfrastructureRecord]] = {}
    for number, trouble in enumerate(troubles):
        message = str(number) if every else abstract(trouble.message, trouble.target)
        groups.setdefault((trouble.target, message, trouble.fix), []).append(trouble)
    for first, *others in groups.values():
        ids = [trouble.case for trouble in others if trouble.case]
        yield f"\n{tell_trouble(first)}{_also(ids) if ids else ''}"
