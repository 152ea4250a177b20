"""The oracle compared with onnx.reference: Attention 23-25, RotaryEmbedding, TensorScatter."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from other_oracles import BLOCK, CONFIGURATIONS, Said, largest_difference
from random_configurations import STAGES, random_configuration
from standard_operators import standard_ways


@pytest.mark.parametrize("first", range(0, CONFIGURATIONS, BLOCK))
def test_agrees_with_onnx_reference(first: int) -> None:
    for seed in range(first, first + BLOCK):
        configuration = random_configuration(seed)
        largest_difference(configuration, standard_ways(configuration))


def test_the_random_configurations_cover_the_required_variety() -> None:
    configurations = [random_configuration(seed) for seed in range(CONFIGURATIONS)]
    saids = [Said(configuration) for configuration in configurations]
    found: Counter[str] = Counter(configuration.stage for configuration in configurations)
    for said in saids:
        found.update(said.inputs.keys() & {"position_ids", "attention_bias", "head_sink"})
        found.update(said.attributes.keys() & {"softcap", "scale", "do_rotary"})
        traits = {
            "packed": "key" not in said.inputs,
            "window": said.window is not None,
            "window, several tokens on a past": (
                said.window is not None and not said.prompt and said.queries > 1
            ),
            "not causal": not said.causal,
            "interleaved": said.attributes.get("rotary_interleaved") == 1,
            "partial": 2 * said.inputs.get("cos_cache", np.zeros((0, 999))).shape[1]
            < said.head_size,
            "ragged": len(set(said.lengths)) > 1,
            "several tokens on a ragged past": (
                len(set(said.lengths)) > 1 and not said.prompt and said.queries > 1
            ),
            "holes in the bias": np.isneginf(said.inputs.get("attention_bias", 0.0)).any(),
            "groups": said.num_heads > said.kv_num_heads > 1,
        }
        found.update(trait for trait, there in traits.items() if there)
    assert min(found.values()) >= CONFIGURATIONS // 20, found
    assert set(STAGES) <= found.keys()
    ways = Counter(
        way.way for configuration in configurations[:140] for way in standard_ways(configuration)
    )
    assert min(ways.values()) >= 10, ways
    assert len(ways) == 4
