"""``gqa models`` for a configuration: which recorded models make the same calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from conformance.base.text import clean, deep_clean
from conformance.base.words import plural
from conformance.cli.common import Status
from conformance.cli.console import make_console
from conformance.cli.models import document, draw_rows
from conformance.model.config_calls import (
    ConfiguredCall,
    differences,
    is_like,
    read_configuration,
)
from conformance.report.models import Models, RecordedModel

#: Of rows with calls that are only like those of the model, this many are named.
_NEAREST = 3


def tell_config(path: Path, known: Models, runtimes: Sequence[str], as_json: bool) -> int:
    """Say which recorded rows make the calls of the configuration at ``path``, and what nobody has
    tried."""
    model = read_configuration(path)
    found = [(call, *rows_for(call, known.rows)) for call in model.calls]
    if as_json:
        told = [
            {
                "layers": call.layers,
                "what": call.what,
                "features": call.features,
                "same": [row.graph for row in same],
                "like": [{"graph": row.graph, "differences": words} for row, words in like],
            }
            for call, same, like in found
        ]
        rows = [row for row in known.rows if any(row in same for _, same, _ in found)]
        made = {**document(known, rows, runtimes), "model_type": model.model_type, "calls": told}
        click.echo(json.dumps(deep_clean(made), ensure_ascii=False))
        return Status.AS_EXPECTED
    console = make_console()
    title = model.model_type or "a decoder"
    number = plural(sum(call.layers for call in model.calls), "layer")
    console.print(f"{clean(str(path))}: {clean(title)}, {number}", markup=False, soft_wrap=True)
    shown: dict[str, RecordedModel] = {}
    for call, same, like in found:
        console.print(f"  {plural(call.layers, 'layer')}: {call.what}", highlight=False)
        shown |= {row.graph: row for row in same}
        if same:
            names = dict.fromkeys(row.family for row in same)
            console.print(f"    the same call as in {', '.join(names)}", highlight=False)
        elif like:
            console.print("    nobody has tried this call; the nearest recorded ones:")
            for row, words in like[:_NEAREST]:
                console.print(f"      {row.family}: {', '.join(words)}", highlight=False)
            shown |= {row.graph: row for row, _ in like[:1]}
        else:
            console.print("    nobody has tried this call, nor one with the same features")
    console.print()
    draw_rows(console, [*shown.values()], runtimes)
    console.print(
        "\nWhether your model runs right, gqa check MODEL.onnx says; no weights are needed.",
        soft_wrap=True,
    )
    return Status.AS_EXPECTED


def rows_for(
    call: ConfiguredCall, rows: Sequence[RecordedModel]
) -> tuple[list[RecordedModel], list[tuple[RecordedModel, list[str]]]]:
    """The rows with the same call, and those with one like it, the nearest first, with what is
    different there."""
    same, like = [], []
    for row in rows:
        of_row = [differences(call, each.features) for each in row.calls]
        if [] in of_row:
            same.append(row)
            continue
        alike = [
            words
            for words, each in zip(of_row, row.calls, strict=True)
            if is_like(call, each.features)
        ]
        if alike:
            like.append((row, min(alike, key=len)))
    return same, sorted(like, key=lambda item: len(item[1]))
