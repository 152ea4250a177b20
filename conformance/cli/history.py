"""``gqa history``: since which release each call is right, where it broke, where it was fixed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from conformance.base.target_names import at_release, split_release
from conformance.base.tuning import uncollected
from conformance.base.words import not_run
from conformance.case.case import Case
from conformance.case.corpus import find
from conformance.case.excluded import selected_cases
from conformance.cli import options
from conformance.cli.common import BadArgument, Status, check_separate, read_runs, write_file
from conformance.cli.console import make_console
from conformance.cli.options import OutputOptions, TargetOptions, gathered
from conformance.cli.run import (
    Work,
    check_outputs,
    execute,
    place_for,
    plans_of,
    selection_text,
    selection_words,
    write_html,
    write_outputs,
)
from conformance.cli.terminal import RunSummary, Terminal
from conformance.results.descriptions import case_record
from conformance.results.reader import Run
from conformance.results.records import ResultRecord, Selection
from conformance.results.store import Store
from conformance.results.table import Table, tabulate
from conformance.run.recording import header, selection_of
from conformance.run.target import Plan
from conformance.targets.catalogue import OptionValues, entry_of
from conformance.targets.registry import targets_for

#: The suffixes of results files: with ``--from``, arguments with these are results files, too.
_RESULTS: Final = (".jsonl", ".xz")


@dataclass(frozen=True)
class Asked:
    """The calls whose history is printed, and the results files from which it is taken."""

    paths: Sequence[str]
    expression: str
    recorded: Sequence[Path]
    everything: bool


@click.command()
@options.PATHS
@options.EPS
@options.EXPRESSION
@options.JOBS
@click.option(
    "--from",
    "recorded",
    multiple=True,
    type=options.FILE,
    metavar="RESULTS",
    help="Take these results files, run nothing; more may follow.",
)
@options.RESULTS
@options.HTML
@click.option(
    "--json",
    type=options.FILE,
    help="The history of every case, entry and feature.",
)
@click.option("--all", "everything", is_flag=True, help="List every entry and feature.")
@options.program_options
@gathered(targets=TargetOptions, outputs=OutputOptions, asked=Asked)
def history(targets: TargetOptions, outputs: OutputOptions, asked: Asked) -> int:
    """Find since which release calls are right, and where they broke.

    PATH is as in gqa run. A TARGET without a version is the last release of each of its series:
    cpu is every minor version of ONNX Runtime from 1.20 on. Releases are installed as needed.

    \b
    Exit status: 0 printed, regressions or not   2 bad input
                 3 a release could not be tried, or a file could not be written
    """
    if not asked.recorded:
        return _of_runs(asked, targets, outputs)
    if targets.eps or outputs.results:
        raise BadArgument("--from runs nothing: leave out --ep and --results.")
    return _of_files(asked, outputs)


# From recorded results


@uncollected()
def _of_files(asked: Asked, outputs: OutputOptions) -> int:
    """Print the history of results files; paths and expression select from their cases."""
    more = [path for path in asked.paths if path.endswith(_RESULTS)]
    paths = [path for path in asked.paths if path not in more]
    files = [*asked.recorded, *map(Path, more)]
    check_separate(files, outputs.named)
    joined = table = tabulate(read_runs(dict.fromkeys(files)))
    cases: Sequence[Case] = find(()).named
    if paths or asked.expression:
        _, cases = selected_cases(paths, asked.expression)
        joined = _only(joined, {case.id for case in cases})
    again = [*selection_words(paths, asked.expression), "--from", *map(str, files)]
    _print(joined, cases, again, outputs.json, asked.everything)
    if outputs.html is not None:
        write_html(table, outputs.html)
        click.echo(f"Report:  {outputs.html}")
    missing = any(column.target.unavailable is not None for column in joined.columns)
    return Status.INFRASTRUCTURE if joined.infrastructure or missing else Status.AS_EXPECTED


def _only(joined: Table, ids: set[str]) -> Table:
    """The table with the results of these cases. Raises `BadArgument` if there are none."""
    cases = {id: case for id, case in joined.cases.items() if id in ids}
    results = {key: result for key, result in joined.results.items() if key[0] in ids}
    if not results:
        raise BadArgument("The results files have no result of the selected cases.")
    return replace(joined, cases=cases, results=results)


# From runs


class _Summary(RunSummary):
    """The results of many releases without their figures, which would take gigabytes."""

    def add(self, case: Case, record: ResultRecord) -> None:
        without = {"errors": (), "faults": (), "relation": None, "stderr": ""}
        super().add(case, record.model_copy(update=without))


def _of_runs(asked: Asked, wanted: TargetOptions, outputs: OutputOptions) -> int:
    """Run the releases, and print their history; one that cannot be tried does not end the run."""
    corpus, programs = find(asked.paths), wanted.programs
    terminal = Terminal()
    eps = wanted.eps or ("cpu",)
    targets = targets_for([_all_releases(ep, programs) for ep in eps], programs)
    if len(targets) < 2:
        raise BadArgument("A history takes two releases or more; name a range: cpu@1.25..")
    planned = plans_of(corpus, targets, asked.expression)
    check_outputs(planned, outputs)
    text = selection_text(asked.paths, asked.expression)
    selection = selection_of(planned, text, only_failed=False)
    summary = _Summary()
    with place_for(outputs) as place:
        execute(Work(planned, planned, selection), wanted.jobs, place, terminal, summary)
        if summary.targets:
            joined = tabulate([_run_of(summary, planned, selection)])
            again = ["--from", str(outputs.results)] if outputs.results else None
            _print(joined, corpus.named, again, outputs.json, asked.everything)
        if summary.writing:
            terminal.line(f"\n{summary.writing}")
        if place is not None:
            write_outputs(place, outputs, summary, terminal)
    if summary.interrupted:
        return Status.INTERRUPTED
    failed = summary.troubles or summary.untried or summary.writing
    return Status.INFRASTRUCTURE if failed else Status.AS_EXPECTED


def _all_releases(ep: str, programs: OptionValues) -> str:
    """The name for the last release of each series of a target: ``cpu@..`` for ``cpu``.

    Unchanged if it has a version or no releases, or if an option names its program.
    """
    name, release = split_release(ep)
    entry = entry_of(name) if release is None else None
    if entry is None or entry.package is None or programs.values_of(entry.package.option):
        return ep
    return at_release(ep, "..")


def _run_of(summary: RunSummary, planned: Sequence[Plan], selection: Selection) -> Run:
    """The run, as if it were read from a results file without a footer."""
    cases = {case.id: case for plan in planned for case in plan.cases}
    store = Store()
    for _, result in summary.results:
        store.add_result(result, file="this run")
    return Run(
        Path("this run"),
        header(planned, summary.targets, selection),
        store,
        {id: case_record(case) for id, case in cases.items()},
        infrastructure=summary.troubles,
        problems=(f"Stopped: {not_run(summary.not_run)}.",) if summary.not_run else (),
        instability=summary.instability,
    )


# The output


def _print(
    joined: Table,
    cases: Sequence[Case],
    again: Sequence[str] | None,
    json_file: Path | None,
    everything: bool,
) -> None:
    """Print the histories, and the command that prints more; write them to the JSON file, if any.

    ``again`` are the arguments that print them again.
    """
    from conformance.cli.history_table import draw_history, draw_problems
    from conformance.report.history import history_json
    from conformance.results.timeline import histories

    every = histories(joined)
    # A call that may be rejected does not show that a feature works.
    features = {
        case.id: case.features
        for case in cases
        if case.id in joined.cases and not case.is_graph and case.contract.demands == "computes"
    }
    console = make_console()
    draw_problems(console, joined)
    for one in every:
        draw_history(console, joined, one, one.by_feature(features), everything)
    if not every:
        tried = ", ".join(column.label for column in joined.columns)
        text = f"No history: it takes at least two releases of one target, and these are {tried}."
        console.print(text, markup=False, highlight=False)
    elif not everything:
        how = "the same with --results FILE keeps the results; then --all."
        if again is not None:
            how = shlex.join(["gqa", "history", *again, "--all"])
        text = f"Every entry and feature: {how}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if json_file is not None:
        text = json.dumps(history_json(joined, every, features), ensure_ascii=False, indent=1)
        write_file(json_file, "the history", f"{text}\n")
        click.echo(f"JSON:    {json_file}")
