"""``gqa list`` and ``gqa show``: all cases, and one case in full."""

from __future__ import annotations

from collections.abc import Sequence

import click

from conformance.bundle.cache import bundle_for
from conformance.bundle.sensitivity import insensitive
from conformance.cli.common import ALL_AS_EXPECTED, INFRASTRUCTURE, BadArgument, say
from conformance.cli.completion import case_names
from conformance.cli.options import EXPRESSION, PATHS, selected_cases
from conformance.cli.terminal import make_console
from conformance.run.records import argument_for, case_record


@click.command("list")
@PATHS
@EXPRESSION
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_cases(paths: Sequence[str], expression: str, as_json: bool) -> int:
    """List cases: their ids, or with --json their full descriptions."""
    for case in selected_cases(paths, expression)[1]:
        click.echo(case_record(case).model_dump_json() if as_json else case.id)
    return ALL_AS_EXPECTED


@click.command()
@click.argument("case_id", shell_complete=case_names)
def show(case_id: str) -> int:
    """Show one case: the call, its contract, its links, and the ranges of its values."""
    from conformance.cli.drawing import draw

    _, cases = selected_cases([case_id], "")
    if len(cases) > 1:
        listed = "\n".join(f"  {argument_for(case)}" for case in cases)
        raise BadArgument(f"'{case_id}' matches {len(cases)} cases; give one of them:\n{listed}")
    draw(make_console(), cases[0])
    problem = insensitive(cases[0], bundle_for(cases[0].call).sensitivity)
    if problem is None:
        return ALL_AS_EXPECTED
    say(f"\n{problem}")
    return INFRASTRUCTURE
