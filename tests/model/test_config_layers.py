"""The table of layers that is made of a config.json: families, rotary scaling, what is not read."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import tables

from conformance.graph.reading import ModelError
from conformance.model.calls.groups import ranges
from conformance.model.config.config_calls import read_configuration
from conformance.model.config.configuration import configuration_beside
from conformance.model.config.families import FAMILIES
from conformance.model.config.layers import ExpectedLayer, layers_of_config
from conformance.model.config.settings import flat, unread

TABLES = tables(__file__)

FAMILIES_OF_TEST = [
    pytest.param(case, id=f"{n} {flat(case['config'])['model_type']}")
    for n, case in enumerate(TABLES["families"])
]


def written(config: object) -> Any:
    """The configuration with its lists written out, of which the file has ``{of, times}``."""
    if isinstance(config, dict) and config.keys() == {"of", "times"}:
        return config["of"] * config["times"]
    return {k: written(v) for k, v in config.items()} if isinstance(config, dict) else config


def words(layer: ExpectedLayer) -> Iterator[str]:
    """A layer in words: a fact of the suite's table each."""
    if layer.mixer:
        yield layer.mixer
        return
    yield {None: "chunks", 0: "global"}.get(layer.window, f"window {layer.window}")
    yield f"{layer.num_heads}:{layer.kv_num_heads} heads of {layer.head_size}"
    if layer.source is not None:
        yield f"cache of {layer.source}"
    if layer.scale is not None:
        yield f"scale {layer.scale:.6g}"
    if layer.softcap:
        yield f"softcap {layer.softcap:g}"
    if layer.sink:
        yield "sink"
    if layer.norm:
        yield f"norm {layer.norm}"
    if not layer.rotates:
        yield "no rotation"
        return
    yield f"{layer.style}, base {layer.base:g}"
    if layer.share != 1:
        yield f"share {layer.share:.4g}"
    assert layer.rotation is not None
    if layer.rotation.scaling:
        yield f"scaled by {layer.rotation.scaling}"
    if layer.rotation.factor != 1:
        yield f"factor {layer.rotation.factor:.5g}"


def summary(config: Mapping[str, Any]) -> dict[str, str]:
    """The layers of a configuration: those that are alike, and what they are."""
    alike: dict[str, list[int]] = {}
    for number, layer in enumerate(layers_of_config(flat(config))):
        alike.setdefault("; ".join(words(layer)), []).append(number)
    return {ranges(numbers): what for what, numbers in alike.items()}


@pytest.mark.parametrize("case", FAMILIES_OF_TEST)
def test_the_layers_of_a_family(case: dict[str, Any]) -> None:
    config = written(case["config"])
    assert summary(config) == case["layers"]
    assert not unread(flat(config))


def test_every_family_is_tried() -> None:
    tried = {flat(case["config"])["model_type"] for case in TABLES["families"]}
    assert FAMILIES.keys() <= tried, FAMILIES.keys() - tried


@pytest.mark.parametrize("form", [pytest.param(f, id=f["form"]) for f in TABLES["rotary_forms"]])
def test_frequencies_are_those_of_transformers(form: dict[str, Any]) -> None:
    """The numbers were computed by `ROPE_INIT_FUNCTIONS` of Transformers 5.24.0."""
    rotation = layers_of_config(flat(form["config"]))[-1].rotation
    assert rotation is not None
    np.testing.assert_allclose(rotation.frequencies, form["frequencies"], rtol=1e-6)
    np.testing.assert_allclose(rotation.long_frequencies, form.get("long", []), rtol=1e-6)
    assert math.isclose(rotation.factor, form["factor"], rel_tol=1e-6)


def test_settings_that_are_not_read_are_named(tmp_path: Path) -> None:
    config = {
        "num_attention_heads": 8, "hidden_size": 64, "num_hidden_layers": 2, "lm_head_bias": True,
        "attention_dropout": 0.1, "rope_wobble": 2, "attn_tilt": True, "nope_twist": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_configuration(tmp_path).unread == ["attn_tilt", "rope_wobble"]
    assert configuration_beside(tmp_path / "x.onnx").unread == ("attn_tilt", "rope_wobble")


ODD = (
    *(None, True, 0, -1, 1, 2, 7, 10**18, -(10**18), 0.5, 1e308, math.inf, -math.inf, math.nan),
    *("", "x", "{layers}", "full_attention", "LLLG", "*" * 9, [], {}, [1, 0], [[[]]], [math.nan]),
    *([["global", "local"], 10**9], [None] * 5, {"full_attention": None}, {"rope_type": "yarn"}),
    *({"rope_type": "longrope", "short_factor": [0] * 9}, {"0": {"head_dim": 0}}, {"attention": 1}),
    *({"rope_type": "llama3", "factor": math.nan}, {"type": ["x"]}, {"factor": 1e-300}, [[1], 2]),
)  # fmt: skip


@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.push)])
def test_any_configuration_has_layers_or_an_error_in_words(tmp_path: Path, count: int) -> None:
    """Values of any kind for every setting that is read; nothing else comes of them."""
    names = sorted({name for case in TABLES["families"] for name in flat(written(case["config"]))})
    bases = [flat(written(case["config"])) for case in TABLES["families"]]
    chance = random.Random(7)
    file = tmp_path / "config.json"
    for _ in range(count):
        config = dict(chance.choice(bases))
        for name in chance.sample(names, chance.choice((1, 1, 2, 5))):
            config[name] = chance.choice(ODD)
        file.write_text(json.dumps(config))
        try:
            layers = configuration_beside(tmp_path / "x.onnx").layers
            read_configuration(file)
        except ModelError:
            continue
        for layer in layers:
            assert not layer.rotation or np.isfinite(layer.rotation.frequencies).all()


def test_a_list_with_a_million_entries_costs_little(tmp_path: Path) -> None:
    config = {"num_attention_heads": 8, "hidden_size": 64, "layer_types": ["conv"] * 1_000_000}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert configuration_beside(tmp_path / "x.onnx").layers == ()
    with pytest.raises(ModelError, match="its num_hidden_layers is 1,000,000, and at most 4,096"):
        read_configuration(file)
