"""``gqa run``: runs cases on targets, writes the results file and prints a summary."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from conformance.base.files import identity
from conformance.base.interrupts import undisturbed
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.case.corpus import Corpus, find, is_shipped, names_of, profile_files
from conformance.case.excluded import none_selected
from conformance.case.selection import compile_expression
from conformance.cli import options
from conformance.cli.common import BadArgument, check_separate, write_file
from conformance.cli.failures import (
    SECONDS,
    effort_for,
    explain_failures,
    make_smaller,
    tell_smallest,
)
from conformance.cli.last_failed import LastRun, only_last_failed
from conformance.cli.options import OutputOptions, TargetOptions, gathered
from conformance.cli.resume import OPTION as OPTION_RESUME
from conformance.cli.resume import Earlier, earlier_run
from conformance.cli.terminal import RunSummary, Terminal
from conformance.harness.folders import temporary_folder
from conformance.harness.runner import RunnerFailed
from conformance.results.descriptions import case_record
from conformance.results.in_memory import StoreInMemory
from conformance.results.place import OutputFile, part_file
from conformance.results.reader import read
from conformance.results.records import (
    Header,
    InfrastructureRecord,
    InstabilityRecord,
    ResultRecord,
    Selection,
    ShardRecord,
)
from conformance.results.results_error import ResultsError
from conformance.results.shipped import shipped_record
from conformance.results.table import Table, tabulate
from conformance.results.verdicts import was_tried
from conformance.results.writer import Writer
from conformance.run.engine import PlanRun
from conformance.run.recording import header, selection_of
from conformance.run.retries import Reported
from conformance.run.shard import Shard, part_of, shard_record
from conformance.run.target import DescribedTarget, Plan, target_plans
from conformance.run.worker import MAX_TARGETS, run_all, usual_jobs
from conformance.targets.registry import Target, eps_of, targets_for

if TYPE_CHECKING:
    from conformance.report.model_table import ModelTable


@dataclass(frozen=True)
class RunOptions:
    """What is run, how long, and what is said about failures."""

    paths: Sequence[str]
    expression: str
    profiles: Sequence[str]
    pinned: Sequence[Path]
    verbose: bool
    explain: bool | None
    first: bool
    maxfail: int | None
    shrink: bool | None
    minutes: float | None
    last_failed: bool
    shard: str | None
    resumed: Path | None
    bisect: bool
    """main() sets the exit status, since click's own errors never come here."""


@click.command()
@options.PATHS
@options.EPS
@options.EXPRESSION
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="MODEL",
    help="The calls of a model, such as gemma4, instead of the corpus; repeat.",
)
@options.JOBS
@options.RESULTS
@options.HTML
@click.option(
    "--expectations",
    "pinned",
    multiple=True,
    type=options.FILE,
    help="Known results of your own runner, build or machine, before the shipped ones; repeat.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Print all failures in full and all known defects, not one of each cause.",
)
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Explain known defects as well as what is unexpected, or nothing.",
)
@click.option("-x", "first", is_flag=True, help="Stop at the first failure, as --maxfail 1.")
@click.option(
    "--maxfail",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N failures: unexpected results and infrastructure failures.",
)
@click.option(
    "--shrink/--no-shrink",
    default=None,
    help="Search for the smallest call that still fails, of every cause; or for none.",
)
@click.option(
    "--save-shrunk",
    type=options.FILE,
    help="As --shrink, and write the smallest calls as a case file.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help=f"Stop after N minutes; {OPTION_RESUME} goes on.",
)
@click.option(
    "--lf",
    "--last-failed",
    "last_failed",
    is_flag=True,
    help="Only cases that failed when they were last run; all if none did.",
)
@click.option(
    "--shard",
    "shard",
    metavar="N/OF",
    help="The N-th of OF parts of the run, such as 3/8.",
)
@click.option(
    OPTION_RESUME,
    "resumed",
    type=options.FILE,
    metavar="RESULTS",
    help="Go on with the run that was cut off in this results file; begin one if there is none.",
)
@click.option(
    "--bisect", is_flag=True, help="Exit statuses for git bisect run: 125 for 3, 128 for 2."
)
@options.program_options
@gathered(targets=TargetOptions, asked=RunOptions, outputs=OutputOptions)
def run(targets: TargetOptions, asked: RunOptions, outputs: OutputOptions) -> int:
    """Run test cases on runtimes, and report what is unexpected.

    PATH is a case file or folder, a theme or a case id of the corpus, or FILE.yaml::name[…], run
    in this order; default: the whole corpus.

    \b
    Exit status: 0 all as expected   1 something unexpected
                 2 bad input         3 infrastructure failure
    With --bisect, as git bisect run needs them: 125 for 3, 128 for 2.
    """
    files = dict.fromkeys(str(file) for name in asked.profiles for file in profile_files(name))
    paths = [*files, *asked.paths]
    until = math.inf if asked.minutes is None else time.monotonic() + 60 * asked.minutes
    part = _shard(asked)
    outputs, earlier = _resumed(asked, outputs)
    corpus, programs = find(paths), targets.programs
    named = targets_for(targets.eps or eps_of(corpus.targets, programs) or ("cpu",), programs)
    planned = plans_of(corpus, named, asked.expression, asked.pinned)
    check_outputs(planned, outputs, asked.pinned)
    selection = selection_text(paths, asked.expression)
    size = _size(planned)
    terminal = Terminal(verbose=asked.verbose)
    if asked.last_failed:
        planned, sentence = only_last_failed(planned)
        terminal.line(sentence)
    work = Work(
        planned, planned, selection_of(planned, selection, only_failed=_size(planned) < size)
    )
    if part is not None:
        mine = part_of(planned, part)
        terminal.line(f"Shard {part}: {_size(mine)} of {plural(_size(planned), 'result')}.")
        work = Work(mine, planned, selection_of(mine, selection), shard=shard_record(planned, part))
    if earlier is not None:
        left = earlier.missing(work.planned)
        done = _size(work.planned) - _size(left)
        terminal.line(f"{asked.resumed} has {plural(done, 'result')}; {_size(left)} are left.")
        work = replace(work, planned=left, earlier=earlier)
    with place_for(outputs) as place:
        summary = RunSummary(until)
        most = 1 if asked.first else asked.maxfail
        execute(work, targets.jobs, place, terminal, summary, most)
        begin = time.monotonic()
        partial = bool(asked.shard or asked.resumed or asked.minutes or asked.bisect)
        effort = effort_for(asked.shrink, partial, outputs.save_shrunk)
        smaller = make_smaller(summary, effort)
        begin = time.monotonic() if effort and effort.thorough else begin
        explain_failures(summary, work.planned, asked.explain, begin + SECONDS, smaller)
        tell_smallest(summary, effort, smaller)
        terminal.summary(summary)
        if place is not None:
            write_outputs(place, outputs, summary, terminal)
    return summary.status()


def _shard(asked: RunOptions) -> Shard | None:
    """The shard to run, such as ``3/8``; None: all. Raises `BadArgument`."""
    if (text := asked.shard) is None:
        return None
    if asked.last_failed:
        raise BadArgument("--shard and --lf: what failed last is known to one machine only.")
    return options.shard_of(text)


def _resumed(asked: RunOptions, outputs: OutputOptions) -> tuple[OutputOptions, Earlier | None]:
    """The files to write, and the run that the results file has already. Raises `BadArgument`."""
    resumed = asked.resumed
    if resumed is None:
        return outputs, None
    if outputs.results is not None and identity(outputs.results) != identity(resumed):
        raise BadArgument(f"{OPTION_RESUME} writes to its own file; leave out --results.")
    if asked.last_failed:
        raise BadArgument(f"{OPTION_RESUME} and --lf select cases each in its own way; give one.")
    return replace(outputs, results=resumed), earlier_run(resumed)


@dataclass(frozen=True)
class Work:
    """The work of one invocation."""

    planned: Sequence[Plan]
    """The cases to run now on each target."""
    whole: Sequence[Plan]
    """The cases of the run before it was divided into shards or cut off."""
    selection: Selection
    """The selection that the results file is to have."""
    shard: ShardRecord | None = None
    earlier: Earlier | None = None
    """The results that are recorded already, with ``--resume``."""


def plans_of(
    corpus: Corpus, targets: Sequence[Target], expression: str, pinned: Sequence[Path] = ()
) -> list[Plan]:
    """The cases to run on each target; ``pinned`` are the user's expectations files.

    Raises `SelectionError` if no case is selected, and `InputError` for invalid expectations.
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


def selection_words(paths: Sequence[str], expression: str) -> list[str]:
    """The selection as arguments of a command."""
    return [*paths, *(["-k", expression] if expression else [])]


def selection_text(paths: Sequence[str], expression: str) -> str:
    """The selection as one text, for the header of the results file."""
    return " ".join(selection_words(paths, expression)) or "whole corpus"


@contextlib.contextmanager
def place_for(outputs: OutputOptions) -> Iterator[OutputFile | None]:
    """The place of results, or a temporary file for the report alone; None if neither is asked."""
    with contextlib.ExitStack() as stack:
        kept = outputs.results
        if kept is None and outputs.html is not None:
            kept = stack.enter_context(temporary_folder()) / "results.jsonl"
        yield None if kept is None else stack.enter_context(OutputFile(kept))


def write_html(table: Table, html: Path, model: ModelTable | None = None) -> None:
    """Write the HTML report of a table, with the answer for a ``model`` if there is one.

    Raises `ResultsError`.
    """
    from conformance.report.html import render  # imports jinja2

    write_file(html, "the report", render(table, model=model))


def write_outputs(
    place: OutputFile,
    outputs: OutputOptions,
    summary: RunSummary,
    terminal: Terminal,
    model: ModelTable | None = None,
) -> None:
    """Write the report, settle the results file, and print the paths of those that were requested.

    ``model`` is the answer for a model, for the report. Raises `ResultsError`.
    """
    html = outputs.html if summary.kept else None
    try:
        if html is not None:
            run = read(place.path, StoreInMemory())
            write_html(tabulate([run]), html, model=model)
    finally:
        if outputs.results is not None:
            _say_where(place, summary, terminal)
    if html is not None:
        terminal.line(f"Report:  {html}")


def _size(plans: Sequence[Plan]) -> int:
    """Number of results of a run: cases times targets."""
    return sum(len(plan.cases) for plan in plans)


def check_outputs(
    planned: Sequence[Plan], outputs: OutputOptions, pinned: Sequence[Path] = ()
) -> None:
    """Raise `ResultsError` for an output that cannot be written, `BadArgument` for an input."""
    inputs = {*pinned, *(case.file for plan in planned for case in plan.cases)}
    inputs |= {file for plan in planned for file in plan.target.expectations}
    parts = []
    if (results := outputs.results) is not None:
        if results.suffix == ".xz":
            raise BadArgument("--results is written as text; name a file without .xz.")
        if outputs.html is not None and identity(results) is None:
            raise BadArgument(f"--html needs a results file that it can read, not {results}.")
        parts = [("--results", part_file(results))]
    check_separate(inputs, [*outputs.named, *parts])
    outputs.check_writable()


def _say_where(place: OutputFile, summary: RunSummary, terminal: Terminal) -> None:
    """Settle the results file, and print the path of its results and that of earlier results."""
    place.settle()
    if place.path == place.named:
        if summary.kept:
            terminal.line(f"Results: {place.path}")
        return
    where = f"{place.path}, of a run that is not whole" if place.tried else "none"
    terminal.line(f"Results: {where}; {place.named} keeps those from before.")


def execute(
    work: Work,
    jobs: int | None,
    results: OutputFile | None,
    terminal: Terminal,
    summary: RunSummary,
    most_failures: int | None = None,
    described: Callable[[DescribedTarget], None] = lambda ready: None,
) -> None:
    """Run every plan of ``work`` into ``summary``, and write results as they come.

    Releases that are not installed are installed before the first case. Cases run in ``jobs``
    processes (None: the usual number), each with one runner for each target. The run stops early
    after ``most_failures`` unexpected results and infrastructure failures. ``described`` is called
    with each target before the first case.
    """
    keep = ResultsKeeper(summary)
    with contextlib.ExitStack() as stack:
        runs: list[PlanRun] = []
        for plan in work.planned:
            ends = most_failures == 1
            runs.append(stack.enter_context(PlanRun(plan, (*runs,), ends_with_failure=ends)))
        try:
            for run in runs:
                terminal.target(run.ready)
                described(run.ready)
                if len(runs) > MAX_TARGETS:
                    run.rest()
            summary.targets = [run.ready for run in runs]
            if results is not None:
                first = header(work.whole, summary.targets, work.selection, work.shard)
                if work.earlier is not None:
                    work.earlier.check(first)
                    first = work.earlier.run.header
                keep.begin(stack, results, first)
            if work.earlier is not None:
                keep.copy(work.earlier, [case for plan in work.whole for case in plan.cases])
            before = keep.recorded
            progress = {id(run): TargetProgress(run, keep) for run in runs}
            for each in progress.values():
                stack.callback(each.last.keep)
            records = stack.enter_context(
                contextlib.closing(
                    run_all(runs, jobs or usual_jobs([plan.target for plan in work.planned]))
                )
            )
            with terminal.progress(_size(work.planned)) as advance:
                for run, case, record in records:
                    if case is None or isinstance(record, RunnerFailed):
                        assert isinstance(record, RunnerFailed)
                        progress[id(run)].give_up(record)
                    else:
                        progress[id(run)].take(case, record)
                        if not isinstance(record, InstabilityRecord):
                            advance(record)
                    given_up = sum(each.left for each in progress.values() if each.given_up)
                    left = _size(work.planned) - (keep.recorded - before)
                    if left > given_up and summary.enough(most_failures):
                        break
            for each in progress.values():
                each.say_if_untried()
            keep.finish(complete=keep.recorded == work.selection.results)
        except KeyboardInterrupt:
            summary.interrupted = True
            keep.finish(complete=False)
        summary.not_run = max(0, work.selection.results - keep.recorded)


class TargetProgress:
    """The progress of one target; ``last`` notes the cases that failed."""

    def __init__(self, run: PlanRun, keep: ResultsKeeper) -> None:
        self._run = run
        self._keep = keep
        self.last = LastRun(run.plan)
        #: Number of cases without a record.
        self.left = len(run.plan.cases)
        self.given_up = False

    def take(self, case: Case, record: Reported) -> None:
        """Keep a record of a case."""
        self._keep.record(case, record)
        if not isinstance(record, InstabilityRecord):
            self.left -= 1
            self.last.note(case, record)

    def give_up(self, why: RunnerFailed) -> None:
        """Record the failure after which no other case of the target can be run."""
        self.given_up = True
        self._keep.trouble(self._run.trouble(why))
        for case in self._run.plan.cases:
            self._keep.case(case)
        self.last.give_up()

    def say_if_untried(self) -> None:
        """Add a sentence to the summary if every case was skipped."""
        ready, summary = self._run.ready, self._keep.summary
        results = [result for _, result in summary.results if result.target == ready.name]
        failed = any(trouble.target == ready.name for trouble in summary.troubles)
        if self.left or failed or not results or any(map(was_tried, results)):
            return
        fix = f"\n  fix: {ready.fix}" if ready.fix else ""
        kernel = self._run.plan.target.entry.kernel
        what = f"no case was tried on {kernel}" if kernel else "every case was skipped"
        summary.untried[ready.name] = f"{ready.name}: {what}: {results[0].reason}{fix}"


class ResultsKeeper:
    """The results of a run: in its summary, and in its results file, if one was requested.

    The run continues if the file cannot be written.
    """

    def __init__(self, summary: RunSummary) -> None:
        self._writer: Writer | None = None
        self.summary = summary
        self._seen: set[str] = set()
        #: Number of cases times targets that have a record.
        self.recorded = 0

    def begin(self, stack: contextlib.ExitStack, place: OutputFile, first: Header) -> None:
        """Begin the results file."""
        try:
            self._writer = stack.enter_context(Writer(place, first))
            self.summary.begun = True
        except ResultsError as error:
            self.summary.writing = error

    def case(self, case: Case) -> None:
        """Write a case, unless it has been written."""
        if case.id not in self._seen:
            self._seen.add(case.id)
            described = shipped_record if is_shipped(case) else case_record
            self._try(lambda writer: writer.case(described(case)))

    def record(self, case: Case, record: Reported) -> None:
        """Keep a record of a case."""
        self.case(case)
        if isinstance(record, ResultRecord):
            self.summary.add(case, record)
            self.recorded += 1
            self._try(lambda writer: writer.result(record))
        elif isinstance(record, InstabilityRecord):
            self._instability(record)
        else:
            self.trouble(record)

    def copy(self, earlier: Earlier, cases: Sequence[Case]) -> None:
        """Copy the records of the part of the run that was recorded before."""
        for case, record in earlier.of(cases):
            self.record(case, record)
        for one in earlier.instability():
            self._instability(one)
        self._try(lambda writer: writer.replace())

    def _instability(self, record: InstabilityRecord) -> None:
        self.summary.instability.append(record)
        self._try(lambda writer: writer.instability(record))

    def trouble(self, record: InfrastructureRecord) -> None:
        """Keep an infrastructure failure, of a case or of a target."""
        self.summary.troubles.append(record)
        self.recorded += record.case is not None
        self._try(lambda writer: writer.infrastructure(record))

    def finish(self, complete: bool) -> None:
        """Write the end of the results file."""
        self._try(lambda writer: writer.finish(complete))

    def _try(self, write: Callable[[Writer], object]) -> None:
        if self._writer is None or self.summary.writing is not None:
            return
        with undisturbed():  # every line that is written is also counted
            try:
                write(self._writer)
            except ResultsError as error:
                self.summary.writing = error
