"""`gqa check` on graphs as people gave them: the exit status, and words of the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from as_user import Gqa
from given_graphs import GRAPHS, files_of, truth_of, write
from tables import tables

TABLES = tables(__file__)
GIVEN: dict[str, dict[str, Any]] = TABLES["graphs"]

#: Those that README's command runs; every push runs the others, too.
FEW = (
    *("if_step_branch_lost_window", "trimmed_window_cache", "padding_at_the_left_is_asked"),
    *("values_for_keys_of_a_borrowed_cache", "functions_in_functions"),
)

pytest.importorskip("onnxruntime")


def test_each_graph_has_an_answer() -> None:
    assert {row.get("graph", name) for name, row in GIVEN.items() if "decoder" not in row} == {
        *GRAPHS
    }


def test_what_is_true() -> None:
    """Plain onnxruntime and NumPy say of each decoder what the table says."""
    told = {name: row["true"] for name, row in GIVEN.items() if "true" in row}
    found = {name: truth_of(GIVEN[name]) for name in told}
    assert {n: {way: found[n].get(way) for way in ways} for n, ways in told.items()} == told


def said_of(row: Mapping[str, Any], said: str) -> dict[str, list[str]]:
    """The words that an answer lacks, and those that it has and must not have."""
    text = " ".join(said.split()).lower()
    found = {
        word: re.search(word.lower(), text) for word in (*row["says"], *row.get("without", ()))
    }
    lacks = [word for word in row["says"] if not found[word]]
    return {"lacks": lacks, "has": [word for word in row.get("without", ()) if found[word]]}


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.push) for name in GIVEN]
)
def test_a_graph(gqa: Gqa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    row = GIVEN[name]
    done = gqa("check", str(write(tmp_path, files_of(name, row))), "--ep", "cpu")
    allowed = row["exit"] if isinstance(row["exit"], list) else [row["exit"]]
    assert said_of(row, done.both) == {"lacks": [], "has": []}, done.both
    assert done.status in allowed, done.both


@pytest.mark.push
@pytest.mark.parametrize("name", TABLES["configurations"])
def test_layers_without_attention_are_not_counted(gqa: Gqa, tmp_path: Path, name: str) -> None:
    row = TABLES["configurations"][name]
    config, layers = dict(row["config"]), row.get("layers")
    if layers:
        text = config["text_config"] = dict(config.get("text_config", config))
        text["layer_types"] = layers * (text["num_hidden_layers"] // len(layers))
        config |= {} if row["config"].get("text_config") else text
    if "attn_type_list" in config:
        config["attn_type_list"] = config["attn_type_list"] * 10
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(config))
    done = gqa("models", str(file), "--ep", "cpu")
    assert said_of(row, done.both) == {"lacks": [], "has": []}, done.both
