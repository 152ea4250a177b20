"""``gqa models``: which runtime runs which model right, and since when, from recorded answers."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from conformance.base.interrupts import undisturbed
from conformance.base.target_names import at_release, split_adapter
from conformance.base.text import clean, deep_clean
from conformance.base.tuning import one_thread
from conformance.base.words import listed, plural
from conformance.cli.common import BadArgument, Status
from conformance.cli.console import make_console, plain_table
from conformance.report.history import short
from conformance.report.model_pages import (
    CUDA,
    FORMAT,
    NO_CUDA,
    NOT_TRIED,
    AnswerCell,
    Models,
    RecordedModel,
    load_models,
)
from conformance.report.model_query import matching
from conformance.report.model_table import USES, WORDS
from conformance.results.timeline import OR_EARLIER
from conformance.results.verdicts import LOOKS

if TYPE_CHECKING:
    from conformance.model.config.config_calls import ConfiguredCall


@click.command()
@click.argument("model", metavar="[MODEL]", required=False)
@click.option("--ep", "eps", multiple=True, metavar="TARGET", help="Only this runtime; repeat.")
@click.option("-v", "--verbose", is_flag=True, help="All uses and releases, causes, workarounds.")
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON.")
def models(model: str | None, eps: Sequence[str], verbose: bool, as_json: bool) -> int:
    """Look up which runtime runs which model right, and since when.

    MODEL is a name, such as gemma4, "llama int4 webgpu", "qwen3 cpu 1.27" or Qwen/Qwen3-0.6B, or
    the config.json or genai_config.json of a model that is not in the list. Without it all models
    are listed.

    The answers are recorded ones: nothing is run, and no runtime is needed.
    """
    known = load_models()
    if model is not None and _is_file(model):
        return _print_config(Path(model), known, _runtimes(known, eps), as_json)
    found = matching(known, model or "")
    rows, runtimes = found.rows, _runtimes(known, eps or found.runtimes)
    if not rows:
        raise BadArgument(_unknown(known, model or "", found.named))
    if as_json:
        click.echo(json.dumps(deep_clean(_document(known, rows, runtimes)), ensure_ascii=False))
        return Status.AS_EXPECTED
    console = make_console()
    if verbose:
        for row in rows:
            _draw_row(console, row, runtimes)
    else:
        _draw_rows(console, rows, runtimes)
        if model is not None:
            _draw_causes(console, rows, runtimes)
        more = shlex.join(["gqa", "models", model or "NAME", *(f"--ep={ep}" for ep in eps), "-v"])
        _line(console, f"Releases, causes and workarounds: {more}")
    _line(console, f"{_age(known)} {OR_EARLIER}: older releases were not tried.")
    return Status.AS_EXPECTED


#: The most causes that are named without ``-v``, and other uses.
_FEW: Final = 2


def _draw_rows(console: Console, rows: Sequence[RecordedModel], runtimes: Sequence[str]) -> None:
    """Print the answers for one chat on each runtime; exports with equal ones share a line."""
    alike: dict[tuple[str, ...], list[RecordedModel]] = {}
    for row in rows:
        cells = _cells(row, runtimes, USES[0])
        words = (cells[name].words if name in cells else "" for name in runtimes)
        alike.setdefault((row.family, *words), []).append(row)
    table = plain_table()
    for title in ("model, one chat", "exports", *runtimes):
        table.add_column(clean(title), overflow="fold")
    before = ""
    for (family, *_), those in alike.items():
        cells = _cells(those[0], runtimes, USES[0])
        name = family if family != before else ""
        before = family
        table.add_row(name, _exports(those), *(_sign(cells.get(each), each) for each in runtimes))
    console.print(table, highlight=False)


def _draw_causes(console: Console, rows: Sequence[RecordedModel], runtimes: Sequence[str]) -> None:
    """Print a few causes in the newest releases, and the uses that differ from one chat."""
    causes: dict[str, None] = {}
    others: dict[str, None] = {}
    for name, on in ((name, on) for row in rows for name, on in row.runtimes.items()):
        if name in runtimes and on.answers:
            cell = on.cell(USES[0])
            told = (each for each in on.causes if each.why and each.is_of(on.newest))
            why = next((each for each in told if each.drawn(name) == cell.verdict), None)
            causes |= {clean(f"{name}: {why.why} {why.link}"): None} if why else {}
            others |= {f"{use} on {name}: {cell.words}": None for use, cell in on.otherwise()}
    for text in [*causes][:_FEW]:
        _line(console, text)
    if others:
        more = f"; {len(others) - 1} more" if len(others) > 1 else ""
        _line(console, f"Other uses differ: {next(iter(others))}{more}.")
    if rewritten := "; ".join(_in_standard_operators(rows, runtimes)):
        _line(console, f"In standard operators (gqa rewrite): {rewritten}.")


def _in_standard_operators(rows: Sequence[RecordedModel], runtimes: Sequence[str]) -> Iterator[str]:
    """``right on tract-wheel 0.23.9``: each answer to the rewritten exports, with the runtimes."""
    found: dict[str, dict[str, int]] = {}
    for name, on in ((name, on) for row in rows for name, on in row.runtimes.items()):
        if name in runtimes and (kind := on.in_standard_operators):
            where = found.setdefault(WORDS[kind], {})
            place = f"{name} {on.newest}"
            where[place] = where.get(place, 0) + 1
    several = len(rows) > 1
    for words, where in found.items():
        told = (f"{at} ({plural(n, 'export')})" if several else at for at, n in where.items())
        yield f"{words} on {listed([*told])}"


def _exports(rows: Sequence[RecordedModel]) -> str:
    """``mobius float32 for cpu; mobius float16 for cuda and webgpu``: the exports in few words."""
    made: dict[str, list[str]] = {}
    for row in rows:
        what = f"{row.exporter.partition(' ')[0]} {row.weights or row.dtype}"
        made.setdefault(what, []).append(row.made_for or "any")
    return "; ".join(f"{what} for {listed(providers)}" for what, providers in made.items())


def _line(console: Console, text: str = "") -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _document(
    known: Models, rows: Sequence[RecordedModel], runtimes: Sequence[str]
) -> dict[str, object]:
    """The rows with their cells as JSON values."""
    documents = []
    for row in rows:
        cells = {
            name: {
                "uses": {use: asdict(row.runtimes[name].cell(use)) for use in USES},
                "causes": [asdict(cause) for cause in row.runtimes[name].causes],
                "in_standard_operators": row.runtimes[name].in_standard_operators,
            }
            for name in runtimes
            if name in row.runtimes
        }
        fields = asdict(replace(row, runtimes={})) | {"runtimes": cells}
        documents.append({key: fields[key] for key in fields if key not in ("of", "notes")})
    return {
        "format": FORMAT,
        "recorded": known.recorded,
        "runtimes": {name: known.runtimes.get(name, []) for name in runtimes},
        "software": sorted(known.software),
        "models": documents,
    }


def _draw_row(console: Console, row: RecordedModel, runtimes: Sequence[str]) -> None:
    """Print a model with all uses, the answers by release, and the causes of failures."""
    console.print(Text(row.name, style="bold"), soft_wrap=True)
    for call in row.calls:
        console.print(f"  layers {call.layers}: {call.what}", soft_wrap=True, highlight=False)
    table = plain_table()
    for title in ("", *USES):
        table.add_column(title, overflow="fold")
    for name in runtimes:
        cells = (_cells(row, [name], use).get(name) for use in USES)
        table.add_row(name, *(_sign(cell, name) for cell in cells))
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
    for told in _in_standard_operators([row], runtimes):
        _line(console, f"  in standard operators (gqa rewrite): {told}")
    graph = f"cases/exported/graphs/{row.graph}.onnx"
    command = shlex.join(["gqa", "check", graph, *_targets_of(runtimes, row)])
    console.print(f"  see for yourself: {command}\n", soft_wrap=True, highlight=False, markup=False)


def _targets_of(runtimes: Sequence[str], row: RecordedModel | None = None) -> Iterator[str]:
    """The options that select the runtimes, in the newest release in which ``row`` was tried."""
    for name in runtimes:
        base, adapter = split_adapter(name)
        tried = [*row.runtimes[name].answers] if row and name in row.runtimes else []
        yield from ("--ep", at_release(base, tried[-1] if tried else None))
        yield from ("--adapter", adapter) if adapter else ()


def _causes(row: RecordedModel, name: str) -> Iterator[str]:
    for cause in row.runtimes[name].causes:
        yield f"  {clean(cause.where)}: {clean(cause.what)}: {clean(cause.why or cause.said)}"
        if cause.workaround:
            yield f"    workaround: {clean(cause.workaround)}"
        if cause.link:
            yield f"    {clean(cause.link)}"


def _cells(row: RecordedModel, runtimes: Sequence[str], use: str) -> Mapping[str, AnswerCell]:
    return {name: row.runtimes[name].cell(use) for name in runtimes if name in row.runtimes}


def _sign(cell: AnswerCell | None, name: str = "") -> Text:
    """The cell with its sign, in the colour of its verdict."""
    if cell is None:
        cell = replace(NOT_TRIED, words=NO_CUDA) if name == CUDA else NOT_TRIED
    sign, style = LOOKS[cell.verdict]
    return Text(f"{sign} {cell.words}", style=style)


def _runtimes(known: Models, eps: Sequence[str]) -> list[str]:
    """The runtimes that are shown; ``webgpu`` stands for any adapter. Raises `BadArgument`."""
    shown: dict[str, None] = {}
    for ep in eps or known.runtimes:
        names = [name for name in (*known.runtimes, CUDA) if ep in (name, split_adapter(name)[0])]
        if not names:
            raise BadArgument(
                f"--ep: nothing is recorded of '{ep}', only of {listed([*known.runtimes])}."
            )
        shown |= dict.fromkeys(names)
    return [*shown]


def _is_file(wanted: str) -> bool:
    """Whether it is a path, and not the id of a model on Hugging Face, which has one slash."""
    path = wanted.startswith((".", "/", "~")) or wanted.count("/") > 1
    return path or wanted.endswith(".json") or os.path.exists(wanted)


def _unknown(known: Models, wanted: str, named: Sequence[RecordedModel]) -> str:
    if named:
        families = listed(list(dict.fromkeys(row.family for row in named)))
        return f"No recorded export of {families} is like '{wanted}'. There are {_exports(named)}."
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


# The models that make the calls of a configuration

#: The number of models with similar calls that are named.
_NEAREST: Final = 3
#: The most names of settings.
_MOST_NAMES: Final = 8


def _print_config(path: Path, known: Models, runtimes: Sequence[str], as_json: bool) -> Status:
    """Print the recorded models that make the calls of a configuration, and the calls of none."""
    with one_thread(), undisturbed():  # it imports NumPy, ONNX and pydantic, as commands do
        from conformance.model.config.config_calls import read_configuration

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
            **_document(known, rows, runtimes),
            **{"model_type": model.model_type, "calls": calls},
            **{"others": model.others, "unread": model.unread},
        }
        click.echo(json.dumps(deep_clean(fields), ensure_ascii=False))
        return Status.AS_EXPECTED
    console = make_console()
    number = plural(sum(call.layers for call in model.calls), "layer")
    if model.others:
        number += f" of attention; {listed(model.others)}, which this suite does not test"
    _line(console, f"{clean(str(path))}: {clean(model.model_type or 'a decoder')}, {clean(number)}")
    if model.unread:
        unread = listed([clean(name) for name in model.unread[:_MOST_NAMES]])
        _line(console, f"  not read, so that calls may differ: {unread}")
    shown: dict[str, RecordedModel] = {}
    for call, same, like in matches:
        _line(console, f"  {plural(call.layers, 'layer')}: {call.what}")
        shown |= {row.graph: row for row in same}
        if same:
            names = dict.fromkeys(row.family for row in same)
            _line(console, f"    the same call as in {', '.join(names)}")
        elif like:
            _line(console, "    nobody has tried this call; the nearest recorded ones:")
            lines = dict.fromkeys(f"{row.family}: {', '.join(words)}" for row, words in like)
            for line in [*lines][:_NEAREST]:
                _line(console, f"      {line}")
            shown |= {row.graph: row for row, _ in like[:1]}
        else:
            _line(console, "    nobody has tried this call, nor one with the same features")
    _line(console)
    _draw_rows(console, [*shown.values()], runtimes)
    command = shlex.join(["gqa", "check", "MODEL.onnx", *_targets_of(runtimes)])
    _line(console, f"\nTo check your model, without its weights: {command}")
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
    its_words, own_words = (
        (
            f"{each['num_heads']}:{each['kv_num_heads']} heads",
            f"a window of {each['window']}" if each["window"] else "no window",
        )
        for each in (features, mine)
    )
    pairs = zip(its_words, own_words, strict=True)
    told += [f"{its}, not {own}" for its, own in pairs if its != own]
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
