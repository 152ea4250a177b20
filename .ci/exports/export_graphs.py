"""Makes the graphs of ``cases/exported`` with the exporters themselves, from random weights.

Usage, in an environment with an exporter: ``python .ci/exports/export_graphs.py NAME…``
(cases/exported/README.md says how to make one).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import onnx
import yaml
from weightless import read_weightless

ROOT: Final = Path(__file__).resolve().parents[2]
EXPORTED: Final = ROOT / "cases" / "exported"
RECIPES: Final = EXPORTED / "recipes.yaml"


class ExportError(Exception):
    """A graph cannot be made; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make graphs; 0 if each is as recorded, 1 if one is not, 3 if one cannot be made."""
    recipes = yaml.safe_load(RECIPES.read_text(encoding="utf-8"))
    options = _parser().parse_args(arguments)
    names = options.names or [
        n for n, graph in recipes["graphs"].items() if _lacks(recipes, graph) == []
    ]
    status = 0
    for name in names:
        try:
            same = export(name, recipes, options.models, options.record)
        except (ExportError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 3
        status = status if same or options.record else 1
    return status


def export(name: str, recipes: dict[str, Any], models: Path | None, record: bool) -> bool:
    """Make one graph; whether it is as recorded. With ``record``, keep it and its digest.

    ``models`` is a folder in which the model stays with its weights, as ``NAME/model.onnx``.
    """
    graph = recipes["graphs"].get(name)
    if graph is None:
        raise ExportError(f"There is no such graph in {RECIPES.relative_to(ROOT)}.")
    if missing := _lacks(recipes, graph):
        command = f"pip install {' '.join(recipes['tools'][graph['tool']])}"
        raise ExportError(f"Not installed here: {', '.join(missing)}. {command}")
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if (model := graph.get("model")) is not None:
            from random_model import save_random_model

            recipe = recipes["models"][model]
            save_random_model(work / "model", recipe["model_type"], recipe["configuration"])
        for file, content in graph.get("files", {}).items():
            (work / file).write_text(json.dumps(content), encoding="utf-8")
        for command in graph["commands"]:
            _run(command, work)
        if not (work / "out" / "model.onnx").is_file():
            raise ExportError(f"'{graph['commands'][-1]}' wrote no out/model.onnx.")
        weightless = read_weightless(work / "out" / "model.onnx", f"{name}.onnx.data")
        if models is not None:
            shutil.copytree(work / "out", models / name, dirs_exist_ok=True)
            if model is not None:
                shutil.copy(work / "model" / "config.json", models / name)
    return _compare_or_record(name, graph, weightless, record)


def _run(command: str, work: Path) -> None:
    """Run an exporter with the scripts of this environment, and without a network."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parent),
        "HF_HUB_OFFLINE": "1",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    log = work / "log"
    with log.open("wb") as file:
        done = subprocess.run(
            shlex.split(command), cwd=work, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    if done.returncode:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise ExportError(f"'{command}' ended with {done.returncode}:\n{end}")


def _compare_or_record(
    name: str, graph: dict[str, Any], model: onnx.ModelProto, record: bool
) -> bool:
    content = model.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).hexdigest()
    nodes = sum(node.op_type == "GroupQueryAttention" for node in model.graph.node)
    same = (digest, nodes) == (graph.get("sha256"), graph.get("nodes"))
    print(f"{name}: {len(content)} bytes, {nodes} nodes, sha256 {digest}", end="")
    print(", as recorded" if same else ", NOT as recorded" if not record else ", recorded")
    if record:
        (EXPORTED / "graphs" / f"{name}.onnx").write_bytes(content)
        text = RECIPES.read_text(encoding="utf-8")
        for field, value in (("nodes", nodes), ("sha256", digest)):
            pattern = rf"(?m)(^  {name}:\n(?:    .*\n)*?    {field}:).*$"
            text, found = re.subn(pattern, rf"\1 {value}", text)
            if not found:
                raise ExportError(f"Add '{field}:' to its recipe.")
        RECIPES.write_text(text, encoding="utf-8")
    return same


def _lacks(recipes: dict[str, Any], graph: dict[str, Any]) -> list[str]:
    """The requirements of the graph's tool that are not installed in the version of the recipe."""
    return [pin for pin in recipes["tools"][graph["tool"]] if not _installed(pin)]


def _installed(pin: str) -> bool:
    name, _, pinned = pin.partition("==")
    try:
        return version(name).partition("+")[0] == pinned
    except PackageNotFoundError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="default: all of the tools that are installed here"
    )
    parser.add_argument("--record", action="store_true", help="keep the graph and its digest")
    parser.add_argument("--models", type=Path, metavar="DIR", help="keep the models, with weights")
    return parser


if __name__ == "__main__":
    sys.exit(main())
