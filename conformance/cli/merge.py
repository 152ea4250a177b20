"""``gqa merge``: joins results files into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from conformance.base.words import plural
from conformance.cli.common import BadArgument, Status, check_separate, check_writable, say
from conformance.cli.options import FILE
from conformance.results.packed import packing
from conformance.results.results_error import ResultsError, cause_of


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    type=FILE,
    metavar="FILE",
    help="File to write; packed if its name ends in .xz.",
)
@click.option("--compact", is_flag=True, help="Leave out times, and the figures of what passes.")
@click.option("--incomplete", is_flag=True, help="Join although something is missing.")
def merge(results: Sequence[Path], output: Path, compact: bool, incomplete: bool) -> int:
    """Join results files into one.

    They are shards of one run, or runs on several targets or releases, of one suite and one corpus.
    Each case is in them once on each target.

    \b
    Exit status: 0 written        2 the files cannot be joined
                 3 the output cannot be written, or is incomplete
    """
    from conformance.results.merge import merge as merge_files

    check_separate(results, [("--output", output)])
    check_writable(output, "the results")
    try:
        with packing(output) as file:
            merged = merge_files(results, file, compact=compact, incomplete=incomplete)
    except ResultsError as error:
        raise BadArgument(str(error)) from None
    except (OSError, ValueError) as error:
        raise ResultsError(f"Cannot write results to {output}: {cause_of(error)}.") from None
    click.echo(
        f"Results: {output}, {plural(merged.results, 'result')} of "
        f"{plural(merged.cases, 'case')} on {plural(len(merged.targets), 'target')}"
    )
    for problem in merged.problems:
        say(problem)
    return Status.INFRASTRUCTURE if merged.problems else Status.AS_EXPECTED
