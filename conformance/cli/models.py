"""``gqa models``: which runtime runs which model right, and since when, from recorded answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from conformance.base.text import clean, deep_clean
from conformance.base.words import listed
from conformance.cli.common import BadArgument, Status
from conformance.cli.console import make_console, plain_table
from conformance.report.history import short
from conformance.report.model_table import USES
from conformance.report.models import (
    FORMAT,
    AnswerCell,
    Models,
    RecordedModel,
    load_models,
    matching,
)
from conformance.results.verdicts import TABLE


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--ep", "eps", multiple=True, metavar="TARGET", help="Only this runtime; repeat.")
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON.")
def models(model: str | None, eps: Sequence[str], as_json: bool) -> int:
    """Look up which runtime runs which model right, and since when.

    MODEL is a name, such as gemma4 or "llama int4", or the config.json or genai_config.json of a
    model that is not in the list. Without it all models are listed.

    The answers are recorded ones: nothing is run, and no runtime is needed.
    """
    known = load_models()
    runtimes = _runtimes(known, eps)
    if model is not None and _is_file(model):
        from conformance.cli.models_of_config import print_config

        return print_config(Path(model), known, runtimes, as_json)
    rows = [*chain(*known.families.values())] if model is None else matching(known, model)
    if not rows:
        raise BadArgument(_unknown(known, model or ""))
    if as_json:
        click.echo(json.dumps(deep_clean(document(known, rows, runtimes)), ensure_ascii=False))
        return Status.AS_EXPECTED
    console = make_console()
    if model is None:
        draw_rows(console, rows, runtimes)
        console.print("\ngqa models NAME says more of one; ≤ means that nothing is known before.")
    for row in rows if model is not None else ():
        draw_row(console, row, runtimes)
    console.print(_age(known), soft_wrap=True, highlight=False)
    return Status.AS_EXPECTED


def document(
    known: Models, rows: Sequence[RecordedModel], runtimes: Sequence[str]
) -> dict[str, object]:
    """The rows with their cells as JSON values."""
    documents = []
    for row in rows:
        cells = {
            name: {
                "uses": {use: asdict(row.runtimes[name].cell(use)) for use in USES},
                "causes": [asdict(cause) for cause in row.runtimes[name].causes],
            }
            for name in runtimes
            if name in row.runtimes
        }
        fields = asdict(replace(row, runtimes={})) | {"runtimes": cells}
        documents.append({key: fields[key] for key in fields if key not in ("of", "notes")})
    return {
        "format": FORMAT,
        "recorded": known.recorded,
        "runtimes": {name: known.runtimes[name] for name in runtimes},
        "software": sorted(known.software),
        "models": documents,
    }


def draw_rows(console: Console, rows: Sequence[RecordedModel], runtimes: Sequence[str]) -> None:
    """Print a line for each row, with its answer for one chat on each runtime."""
    table = plain_table()
    for title in ("model", "type", "exported for, by", *map(clean, runtimes)):
        table.add_column(title, overflow="fold")
    before = ""
    for row in rows:
        cells = _cells(row, runtimes, USES[0])
        family = row.family if row.family != before else ""
        before = row.family
        export = f"{row.made_for}, {row.exporter}"
        table.add_row(family, row.type, export, *(_sign(cells.get(name)) for name in runtimes))
    console.print(table, highlight=False)


def draw_row(console: Console, row: RecordedModel, runtimes: Sequence[str]) -> None:
    """Print a model with all uses, the answers by release, and the causes of failures."""
    console.print(Text(row.name, style="bold"), soft_wrap=True)
    for call in row.calls:
        console.print(f"  layers {call.layers}: {call.what}", soft_wrap=True, highlight=False)
    table = plain_table()
    for title in ("", *USES):
        table.add_column(title, overflow="fold")
    for name in runtimes:
        cells = (_cells(row, [name], use).get(name) for use in USES)
        table.add_row(name, *map(_sign, cells))
    console.print(table, highlight=False)
    for name in runtimes:
        if name not in row.runtimes:
            continue
        cell = row.runtimes[name].cell(USES[0])
        if len(cell.releases) > 1:
            answers = "; ".join(f"{versions} {words}" for versions, words in cell.releases)
            console.print(f"  {name}, one chat: {answers}", soft_wrap=True, highlight=False)
        for line in _causes(row, name):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(
        f"  see for yourself: gqa check cases/exported/graphs/{row.graph}.onnx --ep cpu\n"
    )


def _causes(row: RecordedModel, name: str) -> Iterator[str]:
    for cause in row.runtimes[name].causes:
        yield f"  {clean(cause.where)}: {clean(cause.what)}: {clean(cause.why or cause.said)}"
        if cause.workaround:
            yield f"    workaround: {clean(cause.workaround)}"
        if cause.link:
            yield f"    {clean(cause.link)}"


def _cells(row: RecordedModel, runtimes: Sequence[str], use: str) -> Mapping[str, AnswerCell]:
    return {name: row.runtimes[name].cell(use) for name in runtimes if name in row.runtimes}


def _sign(cell: AnswerCell | None) -> Text:
    """The cell with its sign, in the colour of its verdict."""
    if cell is None:
        return Text("– not tried", style=TABLE["skip"].style)
    look = TABLE[cell.verdict]
    return Text(f"{look.sign} {cell.words}", style=look.style)


def _runtimes(known: Models, eps: Sequence[str]) -> list[str]:
    """The runtimes that are shown; ``webgpu`` stands for any adapter. Raises `BadArgument`."""
    shown: dict[str, None] = {}
    for ep in eps or known.runtimes:
        names = [name for name in known.runtimes if ep in (name, name.partition("+")[0])]
        if not names:
            raise BadArgument(
                f"--ep: nothing is recorded of '{ep}', only of {listed([*known.runtimes])}."
            )
        shown |= dict.fromkeys(names)
    return [*shown]


def _is_file(wanted: str) -> bool:
    return wanted.endswith(".json") or "/" in wanted or os.path.isdir(wanted)


def _unknown(known: Models, wanted: str) -> str:
    near = get_close_matches(wanted.lower(), {f.lower(): f for f in known.families}, 3, 0.4)
    names = [name for name in known.families if name.lower() in near] or [*known.families]
    return (
        f"No recorded model is called '{wanted}'. The nearest: {listed(names)}. For a model that is"
        " not in the list give its config.json, or its graph to gqa check."
    )


def _age(known: Models) -> str:
    releases = (f"{name} {short(versions[-1])}" for name, versions in known.runtimes.items())
    software = (
        f" {listed(sorted(known.software))} computes shaders on the processor, a GPU may differ."
        if known.software
        else ""
    )
    return f"Recorded on {known.recorded}, up to {listed([*releases])}.{software}"
