"""Notes on graphs that contradict the config.json beside them, and none on graphs that do not."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from attention_models import Layer, decoder, saved
from onnx import helper, numpy_helper
from tables import tables
from twin_decoders import graph_of, usual

from conformance.graph.nodes import nodes_of
from conformance.graph.reading import read_model
from conformance.model.calls.groups import groups_of
from conformance.model.calls.notes import Note, notes_on
from conformance.model.config.configuration import configuration_beside

CASES = tables(__file__)
Array = np.ndarray

ROWS = 256
SHORT, LONG = ([1 + step * n for n in range(8)] for step in (0.1, 3.0))


def notes(model: onnx.ModelProto, config: dict[str, Any], folder: Path) -> list[Note]:
    """The notes on a model with a config.json beside it."""
    (folder / "config.json").write_text(json.dumps(config))
    read = read_model(saved(model, folder))
    beside = configuration_beside(read.path)
    return [*notes_on(read, groups_of(nodes_of(read).nodes, beside)[0], beside)]


def config(**more: object) -> dict[str, Any]:
    """A configuration of the layers of :func:`graph`."""
    base = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "model_type": "llama",
    }
    base |= {"hidden_size": 64, "num_hidden_layers": 2, "rope_theta": 10000.0}
    return {**base, **more}


def turned(
    base: float = 10000.0, by: Sequence[float] | float = 1.0, factor: float = 1.0, width: int = 16
) -> tuple[Array, Array]:
    """Cosines and sines of positions divided ``by`` a number for each pair, or one for all."""
    frequencies = base ** (-np.arange(0, width, 2) / width) / np.asarray(by)
    angles = np.arange(ROWS)[:, None] * frequencies
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(
        np.float32
    )


def graph(*layers: Layer, with_tables: Sequence[tuple[Array, Array]] = ()) -> onnx.ModelProto:
    """Two layers, or those that are given, with tables of their own; the last ones are repeated."""
    layers = layers or (Layer(), Layer())
    model = decoder(*layers, rows=ROWS)
    given = [*(with_tables or [turned()])]
    for tensor in model.graph.initializer:
        name, _, number = tensor.name.partition(".")
        if name in ("cos", "sin"):
            pair = given[min(int(number), len(given) - 1)]
            tensor.CopyFrom(numpy_helper.from_array(pair[name == "sin"], tensor.name))
    return model


def told(made: Sequence[Note]) -> list[str]:
    """The sentences on contradictions with the configuration."""
    return [note.text for note in made if note.contradicts]


LINEAR = {"rope_scaling": {"type": "linear", "factor": 8.0}}
YARN = {
    "rope_scaling": {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64,
        "attention_factor": 1.25,     }
}  # fmt: skip
#: The divisors of YaRN, which test_config_layers.py compares with those of Transformers.
OF_YARN = [1, 1.4545, 2.6667, *[16] * 5]
NO_ROPE = Layer(attributes={"do_rotary": 0})
WINDOW = Layer(attributes={"local_window_size": 8})
SCALED = Layer(attributes={"scale": 0.25 * 1.25**2})
FIRST = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}

RIGHT: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
    "plain": (graph(), config()),
    "another family": (graph(), config(model_type="unheard_of")),
    "no configuration": (graph(), {}),
    "linear": (graph(with_tables=[turned(by=8)]), config(**LINEAR)),
    "yarn": (graph(with_tables=[turned(by=OF_YARN, factor=1.25)]), config(**YARN)),
    "yarn, its factor in the scale": (
        graph(SCALED, SCALED, with_tables=[turned(by=OF_YARN)]), config(**YARN),
    ),
    "bases by layer type": (
        graph(WINDOW, Layer(), with_tables=[turned(), turned(1e6)]),
        config(
            **FIRST, rope_theta=None, rope_parameters={
                "sliding_attention": {"rope_theta": 10000.0}, "full_attention": {"rope_theta": 1e6},
            },
        ),
    ),
    "windows that include the query": (
        graph(Layer(attributes={"local_window_size": 9}), Layer()), config(**FIRST),
    ),
    "heads of the cache are repeated": (graph(Layer(kv_heads=4), Layer(kv_heads=4)), config()),
    "tables that turn nothing": (
        graph(with_tables=[turned(), turned(by=1e30)]),
        config(model_type="smollm3", no_rope_layers=[1, 0]),
    ),
    "a hybrid whose layers are counted alone": (
        graph(WINDOW, Layer()),
        config(
            num_hidden_layers=4, sliding_window=8,
            layer_types=["conv", "sliding_attention", "conv", "full_attention"],
        ),
    ),
    "multi-head latent attention": (graph(Layer(kv_heads=4)), config(kv_lora_rank=64)),
    "bfloat16": (
        graph(with_tables=[tuple(
            (each.view(np.uint32) & 0xFFFF0000).view(np.float32) for each in turned(5e5)
        )]),
        config(rope_theta=5e5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_graph_that_agrees_has_no_note(tmp_path: Path, name: str) -> None:
    assert notes(*RIGHT[name], tmp_path) == []


GRAPHS = {
    "plain": graph(),
    "by 8": graph(with_tables=[turned(by=8)]),
    "base 500": graph(with_tables=[turned(500.0)]),
    "yarn without its factor": graph(with_tables=[turned(by=OF_YARN)]),
    "other frequencies": graph(with_tables=[turned(by=[1, 2, 1, 2, 1, 2, 1, 2])]),
    "second without rotation": graph(Layer(), NO_ROPE),
    "pairs": graph(*[Layer(attributes={"rotary_interleaved": 1})] * 2),
    "window in the second": graph(Layer(), WINDOW),
    "crossed": graph(
        WINDOW, Layer(), Layer(borrows=1, attributes={"local_window_size": 8}), Layer(borrows=0)
    ),
    "scale of 1": graph(*[Layer(attributes={"scale": 1.0})] * 2),
    "heads of 8": graph(*[Layer(size=8, kv_heads=1)] * 2, with_tables=[turned(width=8)]),
}


@pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES["wrong"]])
def test_a_graph_that_contradicts_its_configuration(tmp_path: Path, case: dict[str, Any]) -> None:
    made = told(notes(GRAPHS[case["graph"]], config(**case["config"]), tmp_path))
    assert made == [f"{sentence}." for sentence in case["told"]]


def choosing(then_long: bool, condition: str = "Greater", number: int = 32) -> onnx.ModelProto:
    """Two layers whose tables are chosen by the number of tokens, as for Phi-3's LongRoPE."""
    model = decoder(Layer(), Layer(), rows=ROWS)
    del model.graph.initializer[:]
    factor = math.sqrt(1 + math.log(ROWS / 32) / math.log(32))
    bodies = []
    for which, by in (
        ("then", LONG if then_long else SHORT),
        ("else", SHORT if then_long else LONG),
    ):
        made = [
            helper.make_node("Constant", [], [f"{n}.{which}"], value=numpy_helper.from_array(a))
            for n, a in zip(("cos", "sin"), turned(by=by, factor=factor), strict=True)
        ]
        outputs = [helper.make_tensor_value_info(n.output[0], 1, [ROWS, 8]) for n in made]
        bodies.append(helper.make_graph(made, which, [], outputs))
    model.graph.initializer.append(numpy_helper.from_array(np.array(number, np.int32), "original"))
    chosen = [
        helper.make_node(condition, ["total_sequence_length", "original"], ["is_long"]),
        helper.make_node(
            "If", ["is_long"], ["cos", "sin"], then_branch=bodies[0], else_branch=bodies[1]
        ),
    ]
    for at, node in enumerate(chosen):
        model.graph.node.insert(at, node)
    for node in model.graph.node:
        node.input[:] = [name.partition(".")[0] if name[:3] in ("cos", "sin") else name
                         for name in node.input]  # fmt: skip
    return model


LONGROPE = {
    "model_type": "phi3", "max_position_embeddings": ROWS, "original_max_position_embeddings": 32,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "swapped"),
    [
        (choosing(then_long=True), False),
        (choosing(then_long=False), True),
        (choosing(then_long=False, condition="LessOrEqual"), False),
        (choosing(then_long=True, condition="LessOrEqual"), True),
        (choosing(then_long=False, condition="Equal"), False),  # cannot be told
    ],
)
def test_tables_for_short_and_long_contexts(
    tmp_path: Path, model: onnx.ModelProto, swapped: bool
) -> None:
    made = notes(model, config(**LONGROPE), tmp_path)
    assert ["beyond 32 tokens" in note.text for note in made] == [True] * swapped


@pytest.mark.parametrize(("model_type", "order", "sentence"), CASES["norms"])
def test_norms_of_queries_and_keys(
    tmp_path: Path, model_type: str, order: str, sentence: str
) -> None:
    rotary = "hand" if "hand" in order else "op"
    norm = "" if "norm" not in order else "before" if order.startswith("norm") else "after"
    model = graph_of(usual(layers=1, rotary=rotary, norm=norm))
    made = config(model_type=model_type, hidden_size=32, num_hidden_layers=1)
    assert told(notes(model, made, tmp_path)) == ([f"{sentence}."] if sentence else [])


def test_a_norm_that_is_written_out_is_not_known(tmp_path: Path) -> None:
    """A product of two values may be the end of a norm, and no factor."""
    model = graph_of(usual(layers=1, rotary="op", norm="before"))
    for node in model.graph.node:
        if node.op_type == "SimplifiedLayerNormalization" and "_norm" in node.input[1]:
            node.op_type, node.input[1] = "Mul", node.input[0]
    made = config(model_type="qwen3", hidden_size=32, num_hidden_layers=1)
    assert told(notes(model, made, tmp_path)) == []


def test_a_family_in_braces_is_a_name_like_others(tmp_path: Path) -> None:
    made = told(notes(GRAPHS["heads of 8"], config(model_type="{layers} {}"), tmp_path))
    assert made[0] == "config.json has a kv_num_heads of 2, and layers 0–1 have 1."
