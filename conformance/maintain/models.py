"""Records which model runs on which runtime, with ``gqa check`` over the exported graphs.

``python -m conformance.maintain.models`` checks all graphs of real models on every release in
`RECORDED`, and writes ``reports/recorded/models.json``. With names of graphs, or ``--ep``, only
their answers are replaced or added.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from conformance import __version__
from conformance.base.paths import data_path, file_to_write
from conformance.base.target_names import split_adapter, split_release
from conformance.base.versions import release_key
from conformance.base.words import listed
from conformance.harness.folders import temporary_folder
from conformance.maintain import run_command
from conformance.maintain.exported import family_of, groups_in, real_models, recipes
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import ranges
from conformance.report.model_pages import (
    CUDA,
    FILE,
    FORMAT,
    NO_CUDA,
    NOT_TRIED,
    Models,
    OnRuntime,
    RecordedModel,
    load_models,
)
from conformance.report.model_table import DRAWN, LOADING, LOADING_PART, USES, WORDS
from conformance.results.verdicts import Drawn

#: The recorded runtimes, with the options of ``gqa check``.
RECORDED: Final[Mapping[str, Sequence[str]]] = {
    "cpu": ("--ep", "cpu@1.20.."),
    "tract-wheel": ("--ep", "tract-wheel@all"),
    "wasm": ("--ep", "wasm@1.25.."),
    "node": ("--ep", "node@1.20.."),
    "webgpu": ("--ep", "webgpu@1.25..", "--adapter", "lavapipe"),
    "openvino": ("--ep", "openvino@2026.4.."),
}

_PRECISION: Final = re.compile(r"(?:-p|--dtype) (\w+)")
_PROVIDER: Final = re.compile(r"(?:-e|--ep) (\w+)")
_WEIGHTS: Final = ("int4", "int8")


def row(name: str) -> dict[str, Any]:
    """The row of a graph without the answers; empty if the graph does not have the operator."""
    all_recipes = recipes()
    recipe = all_recipes["graphs"][name]
    of = all_recipes["models"][recipe["model"]]["of"]
    commands = " ".join(recipe["commands"])
    precision, provider = (
        match[1] if (match := pattern.search(commands)) else ""
        for pattern in (_PRECISION, _PROVIDER)
    )
    groups = groups_in(name)
    if not groups:
        return {}
    tool, _, version = all_recipes["tools"][recipe["tool"]][0].partition("==")
    return {
        "graph": name,
        "family": family_of(recipe),
        "exporter": f"{tool.removesuffix('-onnx')} {version}",
        "made_for": provider,
        "dtype": groups[0].form.fields["dtype"],
        "weights": precision if precision in _WEIGHTS else "",
        "of": of,
        "notes": [],
        "calls": [
            {"layers": ranges(group.layers), "what": group.what, "features": features(group.form)}
            for group in groups
        ],
    }


def features(form: Form) -> dict[str, Any]:
    """The features by which a call is compared with those of other models."""
    fields = form.fields
    return {
        "num_heads": fields["num_heads"],
        "kv_num_heads": fields["kv_num_heads"],
        "head_size": fields["head_size"],
        "window": form.window,
        "borrows": form.borrows,
        "softcap": bool(fields.get("softcap")),
        "sink": bool(fields.get("head_sink") or fields.get("smooth_softmax", 0) > 0),
        "qk_norm": bool(fields.get("qk_norm")),
    }


def options_for(ep: str) -> list[str]:
    """The options of ``gqa check`` for a runtime, or for one release of it."""
    name, release = split_release(ep)
    first, every, *others = RECORDED[name]
    return [first, every if release is None else ep, *others]


def check(name: str, options: Sequence[str], jobs: int) -> dict[str, Any]:
    """The answers of ``gqa check`` for a graph, as JSON values."""
    graph = data_path("cases") / "exported" / "graphs" / f"{name}.onnx"
    with temporary_folder() as folder:
        out = folder / "answers.json"
        command = ["check", str(graph), *options, "--json", str(out), "-j", str(jobs)]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "conformance", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if not out.exists():
            raise SystemExit(f"gqa {' '.join(command)}: {done.stderr.strip()}")
        document: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return document


def on_runtimes(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The answers of a document by runtime: those of each release, the causes, and the answers in
    standard operators."""
    runtimes: dict[str, dict[str, Any]] = {}
    rewritten: dict[str, dict[str, str]] = {}
    for target in document["targets"]:
        adapter = f"+{target['adapter']}" if target["adapter"] else ""
        uses = {use: one for use in USES if (one := _in_use(document["rows"], target["name"], use))}
        if uses:
            name = f"{target['base']}{adapter}"
            runtimes.setdefault(name, {})[target["version"]] = uses
            if kind := document["in_standard_operators"]["kinds"].get(target["name"]):
                rewritten.setdefault(name, {})[target["version"]] = kind
    causes = [{key: cause[key] for key in _CAUSE if cause.get(key)} for cause in document["causes"]]
    for cause in causes:  # whether only software GPUs have it follows from the finding
        if cause["verdict"] == "software":
            cause["verdict"] = "wrong"
            cause["what"] = cause["what"].replace(WORDS["software"], WORDS["wrong"])
    return {
        name: {"answers": answers, "causes": causes, "rewritten": rewritten.get(name, {})}
        for name, answers in runtimes.items()
    }


_CAUSE: Final = ("where", "verdict", "what", "said", "example", "why", "link")


def _in_use(rows: Sequence[Mapping[str, Any]], target: str, use: str) -> dict[str, str]:
    """The worst answer of a target for a use: of single nodes, or else of the model itself.

    What the graph itself has wrong is no fault of the target.
    """
    order = [*WORDS]
    single, whole = (
        [row for row in rows if row["whole"] is is_whole] for is_whole in (False, True)
    )

    def parts(some: Sequence[Mapping[str, Any]], use: str) -> list[tuple[Any, Mapping[str, Any]]]:
        """The parts of the answers in some rows, each with its row."""
        return [(row, part) for row in some for part in row["answers"][target]["uses"].get(use, ())]

    for row, part in parts(whole, USES[0]):
        if part["where"] in (LOADING, LOADING_PART):  # then no call of a node helps
            told = {key: part[key] for key in ("answer", "where", "message")}
            return {**told, "layers": ranges(row["layers"])}
    for some in (single, rows):
        faulty = [
            (row, part)
            for row, part in parts(some, use)
            if part["answer"] not in ("right", "untried") and part.get("fault") != "graph"
        ]
        if faulty:
            layer, worst = min(faulty, key=lambda item: order.index(item[1]["answer"]))
            kind = worst["answer"]
            answer = {
                "answer": "wrong" if kind == "software" else kind,
                "where": worst["where"],
                "layers": ranges(layer["layers"]),
                "message": worst["message"],
                "case": next(iter(worst["cases"]), ""),
            }
            return {key: value for key, value in answer.items() if value}
    answers = [part["answer"] for _, part in parts(single, use)]
    unseen = [row["answers"][target]["unseen"] for row in single]
    unseen += [part["answer"] == "untried" for _, part in parts(whole, use)]
    if not parts(whole, use):
        unseen += [not parts([row], use) for row in single]
    judged = "right" in answers and not any(unseen)
    return {"answer": "right" if judged else "untried"} if answers else {}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The old answers of a runtime, replaced or extended by new ones.

    The causes are the new ones, and old ones with other messages. The answer in standard operators
    is kept of the newest release only.
    """
    answers = {**old.get("answers", {}), **new["answers"]}
    causes = [*new["causes"]]
    messages = {cause["said"] for cause in causes}
    causes += [cause for cause in old.get("causes", ()) if cause["said"] not in messages]
    ordered = {v: answers[v] for v in sorted(answers, key=release_key)}
    made = {**old.get("rewritten", {}), **new.get("rewritten", {})}
    rewritten = {v: made[v] for v in [*ordered][-1:] if v in made}
    there = {"rewritten": rewritten} if rewritten else {}
    return {"answers": ordered, "causes": causes, **there}


def text(
    rows: Iterable[Mapping[str, Any]],
    software: Iterable[str],
    besides: Sequence[Mapping[str, str]] = (),
) -> str:
    """The content of the file, with a line for each row.

    ``besides`` are facts that no answer shows, which are kept: words about a release of a runtime
    with models of a data type.
    """
    rows = [*rows]
    runtimes: dict[str, dict[str, None]] = {}
    for one in rows:
        for name, those in one["runtimes"].items():
            runtimes.setdefault(name, {}).update(dict.fromkeys(those["answers"]))
    head = {
        "format": FORMAT,
        "recorded": f"{datetime.now(UTC):%Y-%m-%d}",
        "suite": __version__,
        "runtimes": {
            name: sorted(releases, key=release_key) for name, releases in runtimes.items()
        },
        "software": sorted(set(software) & set(runtimes)),
        "besides": [*besides],
    }
    lines = ",\n".join(json.dumps(_with_answers(one, _grouped), ensure_ascii=False) for one in rows)
    return f'{json.dumps(head, ensure_ascii=False)[:-1]}, "rows": [\n{lines}\n]}}\n'


def _with_answers(one: Mapping[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    """The row with its answers by release in another form."""
    runtimes = {
        name: {**those, "answers": form(those["answers"])}
        for name, those in one["runtimes"].items()
    }
    return {**one, "runtimes": runtimes}


def _grouped(answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers, with consecutive releases that have the same ones in one entry."""
    return [
        {"releases": [version for version, _ in run], "uses": uses}
        for uses, run in groupby(answers.items(), lambda item: item[1])
    ]


def _ungrouped(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {version: entry["uses"] for entry in entries for version in entry["releases"]}


_KINDS: Final[Mapping[Drawn, str]] = {
    DRAWN[kind]: words for kind, words in WORDS.items() if kind not in ("right", "software")
}
#: The columns of the table in README, with the provider for which their models are exported.
IN_README: Final[Mapping[str, str]] = {
    "cpu": "cpu",
    "cuda": "cuda",
    "node": "cpu",
    "tract-wheel": "cpu",
    "webgpu": "webgpu",
    "openvino": "cpu",
}
_MOST_LINES: Final = 14
#: The lines before and after the table in README.
TABLE_BEGINS: Final = "<!-- Written by `python -m conformance.maintain.models`. -->\n"
TABLE_ENDS: Final = "<!-- The end of what it writes. -->\n"


def readme_table(models: Models) -> str:
    """The table in README: one chat with each family; families with equal answers share a line."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for family, rows in models.families.items():
        known = models.runtimes
        cells = tuple(_in_readme(rows, *column, known) for column in IN_README.items())
        lines.setdefault(cells, []).append(family)
    # If there are more lines, those with the most families are kept.
    most = sorted(lines, key=lambda cells: -len(lines[cells]))[:_MOST_LINES]
    table = [("model", *IN_README), ("---",) * (1 + len(IN_README))]
    table += [(", ".join(lines[cells]), *cells) for cells in lines if cells in most]
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def _in_readme(
    rows: Sequence[RecordedModel], runtime: str, made_for: str, known: Iterable[str]
) -> str:
    """The cell of a runtime in README: the answers for the models of each exporter.

    They are those exported for the provider ``made_for``, or else, with an asterisk, for another
    one. Of several data types it is the first of float32, int4 and float16 that was tried.
    Exporters are named if their answers differ. ``known`` are the recorded runtimes.
    """
    if runtime not in {split_adapter(name)[0] for name in known}:
        return NO_CUDA if runtime == CUDA else WORDS["untried"]

    def place(row: RecordedModel) -> tuple[bool, bool, bool]:
        return runtime not in _bases(row), row.dtype != "float32", row.weights != ""

    best: dict[str, RecordedModel] = {}
    own = [row for row in rows if row.made_for == made_for]
    others = [row for row in rows if runtime in _bases(row)]
    for row in sorted(own or others or rows, key=place):
        best.setdefault(row.exporter.partition(" ")[0], row)
    exporters: dict[str, list[str]] = {}
    for exporter, row in best.items():
        cell = _bases(row)[runtime].cell(USES[0]) if runtime in _bases(row) else NOT_TRIED
        words = cell.words if " since " in cell.words else _KINDS.get(cell.verdict, cell.words)
        if row.made_for != made_for and cell is not NOT_TRIED:
            words += " \\*"
        exporters.setdefault(words, []).append(exporter)
    if len(exporters) < 2:
        return next(iter(exporters), "–")
    parts = (f"{words} ({listed(by)})" for words, by in sorted(exporters.items(), reverse=True))
    return "; ".join(parts)


def _bases(row: RecordedModel) -> dict[str, OnRuntime]:
    """The answers by the names of runtimes without their adapters."""
    return {split_adapter(name)[0]: there for name, there in row.runtimes.items()}


def with_table(readme: str, table: str) -> str:
    """The text of README with another table."""
    before, _, rest = readme.partition(TABLE_BEGINS)
    return f"{before}{TABLE_BEGINS}{table}{TABLE_ENDS}{rest.partition(TABLE_ENDS)[2]}"


def main() -> None:
    """Record the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", help="names; default: all of real models")
    parser.add_argument(
        "--ep",
        action="append",
        help="a runtime, or one release, such as webgpu@1.30.0; default: all",
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    names = [*real_models()]
    if unknown := {*options.graphs} - {*names}:
        parser.error(f"no graph of a real model is called {listed(sorted(unknown))}")
    place = options.output or file_to_write(f"reports/{FILE}")
    there = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {"rows": []}
    software = set(there.get("software", ()))
    rows = {one["graph"]: _with_answers(one, _ungrouped) for one in there["rows"]}
    for name in options.graphs or names:
        about = row(name)
        if not about:
            continue
        one = rows[name] = {**about, "runtimes": rows.get(name, {}).get("runtimes", {})}
        for arguments in map(options_for, options.ep or RECORDED):
            document = check(name, arguments, options.jobs)
            one["notes"] = document["model"]["notes"]
            for target in document["targets"]:
                if target["software_adapter"]:
                    software.add(f"{target['base']}+{target['adapter']}")
            for runtime, those in on_runtimes(document).items():
                one["runtimes"][runtime] = merged(one["runtimes"].get(runtime, {}), those)
        ordered = [rows[each] for each in names if each in rows]
        place.write_text(text(ordered, software, there.get("besides", ())), encoding="utf-8")
        print(f"{name}: {', '.join(document['headlines'])}")
    if options.output is None:
        readme = file_to_write("README.md")
        written = with_table(readme.read_text(encoding="utf-8"), readme_table(load_models()))
        readme.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    run_command(main)
