"""``gqa models`` for a configuration: the recorded models that make the same calls."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from conformance.base.text import clean, deep_clean
from conformance.base.words import listed, plural
from conformance.cli.common import Status
from conformance.cli.console import make_console
from conformance.cli.models import document, draw_rows, targets_of
from conformance.model.config.config_calls import ConfiguredCall, read_configuration
from conformance.report.model_pages import Models, RecordedModel

#: The number of models with similar calls that are named.
_NEAREST = 3
#: The most names of settings.
_MOST_NAMES = 8


def print_config(path: Path, known: Models, runtimes: Sequence[str], as_json: bool) -> Status:
    """Print the recorded models that make the calls of a configuration, and the calls of none."""
    model = read_configuration(path)
    matches = [(call, *rows_for(call, known.rows)) for call in model.calls]
    if as_json:
        calls = [
            {
                "layers": call.layers,
                "what": call.what,
                "features": call.features,
                "same": [row.graph for row in same],
                "like": [{"graph": row.graph, "differences": words} for row, words in like],
            }
            for call, same, like in matches
        ]
        rows = [row for row in known.rows if any(row in same for _, same, _ in matches)]
        fields = {
            **document(known, rows, runtimes),
            **{"model_type": model.model_type, "calls": calls},
            **{"others": model.others, "unread": model.unread},
        }
        click.echo(json.dumps(deep_clean(fields), ensure_ascii=False))
        return Status.AS_EXPECTED
    console = make_console()
    print_line = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    number = plural(sum(call.layers for call in model.calls), "layer")
    if model.others:
        number += f" of attention; {listed(model.others)}, which this suite does not test"
    print_line(f"{clean(str(path))}: {clean(model.model_type or 'a decoder')}, {clean(number)}")
    if model.unread:
        unread = listed([clean(name) for name in model.unread[:_MOST_NAMES]])
        print_line(f"  not read, so that calls may differ: {unread}")
    shown: dict[str, RecordedModel] = {}
    for call, same, like in matches:
        print_line(f"  {plural(call.layers, 'layer')}: {call.what}")
        shown |= {row.graph: row for row in same}
        if same:
            names = dict.fromkeys(row.family for row in same)
            print_line(f"    the same call as in {', '.join(names)}")
        elif like:
            print_line("    nobody has tried this call; the nearest recorded ones:")
            lines = dict.fromkeys(f"{row.family}: {', '.join(words)}" for row, words in like)
            for line in [*lines][:_NEAREST]:
                print_line(f"      {line}")
            shown |= {row.graph: row for row, _ in like[:1]}
        else:
            print_line("    nobody has tried this call, nor one with the same features")
    print_line()
    draw_rows(console, [*shown.values()], runtimes)
    command = shlex.join(["gqa", "check", "MODEL.onnx", *targets_of(runtimes)])
    print_line(f"\nTo check your model, without its weights: {command}")
    return Status.AS_EXPECTED


def rows_for(
    call: ConfiguredCall, rows: Sequence[RecordedModel]
) -> tuple[list[RecordedModel], list[tuple[RecordedModel, list[str]]]]:
    """The rows with the same call, and those with a similar call and how it differs.

    Of the similar ones the nearest is first.
    """
    same, similar = [], []
    for row in rows:
        calls = [(differences(call, each.features), each.features) for each in row.calls]
        words = [words for words, features in calls if is_like(call, features)]
        if any(not words for words, _ in calls):
            same.append(row)
        elif words:
            similar.append((row, min(words, key=len)))
    return same, sorted(similar, key=lambda item: len(item[1]))


def differences(call: ConfiguredCall, features: Mapping[str, Any]) -> list[str]:
    """How a recorded call differs, in words: ``heads of 256, not 128``; empty if it does not.

    Whether queries and keys are normalised inside the call is the exporter's choice and is not
    compared.
    """
    mine = call.features
    told = []
    if mine["head_size"] != features["head_size"]:
        told.append(f"heads of {features['head_size']}, not {mine['head_size']}")
    pairs = ((f["num_heads"], f["kv_num_heads"]) for f in (features, mine))
    its, own = (f"{heads}:{kv_heads} heads" for heads, kv_heads in pairs)
    if its != own:
        told.append(f"{its}, not {own}")
    if mine["window"] != features["window"]:
        its, own = (
            f"a window of {w}" if w else "no window" for w in (features["window"], mine["window"])
        )
        told.append(f"{its}, not {own}")
    for name, words in (
        ("borrows", "a borrowed cache"),
        ("softcap", "a softcap"),
        ("sink", "a sink"),
    ):
        if mine[name] != features[name]:
            told.append(words if features[name] else f"no {words.removeprefix('a ')}")
    return told


def is_like(call: ConfiguredCall, features: Mapping[str, Any]) -> bool:
    """Whether a recorded call has the same features as this one; sizes may differ."""
    mine = call.features
    return bool(mine["window"]) == bool(features["window"]) and all(
        mine[name] == features[name] for name in ("borrows", "softcap", "sink")
    )
