"""The numbers of a case: they never change, on any machine, and match the meaning of the inputs."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from numpy.random import RandomState
from tables import tables

from conformance.base.array_types import NUMPY
from conformance.base.dtypes import INTEGER_RANGE
from conformance.bundle.inputs import draw_inputs
from conformance.case.steps import steps_of
from conformance.operator.call import Call, checked_call
from conformance.operator.tensors import ShapeError

TABLES = tables(__file__)

Arrays = dict[str, np.ndarray]


def drawn(index: int = 0, **fields: Any) -> Arrays:
    call = checked_call(fields)
    return draw_inputs(call, steps_of(call)[index])


def uniform(name: str, shape: tuple[int, ...], low: float, high: float, seed: str = "0/0") -> Any:
    """The float64 numbers that an input is rounded from."""
    stream = RandomState(zlib.crc32(f"{seed}/{name}".encode()))
    return low + stream.random_sample(shape) * (high - low)


# Reproducibility

FROZEN = TABLES["frozen"]


@pytest.mark.parametrize("name", FROZEN)
def test_generated_numbers_never_change(name: str) -> None:
    """They change with no release of NumPy and no machine; a change here changes every case."""
    made = drawn(past_sequence_length=2, attention_bias="full", head_sink=True)
    assert made[name].ravel()[:3].tolist() == FROZEN[name]


def test_generated_integers_never_change() -> None:
    signed = drawn(cache_dtype="int8", past_sequence_length=2)["past_key"].ravel()
    assert signed[:6].tolist() == [-79, -84, 39, -47, -96, -52]
    unsigned = drawn(cache_dtype="uint8", past_sequence_length=2)["past_key"].ravel()
    assert unsigned[:6].tolist() == [49, 44, 167, 81, 32, 76]


def test_generated_numbers_of_other_types_never_change() -> None:
    float16 = drawn(dtype="float16")["query"].ravel()[:3]
    assert float16.tolist() == [6.328125, 2.251953125, -7.35546875]
    bfloat16 = drawn(dtype="bfloat16")["query"].ravel()[:3].astype(float)
    assert bfloat16.tolist() == [6.34375, 2.25, -7.34375]
    float8 = drawn(cache_dtype="float8e4m3fn", past_sequence_length=2)["past_key"].ravel()[:4]
    assert float8.astype(float).tolist() == [-60.0, -64.0, 30.0, -36.0]


def test_generated_numbers_of_later_steps_never_change() -> None:
    made = drawn(1, loop=(1, 1), seed=3)
    assert made["query"].ravel()[:2].tolist() == [5.09601354598999, 4.823526859283447]


def test_what_is_done_to_the_numbers_is_not_in_those_of_the_next_call() -> None:
    before = drawn(rotary="half_split")
    for array in drawn(rotary="half_split").values():
        array[...] = 1
    for name, array in drawn(rotary="half_split").items():
        assert np.array_equal(array, before[name])


def test_numbers_can_be_multiples_of_a_step() -> None:
    values = {"values": {"low": -3.0, "high": 3.0, "step": 0.75}}
    made = drawn(sequence_length=40, inputs={"key": values})["key"]
    assert set(np.unique(made / 0.75)) == set(range(-4, 5))


def test_what_belongs_to_the_model_stays_the_same_in_a_loop() -> None:
    fields: dict[str, Any] = {"qk_norm": True, "k_quant_type": "PER_CHANNEL", "cache_dtype": "int8"}
    fields |= {"rotary": "half_split", "inputs": {"cos_cache": {"values": {"kind": "uniform"}}}}
    first, second = (drawn(index, loop=(2, 1), **fields) for index in (0, 1))
    for name in ("k_scale", "q_norm_weight", "k_norm_weight", "cos_cache", "sin_cache"):
        assert np.array_equal(first[name], second[name])
    assert not np.array_equal(first["query"][:, :1], second["query"])


def test_scales_fit_the_codes() -> None:
    """The numbers of new tokens are within the range of the codes, or nearly so."""
    kinds: dict[str, Any] = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_CHANNEL"}
    wide = drawn(cache_dtype="int8", **kinds)
    narrow = drawn(cache_dtype="uint8", kv_cache_bit_width=4, **kinds)
    for name in ("k_scale", "v_scale"):
        assert 0.01 <= wide[name].min() <= wide[name].max() <= 0.02
        assert 0.1 <= narrow[name].min() <= narrow[name].max() <= 0.2


# dtype, seed, name, step


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_dtype_rounds_the_same_numbers(dtype: str) -> None:
    """To the nearest representable one, once: float32 and float16 cases are the same call."""
    made = drawn(dtype=dtype)["query"]
    exact = uniform("query", (1, 1, 64), -8.0, 8.0)
    assert made.dtype == NUMPY[dtype]
    assert np.array_equal(made, exact.astype(NUMPY[dtype]))
    unit = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
    assert np.all(np.abs(made.astype(float) - exact) <= unit * np.abs(exact) + 2**-25)


def test_the_squares_of_a_normed_query_are_finite() -> None:
    """A small scale makes queries large, unless a norm takes away their size."""
    small = {"scale": 1e-30, "smooth_softmax": 1}
    with np.errstate(over="ignore"):
        assert np.square(drawn(**small)["query"]).max() == np.inf
    for dtype in ("float16", "float32"):
        query = drawn(**small, qk_norm=True, dtype=dtype)["query"].astype(np.float32)
        assert np.square(query).sum() < np.finfo(np.float32).max


def test_zero_valued_keys_are_zero_and_the_query_is_not() -> None:
    made = drawn(key_value="zero_valued", sequence_length=3)
    assert not made["key"].any()
    assert not made["value"].any()
    assert np.array_equal(made["query"], drawn(sequence_length=3)["query"])


# Packed QKV


@pytest.mark.parametrize("fields", TABLES["packed"], ids=str)
def test_packed_and_separate_inputs_have_the_same_numbers(fields: dict[str, Any]) -> None:
    """So packed and separate inputs can be compared exactly."""
    for index in range(len(fields.get("loop", (1,)))):
        packed = drawn(index, key_value="packed", **fields)
        apart = drawn(index, **fields)
        joined = np.concatenate([apart["query"], apart["key"], apart["value"]], axis=2)
        assert packed["query"].dtype == joined.dtype
        assert np.array_equal(packed["query"], joined)
        for name in packed.keys() - {"query"}:
            assert np.array_equal(packed[name], apart[name])


# Lengths and positions


def test_lengths_and_positions_have_their_dtypes() -> None:
    made = drawn(rotary="half_split", position_ids=True, past_sequence_length=3)
    names = ("seqlens_k", "total_sequence_length", "position_ids")
    assert [made[name].dtype for name in names] == [np.int32, np.int32, np.int64]
    connected = drawn(
        rotary="half_split", inputs={"position_ids": "connected"}, past_sequence_length=3
    )
    assert np.array_equal(connected["position_ids"], made["position_ids"])


def test_the_drawn_positions_of_a_loop_go_on() -> None:
    fields = {"batch_size": 2, "loop": (4, 1, 2), "total_sequence_lengths": (4, 2)}
    call = checked_call({"rotary": "half_split", "position_ids": True, **fields})
    made = [draw_inputs(call, step) for step in steps_of(call)]
    assert [inputs["position_ids"].tolist() for inputs in made] == [
        [[3, 4, 5, 6]] * 2,
        [[9], [8]],
        [[10, 12], [9, 11]],
    ]
    assert {len(inputs["cos_cache"]) for inputs in made} == {13}


def test_no_drawn_position_is_an_implied_one() -> None:
    stream = RandomState(0)
    for _ in range(300):
        batch, past, new = (int(n) for n in stream.randint((1, 1, 1), (9, 40, 30)))
        totals = tuple(int(n) for n in stream.randint(new, past + new + 1, batch))
        fields = {"batch_size": batch, "past_sequence_length": past, "sequence_length": new}
        given, own = (
            drawn(rotary="half_split", position_ids=kind, total_sequence_lengths=totals, **fields)[
                "position_ids"
            ]
            for kind in (True, "implied")
        )
        assert np.all(given != own), (fields, totals)
        if max(totals) > new:  # not a first prompt
            assert len({*given[:, 0].tolist()}) == batch, (fields, totals)


def test_tables_without_room_for_the_drawn_positions_are_refused() -> None:
    call = Call(rotary="half_split", position_ids=True, sequence_length=3, rotary_cache_length=5)
    with pytest.raises(ShapeError, match="the drawn position_ids need 6 rows"):
        steps_of(call)


# Rotary tables


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_tables_hold_the_angles_of_each_position(dtype: str) -> None:
    made = drawn(rotary="half_split", sequence_length=11, head_size=32, dtype=dtype)
    assert made["cos_cache"].shape == made["sin_cache"].shape == (11, 16)
    for position, column in ((0, 0), (1, 0), (10, 0), (1, 15), (10, 7)):
        angle = 0.75 * position / 500.0 ** (column / 16)
        for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
            exact = np.float64(function(angle))
            assert made[name][position, column] == exact.astype(NUMPY[dtype])


def test_a_partial_rotary_has_the_angles_of_its_own_width() -> None:
    whole = drawn(rotary="half_split", sequence_length=5, head_size=16)
    partial = drawn(rotary="half_split", sequence_length=5, head_size=64, rotary_dim=16)
    assert np.array_equal(whole["cos_cache"], partial["cos_cache"])
    assert np.array_equal(whole["sin_cache"], partial["sin_cache"])


def test_tables_of_a_wrong_rank_have_numbers_too() -> None:
    tables = {"cos_cache": {"shape": [3]}, "sin_cache": {"shape": [1, 3, 2]}}
    made = drawn(rotary="half_split", inputs=tables)
    np.testing.assert_allclose(made["cos_cache"], np.cos([0.0, 0.75, 1.5]))
    assert made["sin_cache"].shape == (1, 3, 2)


def test_longer_tables_start_with_the_same_rows() -> None:
    short = drawn(rotary="interleaved", sequence_length=5)
    long = drawn(rotary="interleaved", sequence_length=5, rotary_cache_length=99)
    assert np.array_equal(long["sin_cache"][:5], short["sin_cache"])
    assert np.allclose(long["sin_cache"] ** 2 + long["cos_cache"] ** 2, 1.0)


# Written by hand


def given(dtype: str | None = None, **said: Any) -> Any:
    return drawn(inputs={"query": said | ({"dtype": dtype} if dtype else {})})["query"]


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")])
def test_a_constant(value: float) -> None:
    made = given(shape=[2, 3], values={"kind": "constant", "value": value})
    assert made.dtype == np.float32
    assert np.array_equal(made, np.full((2, 3), np.float32(value)), equal_nan=True)
    assert np.signbit(made).all() == np.signbit(np.float32(value))


def test_a_range() -> None:
    for low, high in ((5.0, 6.0), (-0.25, 0.0), (2.0, 2.0)):
        made = given(shape=[1000], values={"low": low, "high": high})
        assert np.array_equal(made, uniform("query", (1000,), low, high).astype(np.float32))


@pytest.mark.parametrize("dtype", list(INTEGER_RANGE))
def test_integers_fill_their_range_by_default(dtype: str) -> None:
    low, high = INTEGER_RANGE[dtype]
    made = given(dtype, shape=[4096])
    assert made.dtype == NUMPY[dtype]
    assert float(made.min()) < low + 0.01 * (high - low)
    assert float(made.max()) > high - 0.01 * (high - low)
    few = given(dtype, shape=[200], values={"low": 3.0, "high": 5.0})
    assert set(few.tolist()) == {3, 4, 5}
    assert set(given(dtype, shape=[2], values={"kind": "constant", "value": 7.0})) == {7}


def test_every_byte_of_a_quantised_cache_occurs() -> None:
    made = drawn(cache_dtype="int8", past_sequence_length=512, head_size=64)["past_key"]
    assert set(made.ravel().tolist()) == set(range(-128, 128))


@pytest.mark.parametrize("dtype", list(INTEGER_RANGE))
def test_data_of_integers_are_exact(dtype: str) -> None:
    low, high = INTEGER_RANGE[dtype]
    assert given(dtype, data=[low, high, high - 1, 1]).tolist() == [low, high, high - 1, 1]


def test_data_of_floats_are_rounded_to_the_dtype() -> None:
    made = given("float16", data=[[0.1, 1], [float("-inf"), 1e6]])
    assert made.dtype == np.float16
    assert made.tolist() == [[float(np.float16(0.1)), 1.0], [float("-inf"), float("inf")]]


def test_single_elements_can_differ_from_the_rest() -> None:
    fields: dict[str, Any] = {"sequence_length": 2, "head_size": 2, "kv_num_heads": 1}
    elements = [{"at": [0, 1], "value": float("nan")}, {"at": [0, -1, 1], "value": 7.0}]
    made = drawn(**fields, inputs={"key": {"elements": elements}})["key"]
    np.testing.assert_array_equal(made[0, 0], drawn(**fields)["key"][0, 0])
    np.testing.assert_array_equal(made[0, 1], [np.nan, 7.0])


def test_several_consecutive_elements_can_differ_from_the_rest() -> None:
    fields: dict[str, Any] = {"past_sequence_length": 5, "head_size": 2, "kv_num_heads": 1}
    rows = {"at": [0, 0, -4], "count": 3, "value": 7.0}
    columns = {"at": [0, 0, 0, 0], "count": 2, "value": float("-inf")}
    made = drawn(**fields, inputs={"past_key": {"elements": [rows, columns]}})["past_key"]
    expected = drawn(**fields)["past_key"].copy()
    expected[0, 0, 1:4], expected[0, 0, 0] = 7.0, float("-inf")
    np.testing.assert_array_equal(made, expected)


def test_the_past_of_a_later_step_comes_from_the_step_before() -> None:
    first, second = (set(drawn(index, loop=(2, 1))) for index in (0, 1))
    assert first - second == {"past_key", "past_value"}


# Marked values


def elements(**fields: Any) -> np.ndarray:
    """[batch, heads, tokens]: the index of the large element of each token of `value`."""
    value = drawn(**fields)["value"].astype(float)
    heads = value.reshape(*value.shape[:2], -1, fields.get("head_size", 16)).swapaxes(1, 2)
    assert np.all(np.sort(np.abs(heads))[..., -2] < 0.5)
    assert np.all(heads.max(axis=-1) >= 0.5)
    return heads.argmax(axis=-1)


def test_each_token_has_one_large_element_unlike_its_neighbours() -> None:
    for size in (8, 16, 40, 64, 80, 112, 256):
        found = elements(batch_size=2, sequence_length=size, head_size=size)
        assert all(len(set(found[b, h])) == size for b in range(2) for h in range(2))
        assert not np.any(found[0] == found[1])
        assert not np.any(found[:, 0] == found[:, 1])


def test_marked_new_tokens_continue_where_the_past_ends() -> None:
    """By position in the sequence, whatever the cache and the split into calls."""
    whole = elements(batch_size=2, sequence_length=8)
    ragged = {"batch_size": 2, "total_sequence_lengths": (8, 4)}
    for fields in ({"past_sequence_length": 7}, {"max_sequence_length": 12}):
        found = elements(**ragged, **{"past_sequence_length": 7, **fields})
        assert found[0, :, 0].tolist() == whole[0, :, 7].tolist()
        assert found[1, :, 0].tolist() == whole[1, :, 3].tolist()
    past = drawn(batch_size=2, past_sequence_length=7)["past_value"].argmax(axis=-1)
    assert np.array_equal(past, whole[:, :, :7])


def test_marked_scores_have_the_same_size_for_every_head_size_and_scale() -> None:
    for fields in ({"head_size": 8}, {"head_size": 256}, {"scale": 1.0}, {"scale": 0.01}):
        made = drawn(sequence_length=64, num_heads=1, kv_num_heads=1, **fields)
        query, key = made["query"][0].astype(float), made["key"][0].astype(float)
        scale = fields.get("scale", query.shape[-1] ** -0.5)
        assert 0.4 < np.std(scale * query @ key.T) < 1.5


def test_every_other_head_has_scores_that_a_softcap_affects() -> None:
    made = drawn(softcap=20.0, sequence_length=16)["query"].reshape(16, 4, 16)
    assert np.abs(made).max(axis=(0, 2)) == pytest.approx([200, 8, 200, 8], rel=0.05)
