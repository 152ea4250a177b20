"""``gqa power``: which known faults the cases detect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from conformance.base.paths import INSTALLED
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    INFRASTRUCTURE,
    UNEXPECTED,
    BadArgument,
    check_writable,
    say,
)
from conformance.cli.console import SafeConsole
from conformance.cli.options import EXPRESSION, JOBS, PATHS, selected_cases
from conformance.cli.terminal import Terminal, make_console
from conformance.harness.runner import RunnerFailed


@click.command()
@PATHS
@EXPRESSION
@click.option(
    "--mutant",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this one, NAME@PREDICATE in some calls only; repeat.",
)
@JOBS
@click.option(
    "--json", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write all numbers."
)
@click.option("--reduced", is_flag=True, help="Run each mutant on its recorded killers only.")
@click.option("--quick", is_flag=True, help="Stop a mutant once three themes detect it.")
@click.option("--record", is_flag=True, help="Record the killers and the table in docs/power.md.")
def power(
    paths: Sequence[str],
    expression: str,
    names: Sequence[str],
    jobs: int | None,
    file: Path | None,
    reduced: bool,
    quick: bool,
    record: bool,
) -> int:
    """Run cases on kernels with a known fault, and list the faults that no case detects.

    A mutant can be at fault in some calls only and correct in others, by an expression over the
    fields of the kernel's call: ``--mutant "window_one_longer@batch > 1"``.

    \b
    Exit status: 0 every mutant is killed; if the whole corpus is run, by cases of two themes
                 1 a mutant is not, or the correct kernel fails
                 2 bad input         3 infrastructure
    """
    from conformance.cli import power_table as shown
    from conformance.maintain import power as mutants
    from conformance.run.worker import usual_jobs

    if record and INSTALLED:
        raise BadArgument("--record writes to docs/ and mutants/, so it needs a checkout.")
    if file is not None:
        check_writable(file, "the table")
    try:
        known = {mutant.name: mutant for mutant in mutants.known_mutants()}
        for name in names:
            if name.partition("@")[0] not in known:
                raise BadArgument(f"There is no mutant '{name}'.")
        corpus, cases = selected_cases(paths, expression)
        whole = corpus.whole and len(cases) == len(corpus.loaded) and not reduced
        cases = [case for case in cases if mutants.can_run(case) or (paths and case.is_graph)]
        if record and (names or not whole):
            raise BadArgument("--record requires the whole corpus and all mutants.")
        chosen = [
            replace(known[name.partition("@")[0]], name=name)
            for name in dict.fromkeys(names or known)
        ]
        processes = jobs or usual_jobs(())
        only = mutants.recorded_killers() if reduced else None
        if only is not None:
            why = mutants.stale(only, {case.id for case in corpus.loaded}, known)
            if why:
                raise BadArgument(f"{mutants.KILLERS}: {why}; run gqa power --record.")
            killers = {case for name in names or known for case in only[name.partition("@")[0]]}
            cases = [case for case in cases if case.id in killers]
        made = mutants.Power(chosen, cases, processes, only, quick)
        terminal = Terminal(make_console(), SafeConsole(stderr=True))
        with terminal.bars() as watch:
            made.run(watch)
    except (mutants.PowerError, RunnerFailed) as error:
        say(str(error))
        return INFRASTRUCTURE
    terminal.out.print(shown.table(made.scores))
    told = list(shown.told(made, whole))
    for sentence in (*told, "", shown.correct_line(made), shown.closing(made)):
        terminal.line(sentence)
    if file is not None:
        made.write_json(file)
    if record:
        mutants.record_killers(made.scores)
        shown.write_page(made)
    return UNEXPECTED if told else ALL_AS_EXPECTED
