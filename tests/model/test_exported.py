"""Graphs as exporters write them: each is there, as its recipe says, and without weights."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from typing import Any, Final

import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from onnx.external_data_helper import uses_external_data

from conformance.base.paths import ROOT

EXPORTED: Final = ROOT / "cases" / "exported"
GRAPHS: Final = EXPORTED / "graphs"
FLOATS: Final = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}

if not EXPORTED.is_dir():
    pytest.skip("not a checkout", allow_module_level=True)

sys.path.insert(0, str(ROOT / ".ci" / "exports"))

RECIPES: Final[dict[str, Any]] = yaml.safe_load(
    (EXPORTED / "recipes.yaml").read_text(encoding="utf-8")
)


def load(name: str) -> onnx.ModelProto:
    return onnx.load(GRAPHS / f"{name}.onnx", load_external_data=False)


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Those of the graph's initializers and nodes, in subgraphs too."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else []
            yield from tensors_of(attribute.g) if attribute.HasField("g") else []


def most(tensor: onnx.TensorProto) -> int:
    """How many elements a tensor inside a graph may have."""
    return 1 if tensor.data_type in FLOATS else 64


def test_nothing_is_left_over() -> None:
    assert {file.stem for file in GRAPHS.iterdir()} == {*RECIPES["graphs"]}
    used = {graph.get("model") for graph in RECIPES["graphs"].values()} - {None}
    assert used == {*RECIPES["models"]}
    assert {graph["tool"] for graph in RECIPES["graphs"].values()} == {*RECIPES["tools"]}


@pytest.mark.parametrize(("name", "recipe"), RECIPES["graphs"].items(), ids=RECIPES["graphs"])
def test_a_graph_is_what_its_recipe_says_without_weights(name: str, recipe: dict[str, Any]) -> None:
    content, graph = (GRAPHS / f"{name}.onnx").read_bytes(), load(name).graph
    assert len(content) < 450_000
    assert hashlib.sha256(content).hexdigest() == recipe["sha256"]
    assert recipe["shows"].endswith(".")
    nodes = [node.op_type for node in graph.node]
    assert nodes.count("GroupQueryAttention") == recipe["nodes"]
    outside = [tensor for tensor in tensors_of(graph) if uses_external_data(tensor)]
    for tensor in tensors_of(graph):
        assert uses_external_data(tensor) or math.prod(tensor.dims) <= most(tensor)
    entries = {tuple((e.key, e.value) for e in tensor.external_data) for tensor in outside}
    assert len(entries) == len(outside) > 0, "two weights have one place"
    assert {dict(entry)["location"] for entry in entries} == {f"{name}.onnx.data"}
    assert not (GRAPHS / f"{name}.onnx.data").exists()
    for place in (b"/tmp/", b"/home/", b"/root/", b"site-packages", b"http"):
        assert place not in content


def test_the_graphs_have_the_calls_that_make_exports_differ() -> None:
    """So that a reader of graphs that passes here has seen each of these forms."""
    graphs = [load(name).graph for name in RECIPES["graphs"]]
    nodes = [n for graph in graphs for n in graph.node if n.op_type == "GroupQueryAttention"]
    assert {len(node.input) for node in nodes} >= {7, 9, 11, 12, 14, 16}
    assert any(node.input[1] == "" for node in nodes), "packed"
    assert any("" in node.input[9:11] for node in nodes), "an empty name among the inputs"
    attributes = {attribute.name for node in nodes for attribute in node.attribute}
    assert attributes >= {"do_rotary", "local_window_size", "sliding_window_cache", "softcap"}
    assert attributes >= {"k_quant_type", "qk_norm_epsilon", "kv_cache_bit_width"}


def value(name: str, shape: list[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
