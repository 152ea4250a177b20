"""The oracle compared with onnx.reference, for features that Attention does not have.

Each is a separate standard operator before or after Attention: RMSNormalization 23 for the
norm of queries and keys, QuantizeLinear and DequantizeLinear 25 for a quantised cache, the fourth
output of Attention for output_qk.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper as oh
import pytest
from numpy.random import RandomState
from onnx.reference import ReferenceEvaluator
from other_oracles import NEAR, Said, largest_difference
from random_configurations import Configuration, random_configuration
from standard_operators import Standard, run_standard

from conformance.oracle import reference

CONFIGURATIONS = range(140)


# --- the norm of queries and keys ---


class Normed(Said):
    """A call whose queries and keys RMSNormalization has normalised; the rest is unchanged."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.query = self.norm(self.query, "q_norm_weight")
        self.key = self.norm(self.key, "k_norm_weight")

    def norm(self, tokens: np.ndarray, weight: str) -> np.ndarray:
        if not tokens.size:
            return tokens
        heads = tokens.reshape(*tokens.shape[:2], -1, self.head_size)
        epsilon = self.attributes.get("qk_norm_epsilon", 1e-6)
        feeds = {"x": heads, "weight": self.inputs[weight]}
        options = {"axis": -1, "epsilon": epsilon}
        return run_standard("RMSNormalization", 23, feeds, "y", **options)[0].reshape(tokens.shape)


@pytest.mark.parametrize("stage", range(7))
def test_query_and_key_norm_agree(stage: int) -> None:
    for seed in CONFIGURATIONS[stage::7]:
        rng, configuration = RandomState(seed), random_configuration(seed)
        inputs = configuration.inputs
        size = Said(configuration).head_size
        weights = {
            name: rng.standard_normal(size).astype(inputs["query"].dtype)
            for name in ("q_norm_weight", "k_norm_weight")
        }
        epsilon = {} if seed % 3 == 0 else {"qk_norm_epsilon": float(rng.choice([1e-5, 0.5]))}
        configuration = replace(
            configuration, inputs=inputs | weights, attributes=configuration.attributes | epsilon
        )
        ways = [Standard(Normed(configuration), 24).with_the_cache_outside()]
        largest_difference(configuration, ways)


# --- output_qk ---


@pytest.mark.parametrize(("qk_output", "standard_mode"), [(1, 2), (2, 3)], ids=["before", "after"])
def test_output_qk_agrees(qk_output: int, standard_mode: int) -> None:
    for seed in CONFIGURATIONS:
        configuration = random_configuration(seed)
        attributes = configuration.attributes | {"qk_output": qk_output}
        configuration = replace(configuration, attributes=attributes)
        said = Said(configuration)
        way = Standard(said, 24, standard_mode)
        theirs = way.with_the_cache_outside().matrix[..., way.first :][..., : said.total]
        rows = Standard(said, 24).with_the_cache_outside().weight > 0.5
        ours = reference(configuration.inputs, attributes, ["output_qk"])["output_qk"]
        exists = (np.arange(said.total) < said.lengths[:, None])[:, None, None, :]
        defined = exists & (rows & said.real[:, None, :])[..., None]
        if qk_output == 1:  # masked entries are not specified
            most = float(ml_dtypes.finfo(configuration.inputs["query"].dtype).max)
            defined = defined & (np.abs(theirs) <= most)
        np.testing.assert_array_equal(ours.defined, defined, str(configuration))
        off = np.abs(ours.value - theirs)[defined].max(initial=0.0)
        assert off <= NEAR, str(configuration)


# --- quantised caches ---


ZERO_POINT = {"int8": 0, "uint4": 8, "float8e4m3fn": 0}
STORED = {
    "int8": (np.dtype(np.int8), onnx.TensorProto.INT8),
    "uint4": (np.dtype(ml_dtypes.uint4), onnx.TensorProto.UINT4),
    "float8e4m3fn": (np.dtype(ml_dtypes.float8_e4m3fn), onnx.TensorProto.FLOAT8E4M3FN),
}


@cache
def linear_op(op_type: str, word: str) -> Any:
    """QuantizeLinear or DequantizeLinear of one stored type."""
    given, made = onnx.TensorProto.FLOAT, STORED[word][1]
    if op_type == "DequantizeLinear":
        given, made = made, given
    types = {"x": given, "scale": onnx.TensorProto.FLOAT, "zero": STORED[word][1]}
    node = oh.make_node(op_type, list(types), ["y"], axis=2)
    infos = [oh.make_tensor_value_info(name, type_, None) for name, type_ in types.items()]
    graph = oh.make_graph([node], "linear", infos, [oh.make_tensor_value_info("y", made, None)])
    return ReferenceEvaluator(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 25)]))


class Quantiser:
    """QuantizeLinear and DequantizeLinear, a scale for all or one for each channel of each head.

    4-bit values are uint4 with a zero point of 8; two a byte is how ONNX keeps that type in a file.
    """

    def __init__(self, word: str, scale: np.ndarray) -> None:
        self.word, self.scale = word, scale
        self.zero = np.full(scale.shape, ZERO_POINT[word], STORED[word][0])

    def run(self, op_type: str, x: np.ndarray) -> np.ndarray:
        """[B, K, rows, D] in and out; channels are one axis for these operators."""
        batch_size, heads, rows, size = x.shape
        flat = x.transpose(0, 2, 1, 3).reshape(batch_size, rows, heads * size)
        feeds = {"x": flat, "scale": self.scale, "zero": self.zero}
        (y,) = linear_op(op_type, self.word).run(None, feeds)
        return y.reshape(batch_size, rows, heads, size).transpose(0, 2, 1, 3)

    def quantised(self, x: np.ndarray) -> np.ndarray:
        return self.run("QuantizeLinear", x.astype(np.float32))

    def dequantised(self, codes: np.ndarray) -> np.ndarray:
        return self.run("DequantizeLinear", codes).astype(float)

    def bytes_of(self, codes: np.ndarray) -> np.ndarray:
        """The content of the cache's tensor."""
        if self.word != "uint4":
            return codes
        packed = np.frombuffer(onnx.numpy_helper.from_array(codes).raw_data, np.uint8)
        return packed.reshape(*codes.shape[:3], codes.shape[3] // 2)


class Quantised(Standard):
    """A call on a quantised cache: Attention gets quantised and dequantised buffers."""

    def __init__(self, said: Said, quantisers: dict[str, Quantiser]) -> None:
        super().__init__(said, 24)
        self.quantisers = quantisers
        self.codes: dict[str, np.ndarray] = {}

    def laid_out(self, past_name: str, new: np.ndarray) -> np.ndarray:
        quantiser = self.quantisers[past_name]
        codes = quantiser.quantised(super().laid_out(past_name, new))
        self.codes[past_name] = codes
        return quantiser.dequantised(codes)


def quantised_call(seed: int, word: str, kind: str) -> tuple[Configuration, Quantised] | None:
    """A random call with a quantised past, or None where the draw does not allow one."""
    rng, configuration = RandomState(seed), random_configuration(seed)
    said = Said(configuration)
    if "past_key" not in configuration.inputs or said.head_size % 2:
        return None
    channels = said.kv_num_heads * said.head_size
    quantisers, inputs = {}, dict(configuration.inputs)
    for side, past_name in (("k", "past_key"), ("v", "past_value")):
        # Powers of two: float32 arithmetic, which is all these operators have, is exact then.
        shape = () if kind == "PER_TENSOR" else (channels,)
        steps = {"int8": (-7, -4), "uint4": (-3, 0), "float8e4m3fn": (-9, 1)}[word]
        scale = (2.0 ** rng.randint(*steps, shape)).astype(np.float32)
        quantisers[past_name] = Quantiser(word, scale)
        codes = quantisers[past_name].quantised(said.inputs[past_name])
        inputs[past_name] = quantisers[past_name].bytes_of(codes)
        said.inputs[past_name] = quantisers[past_name].dequantised(codes)
        whole = (1,) if kind == "PER_TENSOR" else (1, said.kv_num_heads, 1, said.head_size)
        inputs[f"{side}_scale"] = scale.reshape(whole)
    attributes = configuration.attributes | {
        "k_quant_type": kind,
        "v_quant_type": kind,
        "kv_cache_bit_width": 4 if word == "uint4" else 8,
    }
    return replace(configuration, inputs=inputs, attributes=attributes), Quantised(said, quantisers)


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("word", STORED)
def test_quantised_caches_agree(word: str, kind: str) -> None:
    compared = 0
    for seed in CONFIGURATIONS:
        made = quantised_call(seed, word, kind)
        if made is None:
            continue
        configuration, way = made
        said, computed = way.said, way.with_the_cache_outside()
        references = reference(
            configuration.inputs,
            configuration.attributes,
            ["output", "present_key", "present_value"],
        )
        rows = (computed.weight > 0.5) & said.real[:, None, :]
        shape = (said.batch_size, said.queries, said.num_heads, said.head_size)
        want = np.broadcast_to(rows.transpose(0, 2, 1)[..., None], shape)
        output = references["output"]
        np.testing.assert_array_equal(output.defined.reshape(shape), want, str(configuration))
        theirs = computed.output.transpose(0, 2, 1, 3)
        off = np.abs(output.value.reshape(shape) - theirs)[want].max(initial=0.0)
        assert off <= NEAR, f"{off} off: {configuration}"
        written = (np.arange(said.total) < said.lengths[:, None])[:, None, :, None]
        for past_name, codes in way.codes.items():
            present = references[past_name.replace("past", "present")]
            stored = way.quantisers[past_name].bytes_of(codes)[:, :, : said.total].astype(float)
            ours = present.value[:, :, : said.total]
            there = present.defined[:, :, : said.total]
            np.testing.assert_array_equal(there, np.broadcast_to(written, there.shape))
            np.testing.assert_array_equal(ours[there], stored[there], str(configuration))
        compared += 1
    assert compared >= 40
