"""``gqa run``: runs cases on targets, writes the results file and prints a summary."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from conformance.base.files import identity
from conformance.base.interrupts import undisturbed
from conformance.bundle.cache import BundleError
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find, names_of
from conformance.case.excluded import none_selected
from conformance.case.selection import compile_expression
from conformance.cli import completion
from conformance.cli.common import BadArgument, check_separate, check_writable
from conformance.cli.console import SafeConsole
from conformance.cli.env import with_releases
from conformance.cli.last_failed import LastRun, check_results_file, only_last_failed
from conformance.cli.options import EXPRESSION, PATHS, program_options
from conformance.cli.report import write_html
from conformance.cli.terminal import Detail, RunSummary, Terminal, make_console
from conformance.harness.process import RunnerFailed
from conformance.results.errors import ResultsError
from conformance.results.place import Place, places_beside
from conformance.results.reader import read
from conformance.results.records import (
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    ResultRecord,
    Selection,
)
from conformance.results.verdicts import was_tried
from conformance.results.writer import Writer
from conformance.run.assessment import Record
from conformance.run.engine import TargetRun
from conformance.run.records import case_record, header, selection_of
from conformance.run.target import TargetPlan, target_plans
from conformance.targets.catalogue import Programs, target_names
from conformance.targets.registry import Target, eps_of, targets_for

if TYPE_CHECKING:
    from conformance.report.model_table import ModelTable


#: Of more targets than this, a runner that has described itself ends, and starts again in its
#: turn: each can hold hundreds of megabytes.
MOST_WAITING: Final = 4


@click.command()
@PATHS
@click.option(
    "--ep",
    "eps",
    multiple=True,
    metavar="TARGET",
    help=f"{', '.join(target_names())}; repeat.",
    shell_complete=completion.targets,
)
@EXPRESSION
@click.option("-j", "--jobs", default=1, type=click.IntRange(1, 64), help="Runner processes.")
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), help="Results file.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="HTML report.")
@click.option(
    "--expectations",
    "pinned",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Known results of your own runner, build or machine, before the shipped ones; repeat.",
)
@click.option("--known", is_flag=True, help="List all known defects.")
@click.option(
    "--unexpected", is_flag=True, help="Print all failures in full, not one of each cause."
)
@click.option("-x", "first", is_flag=True, help="Stop at the first failure, as --maxfail 1.")
@click.option(
    "--maxfail",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N failures: unexpected results and infrastructure failures.",
)
@click.option(
    "--lf",
    "--last-failed",
    "last_failed",
    is_flag=True,
    help="Only cases that failed when they were last run; all if none did.",
)
@click.option(
    "--durations", type=click.IntRange(0), metavar="N", help="List the N slowest cases; 0: all."
)
@click.option(
    "--bisect", is_flag=True, help="Exit statuses for git bisect run: 125 for 3, 128 for 2."
)
@program_options
def run(
    paths: Sequence[str],
    eps: Sequence[str],
    expression: str,
    jobs: int,
    results: Path | None,
    html: Path | None,
    pinned: Sequence[Path],
    known: bool,
    unexpected: bool,
    first: bool,
    maxfail: int | None,
    last_failed: bool,
    durations: int | None,
    bisect: bool,  # main() sets the exit status, since click's own errors never come here
    programs: Programs,
) -> int:
    """Run cases on targets, judge the results, and report what is unexpected.

    PATH is a case file or folder, a theme or a case id of the corpus, or FILE.yaml::name[…];
    default: the whole corpus.

    \b
    Exit status: 0 all as expected   1 something unexpected
                 2 bad input         3 infrastructure failure
    With --bisect, as git bisect run needs them: 125 for 3, 128 for 2.
    """
    corpus = find(paths)
    targets = targets_for(eps or eps_of(corpus.targets, programs) or ("cpu",), programs)
    planned = plans_of(corpus, targets, expression, pinned)
    outputs = [(f"--{name}", path) for name, path in (("results", results), ("html", html)) if path]
    check_outputs(planned, outputs, pinned)
    selection = selection_text(paths, expression)
    size = _size(planned)
    detail = Detail(known, unexpected, durations)
    terminal = Terminal(make_console(), SafeConsole(stderr=True), detail)
    if last_failed:
        check_results_file(results)
        planned, told = only_last_failed(planned)
        terminal.line(told)
    asked = selection_of(planned, selection, only_failed=_size(planned) < size)
    with contextlib.ExitStack() as stack:
        kept = results
        if kept is None and html is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gqa-"))
            kept = Path(folder) / "results.jsonl"
        place = stack.enter_context(Place(kept)) if kept is not None else None
        summary = execute(planned, jobs, place, asked, terminal, 1 if first else maxfail)
        if place is not None:
            write_outputs(place, results, html, summary, terminal)
    return summary.status()


def plans_of(
    corpus: Corpus, targets: Sequence[Target], expression: str, pinned: Sequence[Path] = ()
) -> list[TargetPlan]:
    """What of the corpus to run on each target; ``pinned`` are the user's expectations files.

    Raises `SelectionError` if that is nothing at all, and `InputError` for wrong expectations.
    """
    labels = [target.label for target in targets]
    corpus.check_targets(labels)
    selects = compile_expression(expression)
    planned = target_plans(
        corpus.loaded,
        targets,
        selected=lambda case, target: (
            corpus.selects(case, target.label) and selects(names_of(case, target.label), case)
        ),
        whole_corpus=corpus.whole,
        pinned=pinned,
    )
    if not any(plan.cases for plan in planned):
        raise none_selected(
            selects,
            [
                ([x for label in labels for x in names_of(case, label)], case)
                for case in corpus.named
            ],
        )
    return planned


def selection_text(paths: Sequence[str], expression: str) -> str:
    """The selection as it is typed in the command."""
    return " ".join([*paths, *(["-k", expression] if expression else [])]) or "whole corpus"


def write_outputs(
    place: Place,
    results: Path | None,
    html: Path | None,
    summary: RunSummary,
    terminal: Terminal,
    model: ModelTable | None = None,
) -> None:
    """Write the report, settle the results file, and say where they are, as far as they are wanted.

    The report has the answer for a ``model`` if given. Raises `ResultsError`.
    """
    try:
        if html is not None and summary.kept:
            write_html([read(place.path)], html, model=model)
    finally:
        if results is not None:
            _say_where(place, summary, terminal)
    if html is not None and summary.kept:
        terminal.line(f"Report:  {html}")


def _size(plans: Sequence[TargetPlan]) -> int:
    """Number of results of a run: cases times targets."""
    return sum(len(plan.cases) for plan in plans)


def check_outputs(
    planned: Sequence[TargetPlan],
    outputs: Sequence[tuple[str, Path]],
    pinned: Sequence[Path] = (),
) -> None:
    """Raise `BadArgument` or `ResultsError` for outputs that cannot be written or must not be."""
    inputs = {*pinned, *(case.file for plan in planned for case in plan.cases)}
    for plan in planned:
        target = plan.target
        programs = {Path(word) for word in target.command.argv if os.path.isabs(word)}
        inputs |= {*target.expectations, *programs}
        inputs |= {target.program.path} if target.program else set()
    named, beside = dict(outputs), list[tuple[str, Path]]()
    if (results := named.get("--results")) is not None:
        if results.suffix == ".xz":
            raise BadArgument("--results is written as text; name a file without .xz.")
        if "--html" in named and identity(results) is None:
            raise BadArgument(f"--html needs a results file that it can read, not {results}.")
        others = places_beside(results)
        beside = [("--results", path) for path in others if identity(path) != identity(results)]
    check_separate(inputs, [*outputs, *beside])
    for option, path in outputs:
        check_writable(path, "results" if option == "--results" else "the report")


def _say_where(place: Place, summary: RunSummary, terminal: Terminal) -> None:
    """Settle the results file, and say where its results are, and those from before it."""
    try:
        place.settle()
    except ResultsError as error:
        summary.writing = error
        terminal.line(str(error))
    if place.earlier == place.named:
        terminal.line(f"Results: none; {place.named} keeps those from before.")
    elif summary.kept:
        terminal.line(f"Results: {place.path}")
    if place.kept:
        terminal.line(f"Results from before: {', '.join(map(str, place.kept))}")


def execute(
    planned: Sequence[TargetPlan],
    jobs: int,
    results: Place | None,
    selection: Selection,
    terminal: Terminal,
    most_failures: int | None = None,
) -> RunSummary:
    """Run every plan, write results as they come, and print the summary.

    The run stops early after ``most_failures`` unexpected results and infrastructure failures.
    """
    summary = RunSummary()
    run_plans(planned, jobs, results, selection, terminal, summary, most_failures)
    terminal.summary(summary)
    return summary


def run_plans(
    planned: Sequence[TargetPlan],
    jobs: int,
    results: Place | None,
    selection: Selection,
    terminal: Terminal,
    summary: RunSummary,
    most_failures: int | None = None,
) -> None:
    """Run every plan into ``summary``, and write results as they come.

    Releases that are not installed are installed first. Only the target whose turn it is has
    ``jobs`` runner processes; its processes end with it.
    """
    targets = with_releases([plan.target for plan in planned])
    planned = [replace(plan, target=target) for plan, target in zip(planned, targets, strict=True)]
    keep = ResultsKeeper(summary)
    with contextlib.ExitStack() as stack:
        runs: list[TargetRun] = []
        for plan in planned:
            runs.append(stack.enter_context(TargetRun(plan, jobs, tuple(runs))))
        try:
            for run in runs:
                terminal.target(run.ready)
                if len(runs) > MOST_WAITING:
                    run.rest()
            summary.targets = readies = [run.ready for run in runs]
            if results is not None:
                keep.begin(stack, results, header(planned, readies, selection))
            with terminal.progress(_size(planned)) as advance:
                for number, run in enumerate(runs):
                    left = _run_one_target(run, keep, summary, advance, most_failures)
                    run.close()
                    left += sum(len(later.plan.cases) for later in runs[number + 1 :])
                    if left and summary.enough(most_failures):
                        summary.stopped_before = left
                        break
            keep.finish(complete=keep.recorded == _size(planned))
        except KeyboardInterrupt:
            summary.interrupted = True
            keep.finish(complete=False)


def _run_one_target(
    run: TargetRun,
    keep: ResultsKeeper,
    summary: RunSummary,
    advance: Callable[[Case, Record], None],
    most_failures: int | None,
) -> int:
    """Run a target's cases; the number of those that are left when there are enough failures."""
    last = LastRun(run.plan)
    before = keep.recorded
    tried = 0
    skipped = ""
    try:
        for case, record in run.run():
            keep.case(case)
            if isinstance(record, InstabilityRecord):
                keep.instability(record)
            else:
                if isinstance(record, InfrastructureRecord):
                    keep.trouble(record)
                else:
                    keep.result(case, record)
                if isinstance(record, ResultRecord) and not was_tried(record):
                    skipped = skipped or record.reason
                else:
                    tried += 1
                last.note(case, record)
                advance(case, record)
            if summary.enough(most_failures):
                return len(run.plan.cases) - (keep.recorded - before)
    except (RunnerFailed, BundleError) as error:
        keep.trouble(run.trouble(error))
        for case in run.plan.cases:
            keep.case(case)
        last.give_up()
        return 0
    finally:
        last.keep()
        summary.starts[run.ready.name] = run.start_seconds
    if skipped and not tried:
        ready = run.ready
        fix = f"\n  fix: {ready.fix}" if ready.fix else ""
        kernel = run.plan.target.kernel
        what = f"no case was tried on {kernel}" if kernel else "every case was skipped"
        summary.untried[ready.name] = f"{ready.name}: {what}: {skipped}{fix}"
    return 0


class ResultsKeeper:
    """Writes the results file, if one was requested; the run continues if writing fails."""

    def __init__(self, summary: RunSummary) -> None:
        self._writer: Writer | None = None
        self._summary = summary
        self._seen: set[str] = set()
        #: Number of cases times targets that have a record of their own.
        self.recorded = 0

    def begin(self, stack: contextlib.ExitStack, place: Place, first: Header) -> None:
        try:
            self._writer = stack.enter_context(Writer(place, first))
            self._summary.begun = True
        except ResultsError as error:
            self._summary.writing = error

    def case(self, case: Case) -> None:
        if case.id not in self._seen:
            self._seen.add(case.id)
            self._try(lambda writer: writer.case(case_record(case)))

    def result(self, case: Case, record: ResultRecord) -> None:
        self.recorded += self._summary.add(case, record)
        self._try(lambda writer: writer.result(record))

    def instability(self, record: InstabilityRecord) -> None:
        self._summary.instability.append(record)
        self._try(lambda writer: writer.instability(record))

    def trouble(self, record: InfrastructureRecord) -> None:
        self._summary.troubles.append(record)
        self.recorded += record.case is not None
        self._try(lambda writer: writer.infrastructure(record))

    def finish(self, complete: bool) -> None:
        self._try(lambda writer: writer.finish(complete))

    def _try(self, write: Callable[[Writer], None]) -> None:
        if self._writer is None or self._summary.writing is not None:
            return
        with undisturbed():  # every line that is written is also counted
            try:
                write(self._writer)
            except ResultsError as error:
                self._summary.writing = error
