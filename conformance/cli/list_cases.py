"""``gqa list``: the cases of a selection."""

from __future__ import annotations

from collections.abc import Sequence

import click

from conformance.base.text import printable_json
from conformance.cli.common import ALL_AS_EXPECTED
from conformance.cli.options import EXPRESSION, PATHS, selected_cases


@click.command("list")
@PATHS
@EXPRESSION
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def list_cases(paths: Sequence[str], expression: str, as_json: bool) -> int:
    """List cases: their ids, or with --json their full descriptions."""
    selected = selected_cases(paths, expression)[1]
    if not as_json:
        for case in selected:
            click.echo(case.id)
        return ALL_AS_EXPECTED
    from conformance.run.records import case_record  # imports NumPy and what judges

    for case in selected:
        click.echo(printable_json(case_record(case).model_dump_json()))
    return ALL_AS_EXPECTED
