"""The oracle compared with examples worked out by hand.

Comparisons with other implementations are in test_oracle_onnx.py and test_oracle_torch.py, formulas
in test_oracle_closed_forms.py, calls that it rejects in test_oracle_undefined.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes, inputs_of
from random_configurations import random_configuration
from small_calls import call_of, decode_of, good, output_of

from conformance.base.paths import ROOT
from conformance.bundle.inputs import draw_inputs
from conformance.case.steps import steps_of
from conformance.operator.call import checked_call
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES
from conformance.operator.tensors import attributes_of
from conformance.oracle import OracleError, reference
from conformance.oracle.read_call import read_call
from conformance.oracle.tolerance import budgets

# --- closed forms ---


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("scale", [{}, {"scale": 0.0}, {"scale": 0.5}], ids=["none", "0", "0.5"])
def test_scale_defaults_to_the_head_size(scale: dict[str, float]) -> None:
    keys, values = [[1.0, 0, 0, 0], [0.0] * 4], [[1.0, 0, 0, 0], [0.0] * 4]
    call = decode_of([3.0, 0, 0, 0], keys, values, **scale)
    np.testing.assert_allclose(output_of(call)[0, 0, 0], 1 / (1 + np.exp(-1.5)), atol=1e-15)


def test_attributes_are_rounded_as_the_model_holds_them() -> None:
    call = decode_of([1.0], [[1.0], [0.0]], [[1.0], [0.0]], scale=0.1)
    np.testing.assert_allclose(output_of(call), 1 / (1 + np.exp(-float(np.float32(0.1)))), 1e-15)


def test_softcap_comes_before_the_bias() -> None:
    bias = np.array([[[[0.0, 2.0]]]], np.float32)
    call = decode_of(
        [9.0], [[1.0], [0.0]], [[1.0], [0.0]], scale=1.0, softcap=2.0, attention_bias=bias
    )
    difference = 2 * np.tanh(4.5) - 2.0
    np.testing.assert_allclose(output_of(call), 1 / (1 + np.exp(-difference)), atol=1e-15)


def test_head_sink_is_neither_scaled_nor_capped_and_overrides_smooth_softmax() -> None:
    sink = np.array([3.0], np.float32)
    call = call_of([[1.0]], [[2.0]], [[1.0]], scale=0.5, softcap=1.0, head_sink=sink)
    logit = np.tanh(1.0)
    expected = np.exp(logit) / (np.exp(logit) + np.exp(3.0))
    np.testing.assert_allclose(output_of(call), expected, atol=1e-15)
    call[1]["smooth_softmax"] = 1
    np.testing.assert_allclose(output_of(call), expected, atol=1e-15)


@pytest.mark.parametrize(("smooth", "expected"), [(1, 0.5), (0, 1.0), (-1, 1.0)])
def test_smooth_softmax_is_a_sink_of_zero(smooth: int, expected: float) -> None:
    call = call_of([[0.0]], [[1.0]], [[1.0]], smooth_softmax=smooth)
    np.testing.assert_allclose(output_of(call), expected, atol=1e-15)


# --- rotary, by quarter turns: at position p the angle is p * 90 degrees ---


def quarter_turns(rows: int, half: int) -> Arrays:
    turns = np.arange(rows) % 4
    cos = np.array([1.0, 0.0, -1.0, 0.0])[turns]
    sin = np.array([0.0, 1.0, 0.0, -1.0])[turns]
    ones = np.ones((1, half))
    return {
        "cos_cache": (cos[:, None] * ones).astype(np.float32),
        "sin_cache": (sin[:, None] * ones).astype(np.float32),
    }


def present_key_of(call: tuple[Arrays, Attributes]) -> np.ndarray:
    return reference(*call, ["present_key"])["present_key"].value


@pytest.mark.parametrize(
    ("half", "interleaved", "turned"),
    [(2, 0, [-3, -4, 1, 2]), (2, 1, [-2, 1, -4, 3]), (1, 0, [-2, 1, 3, 4]), (1, 1, [-2, 1, 3, 4])],
    ids=["half-split", "interleaved", "partial", "partial interleaved"],
)
def test_rotary_patterns(half: int, interleaved: int, turned: list[int]) -> None:
    key = [[1.0, 2.0, 3.0, 4.0]] * 2
    call = call_of(
        key, key, key, do_rotary=1, rotary_interleaved=interleaved, **quarter_turns(4, half)
    )
    np.testing.assert_array_equal(present_key_of(call)[0, 0], [key[0], turned])


def test_connected_caches_do_nothing_without_do_rotary() -> None:
    key = [[1.0, 2.0]] * 2
    call = call_of(key, key, key, **quarter_turns(1, 9))
    np.testing.assert_array_equal(present_key_of(call)[0, 0], key)


EAST, NORTH, WEST, SOUTH = [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]


def test_a_first_prompt_uses_only_the_first_position() -> None:
    """Of the whole batch, counting up from it."""
    inputs, attributes = call_of([EAST] * 3, [EAST] * 3, [EAST] * 3, do_rotary=1)
    for name in ("query", "key", "value"):
        inputs[name] = np.repeat(inputs[name], 2, axis=0)
    inputs |= quarter_turns(9, 1)
    inputs["seqlens_k"] = np.array([2, 1], np.int32)
    inputs["position_ids"] = np.array([[2, 7, 7], [5, 6, 7]], np.int64)
    present = present_key_of((inputs, attributes))[:, 0]
    np.testing.assert_array_equal(present[0], [WEST, SOUTH, EAST])
    np.testing.assert_array_equal(present[1, :2], [WEST, SOUTH])


# --- caches and lengths ---


def ragged_decode(past_rows: int, total: int) -> tuple[Arrays, Attributes]:
    """Two sequences of 3 and 1 past tokens get their next token; past rows hold 10, 11, 12, ..."""
    past = [[[[row] for row in range(10, 10 + past_rows)]]] * 2
    new = [[[0.0]]] * 2, [[[1.0]], [[2.0]]], [[[5.0]], [[6.0]]]
    inputs = inputs_of(*new, past, past, lengths=[4, 2], total=total)
    return inputs, {"num_heads": 1, "kv_num_heads": 1}


def test_rows_beyond_the_sequence_are_never_read() -> None:
    inputs, attributes = ragged_decode(6, 4)
    expected = reference(inputs, attributes, ALL)
    inputs["past_key"][0, :, 3:] = np.nan
    inputs["past_value"][1, :, 1:] = np.inf
    for name, other in reference(inputs, attributes, ALL).items():
        np.testing.assert_array_equal(other.value, expected[name].value)


def test_padding_of_a_prompt_is_undefined_and_never_read() -> None:
    tokens = np.array([[[1.0], [2.0], [4.0]], [[8.0], [np.nan], [np.inf]]], np.float32)
    inputs, attributes = call_of([[0.0]] * 3, [[0.0]] * 3, [[0.0]] * 3)
    inputs |= {"query": tokens, "key": tokens, "value": tokens}
    inputs["seqlens_k"] = np.array([2, 0], np.int32)
    inputs["attention_bias"] = np.zeros((2, 1, 3, 3), np.float32)
    inputs["attention_bias"][1, :, 1:] = np.nan
    references = reference(inputs, attributes, ALL)
    computed = [[True, True, True], [True, False, False]]
    for name in ALL:
        shape = references[name].defined.shape
        np.testing.assert_array_equal(references[name].computed.reshape(2, 3), computed, str(shape))
        assert np.isfinite(references[name].value).all()
    assert references["output"].value[1, 0, 0] == 8.0
    watched = references["output"].watched["masked"][..., 0]
    np.testing.assert_array_equal(watched, [[False] * 3, [True, False, False]])


@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2), (1, 1, 2)])
def test_shapes_of_seqlens_k(shape: tuple[int, ...]) -> None:
    inputs, attributes = ragged_decode(3, 4)
    expected = output_of((inputs, attributes))
    inputs["seqlens_k"] = inputs["seqlens_k"].reshape(shape)
    inputs["total_sequence_length"] = inputs["total_sequence_length"].reshape(1)
    np.testing.assert_array_equal(output_of((inputs, attributes)), expected)


def test_only_connected_outputs_are_returned_in_order() -> None:
    call = call_of([[1.0]], [[1.0]], [[1.0]])
    assert list(reference(*call, {"present_value", "output"})) == ["output", "present_value"]
    assert list(reference(*call, [])) == []


def test_outputs_have_the_dtype_of_the_query() -> None:
    dtypes = set()
    for seed in range(20):
        call = random_configuration(seed)
        dtypes.add(call.inputs["query"].dtype)
        for output in reference(call.inputs, call.attributes, ALL).values():
            assert output.dtype == call.inputs["query"].dtype
            assert output.value.dtype == np.float64
    assert len(dtypes) == 3


# --- rows with nothing to attend to, and numbers out of range ---


@pytest.mark.parametrize(
    ("more", "defined", "values"),
    [
        ({}, [True, False], [4.0, 0.0]),
        ({"smooth_softmax": 1}, [True, True], [2.0, 0.0]),
        ({"head_sink": np.array([-np.inf], np.float32)}, [True, False], [4.0, 0.0]),
    ],
    ids=["no sink", "sink", "sink of minus infinity"],
)
def test_empty_row_and_sink(more: dict[str, Any], defined: list[bool], values: list[float]) -> None:
    """A row with nothing to attend to is defined by a sink."""
    bias = np.array([[[[0.0, -np.inf], [-np.inf, -np.inf]]]], np.float32)
    call = call_of([[0.0]] * 2, [[0.0]] * 2, [[4.0], [6.0]], attention_bias=bias, **more)
    output = reference(*call, ["output"])["output"]
    np.testing.assert_array_equal(output.defined[0, :, 0], defined)
    np.testing.assert_array_equal(output.value[0, :, 0], values)


D, W, U = "defined", "watched", "undefined"
SPOILT = {  # input, element, number, and what is left of two rows of two heads
    "query": ("query", (0, 1, 0), np.nan, [[D, D], [U, D]]),
    "key": ("key", (0, 1, 0), np.inf, [[W, W], [U, U]]),
    "value": ("value", (0, 1, 0), -np.inf, [[W, W], [U, U]]),
    "value of the first": ("value", (0, 0, 0), np.nan, [[U, U], [U, U]]),
    "bias": ("attention_bias", (0, 1, 1, 0), np.nan, [[D, D], [D, U]]),
    "bias of the future": ("attention_bias", (0, 1, 0, 1), np.inf, [[D, W], [D, D]]),
    "sink": ("head_sink", (1,), np.inf, [[D, U], [D, U]]),
}


@pytest.mark.parametrize("what", SPOILT)
def test_rows_that_meet_nan_or_infinity_are_undefined_and_no_others(what: str) -> None:
    """A row from which a mask hides them is undefined, too, but watched: its value is known."""
    more = {"attention_bias": zeros(1, 2, 2, 2), "head_sink": np.ones(2, np.float32)}
    new = [[1.0, 1.0]] * 2, [[1.0]] * 2, [[2.0], [6.0]]
    inputs, attributes = call_of(*new, heads=(2, 1), **more)
    right = reference(inputs, attributes, ALL)
    name, element, number, kinds = SPOILT[what]
    inputs[name] = inputs[name].copy()
    inputs[name][element] = number
    spoilt = reference(inputs, attributes, ALL)
    kind = np.array(kinds)
    np.testing.assert_array_equal(spoilt["output"].defined[0], kind == D)
    np.testing.assert_array_equal(spoilt["output"].computed[0], kind != U)
    assert list(spoilt["output"].watched) == (["masked"] if W in kind else [])
    kept = np.where(kind != U, right["output"].value[0], 0.0)
    np.testing.assert_array_equal(spoilt["output"].value[0], kept)
    for present, source in (("present_key", "key"), ("present_value", "value")):
        expected = np.isfinite(inputs[source][0])
        np.testing.assert_array_equal(spoilt[present].defined[0, 0], expected)
        assert np.isfinite(spoilt[present].value).all()
    assert all(np.isfinite(b[spoilt[n].defined]).all() for n, b in budgets(spoilt).items())


def test_values_that_overflow_the_storage_type_are_undefined() -> None:
    """A rotated key beyond 65504 in float16, and every row that attends to it."""
    diagonal = np.full((3, 1), np.sqrt(0.5))
    inputs, attributes = call_of([[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3, do_rotary=1)
    inputs |= {"cos_cache": diagonal, "sin_cache": diagonal}
    inputs["key"] = np.array([[[1.0, 1.0], [60000.0, 60000.0], [1.0, 1.0]]])
    attributes["local_window_size"] = 1
    inputs |= {n: a.astype(np.float16) for n, a in inputs.items() if a.dtype.kind == "f"}
    references = reference(inputs, attributes, ALL)
    np.testing.assert_array_equal(
        references["present_key"].defined[0, 0], [[True, True], [True, False], [True, True]]
    )
    np.testing.assert_array_equal(references["output"].computed[0, :, 0], [True, False, True])
    assert not references["output"].defined.any()  # a mask hides a key that may be infinite
    assert references["present_value"].defined.all()


def test_a_query_that_overflows_makes_its_row_undefined() -> None:
    sqrt = np.full((2, 1), np.sqrt(0.5), np.float16)
    large = np.array([[[1.0, 1.0], [60000.0, 60000.0]]], np.float16)
    small = np.ones((1, 2, 2), np.float16)
    inputs, attributes = call_of([[0.0]] * 2, [[0.0]] * 2, [[0.0]] * 2, do_rotary=1)
    inputs |= {"query": large, "key": small, "value": small, "cos_cache": sqrt, "sin_cache": sqrt}
    output = reference(inputs, attributes, ["output"])["output"]
    np.testing.assert_array_equal(output.defined[0, :, 0], [True, False])


def test_a_score_that_overflows_float32_makes_its_row_undefined() -> None:
    large = [[1.0], [1e30]]
    output = reference(*call_of(large, large, [[1.0], [2.0]]), ["output"])["output"]
    np.testing.assert_array_equal(output.defined[0, :, 0], [True, False])


def test_padding_may_be_beyond_the_rotary_tables() -> None:
    key = [EAST] * 3
    inputs, attributes = call_of(key, key, key, do_rotary=1, **quarter_turns(2, 1))
    inputs["seqlens_k"] = np.array([1], np.int32)
    references = reference(inputs, attributes, ALL)
    np.testing.assert_array_equal(references["present_key"].value[0, 0, :2], [EAST, NORTH])
    np.testing.assert_array_equal(references["output"].defined[0, :, 0], [True, True, False])


def test_seqlens_k_of_another_matrix_shape_is_rejected() -> None:
    """[2, 2] has as many elements as a batch of 4, but its meaning is undefined."""
    tokens = np.zeros((4, 1, 1), np.float32)
    inputs, attributes = call_of([[0.0]], [[0.0]], [[0.0]])
    inputs |= {"query": tokens, "key": tokens, "value": tokens}
    inputs["seqlens_k"] = np.zeros((2, 2), np.int32)
    with pytest.raises(OracleError, match="seqlens_k must be"):
        reference(inputs, attributes, ALL)


# --- undefined calls ---


def test_an_unknown_output_is_rejected() -> None:
    with pytest.raises(OracleError, match="no output 'present'"):
        reference(*good(), ["present"])


def test_attributes_at_their_defaults_equal_unset_ones() -> None:
    inputs, attributes = good()
    usual = dict.fromkeys(("k_quant_type", "v_quant_type"), "NONE")
    usual |= {"sliding_window_cache": 0, "qk_output": 0, "qk_norm_epsilon": 1e-6}
    want, found = (reference(inputs, each, ALL) for each in (attributes, attributes | usual))
    np.testing.assert_array_equal(found["output"].value, want["output"].value)


class Read(dict[str, Any]):
    """Attributes or inputs that remember which of them were looked at, set or not."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def test_every_attribute_and_input_is_read_and_documented() -> None:
    """On calls with rotary, a quantised cache and a norm: all of them have a meaning there."""
    kinds = {"cache_dtype": "int8", "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    names = {*ATTRIBUTE_BY_NAME, *INPUT_NAMES}
    unread = set(names)
    for fields in ({"past_sequence_length": 3, "rotary": "half_split", **kinds}, {"qk_norm": True}):
        call = checked_call(fields)
        attributes, inputs = Read(attributes_of(call)), Read(draw_inputs(call, steps_of(call)[0]))
        read_call(inputs, attributes, ["output"])
        unread -= attributes.names | inputs.names
    assert not unread, f"conformance/oracle/read_call.py does not read {sorted(unread)}"
    page = (ROOT / "docs" / "oracle.md").read_text(encoding="utf-8")
    missing = {name for name in names if f"`{name}`" not in page}
    assert not missing, f"docs/oracle.md does not say what {sorted(missing)} mean"


@pytest.mark.parametrize("codes", ["", "int8", "uint8"])
def test_omitted_key_and_value_beside_a_past_mean_length_zero(codes: str) -> None:
    """The reading that microsoft/onnxruntime#28318 requests, where packed QKV is impossible."""
    fields: dict[str, Any] = {"key_value": "zero_length", "past_sequence_length": 7}
    if codes:
        kinds = dict.fromkeys(("k_quant_type", "v_quant_type"), "PER_TENSOR")
        width = {"kv_cache_bit_width": 4 if codes == "uint8" else 8}
        fields |= {"head_size": 20, "cache_dtype": codes, **kinds, **width}
    call = checked_call(fields)
    inputs = draw_inputs(call, steps_of(call)[0])
    omitted = {name: array for name, array in inputs.items() if name not in ("key", "value")}
    attributes = attributes_of(call)
    want = reference(inputs, attributes, ["output", "present_key"])
    got = reference(omitted, attributes, ["output", "present_key"])
    for name, expected in want.items():
        np.testing.assert_array_equal(got[name].value, expected.value)
