"""``gqa plan``: the jobs of a run that is divided among machines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from conformance.base.words import plural
from conformance.cli import completion
from conformance.cli.common import ALL_AS_EXPECTED, BadArgument
from conformance.cli.options import EXPRESSION, PATHS, program_options
from conformance.cli.run import plans_for, selection_words
from conformance.run.matrix import jobs, plan_data, targets_of_a_night
from conformance.run.shard import MOST_SHARDS
from conformance.run.times import recorded_times
from conformance.targets.catalogue import Programs
from conformance.targets.published import published


@click.command()
@PATHS
@click.option(
    "--ep",
    "eps",
    multiple=True,
    metavar="TARGET",
    help="As of gqa run; default: every target without a GPU, newer and older releases.",
    shell_complete=completion.targets,
)
@EXPRESSION
@click.option(
    "--shards",
    type=click.IntRange(1, MOST_SHARDS),
    metavar="N",
    help="Divide each target into N shards.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="M",
    help="Divide each target into as many shards as take M minutes each, at most.",
)
@click.option(
    "--times",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="RESULTS",
    help="Take the times from these results, as the runs will; repeat.",
)
@click.option(
    "-j", "--jobs", "cores", default=2, type=click.IntRange(1, 64), help="Runners of each run."
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, on one line.")
@program_options
def plan(
    paths: Sequence[str],
    eps: Sequence[str],
    expression: str,
    shards: int | None,
    minutes: float | None,
    times: Sequence[Path],
    cores: int,
    as_json: bool,
    programs: Programs,
) -> int:
    """Print the jobs that run cases on targets: targets × releases × shards.

    Each job has its command and the minutes that it is expected to take. gqa merge joins their
    results.
    """
    if shards is not None and minutes is not None:
        raise BadArgument("--shards and --minutes: give one.")
    names: Mapping[str, str] = {}
    if not eps:
        night = targets_of_a_night(published)
        names = night.names
        for sentence in night.left_out:
            click.echo(sentence, err=True)
    planned = plans_for(paths, eps or list(names), expression, programs)
    arguments = selection_words(paths, expression)
    arguments += [word for file in times for word in ("--times", str(file))]
    found = list(
        jobs(
            planned,
            recorded_times(times),
            arguments,
            names=names,
            cores=cores,
            shards=shards,
            minutes=minutes,
        )
    )
    data = plan_data(found)
    if as_json:
        click.echo(json.dumps(data, ensure_ascii=False))
        return ALL_AS_EXPECTED
    for job in found:
        click.echo(f"{job.minutes:7.1f} min  {job.command}")
    click.echo(f"{data['minutes']:7.1f} min  in {plural(len(found), 'job')}")
    return ALL_AS_EXPECTED
