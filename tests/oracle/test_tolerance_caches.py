"""The error model for quantised caches, normed heads, and output_qk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes, inputs_of, rotary_caches
from numpy.random import RandomState

from conformance.oracle import Reference, reference
from conformance.oracle.tolerance import A, PastErrors, budgets, past_errors, shares

QUANTISED = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
STORED = {"int8": (np.int8, 1, 0.02), "int4": (np.uint8, 2, 0.2)}


def call(
    stored: str | None, dtype: Any = np.float16, past: int = 9, new: int = 1, **attributes: Any
) -> tuple[Arrays, Attributes]:
    """Two query heads of 16 elements on one key/value head; ``stored`` None: a cache of floats."""
    rng = RandomState(7)
    total = past + new
    tokens = (rng.uniform(-1, 1, (1, new, 16)).astype(dtype) for _ in range(2))
    inputs = inputs_of(rng.randn(1, new, 32).astype(dtype), *tokens, lengths=[total])
    if stored is None:
        for name in ("past_key", "past_value") if past else ():
            inputs[name] = rng.uniform(-1, 1, (1, 1, past, 16)).astype(dtype)
    else:
        code, halves, scale = STORED[stored]
        for name in ("past_key", "past_value"):
            inputs[name] = rng.randint(0, 256, (1, 1, past, 16 // halves)).astype(np.uint8)
            inputs[name] = inputs[name].view(code)
        inputs["k_scale"] = inputs["v_scale"] = np.array([scale], np.float32)
        attributes |= QUANTISED
    if attributes.get("do_rotary"):
        inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(total, 8, dtype)
    return inputs, {"num_heads": 2, "kv_num_heads": 1} | attributes


def worst(got: np.ndarray, want: Reference, unit: np.ndarray) -> float:
    masked = np.where(want.defined, unit, np.nan)
    return float(shares(got.astype(float), want.value, masked, "cpu").max(initial=0.0))


def with_new(
    made: tuple[Arrays, Attributes], key: float, value: float, scale: float
) -> dict[str, Reference]:
    inputs, attributes = made
    inputs["key"][...], inputs["value"][...] = key, value
    inputs["k_scale"] = inputs["v_scale"] = np.array([scale], np.float32)
    return reference(inputs, attributes, ALL)


def test_codes_are_exact_but_for_numbers_next_to_a_tie() -> None:
    """0.06 is not a power of two: 2.5 steps of it may be slightly more or less in float32."""
    scale = float(np.float32(0.06))
    units = budgets(with_new(call("int8", np.float32), 2.5 * scale, 2.51 * scale, scale))
    np.testing.assert_array_equal(np.unique(units["present_key"][:, :, 9:]), [1.0])
    assert not units["present_key"][:, :, :9].any()
    assert not units["present_value"].any()


def test_where_float32_is_exact_a_tie_is_one_and_goes_to_the_even_code() -> None:
    references = with_new(call("int8", np.float32), 0.625, 0.875, 0.25)
    units = budgets(references)
    present = references["present_key"]
    assert (present.value[0, 0, 9, 0], units["present_key"].max()) == (2.0, 0.0)
    assert worst(present.value + 1.0, present, units["present_key"]) == np.inf


def test_a_rotated_key_may_be_off_by_a_code_near_a_tie() -> None:
    made = call("int8", past=2, new=40, do_rotary=1)
    references = reference(*made, ALL)
    unit = budgets(references)["present_key"]
    tokens = references["present_key"].tokens
    quotient = tokens.exact / 0.02
    to_tie = np.abs(quotient - np.floor(quotient) - 0.5)
    reach = 2 * (2.0**-11 + 2 * A) * tokens.magnitude / 0.02
    assert set(np.unique(unit)) == {0.0, 1.0}
    new = unit[:, :, 2:]
    assert (new[(to_tie < 0.9 * reach)[:, :, 2:]] == 1.0).all()
    assert (new[(to_tie > 1.1 * reach)[:, :, 2:]] == 0.0).all()
    assert 0.05 < new.mean() < 0.5


def test_the_high_half_of_a_byte_must_be_certain() -> None:
    """Element 0 is next to a tie in one token, element 1 in the other."""
    inputs, attributes = call("int4", np.float32, new=2)
    inputs["key"][...] = 0.0
    inputs["key"][0, 0, 0] = inputs["key"][0, 1, 1] = 1.5 * np.float32(0.2)
    unit = budgets(reference(inputs, attributes, ALL))["present_key"]
    np.testing.assert_array_equal(unit[0, 0, 9, :2], [1.0, 0.0])
    np.testing.assert_array_equal(unit[0, 0, 10, :2], [np.nan, 0.0])


@pytest.mark.parametrize("stored", STORED)
def test_on_a_past_the_new_token_is_attended_to_as_it_is_stored(stored: str) -> None:
    """Attending to the unquantised token gives another result, which first prompts may have."""
    for past, found in ((9, True), (0, False)):
        inputs, attributes = call(stored, np.float32, past, new=4)
        references = reference(inputs, attributes, ALL)
        unit = budgets(references)["output"]
        plain, _ = call(None, np.float32, past, new=4)
        as_it_came = {name: inputs[name] for name in plain}
        tokens = (references[name].tokens for name in ALL[1:])
        for name, of in zip(("past_key", "past_value"), tokens, strict=True):
            if past:
                as_it_came[name] = of.value[:, :, :past].astype(np.float32)
        unquantised = {k: v for k, v in attributes.items() if k not in QUANTISED}
        got = reference(as_it_came, unquantised, ["output"])["output"].value
        share = worst(got, references["output"], unit)
        assert share > 2.0 if found else share < 1.0


def test_a_scale_of_the_cache_that_is_off_is_found() -> None:
    inputs, attributes = call("int8")
    references = reference(inputs, attributes, ALL)
    unit = budgets(references)["output"]
    for name in ("k_scale", "v_scale"):
        off = {**inputs, name: inputs[name] * np.float32(1.1)}
        got = reference(off, attributes, ["output"])["output"].value
        assert worst(got, references["output"], unit) > 2.0


@pytest.mark.parametrize("stored", STORED)
def test_in_a_loop_codes_of_the_runtimes_own_are_followed(stored: str) -> None:
    """A key that got the other code keeps it, and moves the output within its budget."""
    first = reference(*call(stored, past=2, new=40, do_rotary=1), ALL)
    errors = past_errors(first, None)
    scale = STORED[stored][2]
    steps = np.unique(errors.key / scale)
    np.testing.assert_allclose(steps, [0.0, 1.0])
    assert (errors.value > 0.0).mean() < (errors.key > 0.0).mean() < 0.5

    inputs, attributes = call(stored, past=42, do_rotary=1)
    for name, present in (("past_key", "present_key"), ("past_value", "present_value")):
        inputs[name] = first[present].value.astype(STORED[stored][0])
    second = reference(inputs, attributes, ALL)
    plain, carried = budgets(second), budgets(second, errors)
    assert (carried["output"] > plain["output"]).all()
    again = past_errors(second, errors)
    np.testing.assert_allclose(again.key[:, :, :42], errors.key)
    nothing = PastErrors(np.zeros_like(errors.key), np.zeros_like(errors.value))
    np.testing.assert_array_equal(budgets(second, nothing)["output"], plain["output"])


def test_the_errors_of_a_window_cache_move_with_its_rows() -> None:
    """Capacity 4, window 3: the fifth token evicts two, so row 2 moves to row 0."""
    inputs, attributes = call(None, past=4, local_window_size=3, sliding_window_cache=1)
    references = reference(inputs, attributes, ALL)
    error = np.zeros((1, 1, 4, 16))
    error[0, 0, 2], error[0, 0, 0] = 0.25, 7.0
    units = budgets(references, PastErrors(error, np.zeros_like(error)))
    np.testing.assert_array_equal(units["present_key"][0, 0, :, 0], [0.25, 0.0, 0.0, 0.0])


# --- the norm ---


def normed(dtype: Any) -> tuple[Arrays, Attributes]:
    inputs, attributes = call(None, dtype, past=9, new=3, do_rotary=1)
    rng = RandomState(3)
    for name in ("q_norm_weight", "k_norm_weight"):
        inputs[name] = rng.uniform(0.5, 1.5, 16).astype(dtype)
    return inputs, attributes


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_normed_key_may_be_rounded_after_the_norm_and_after_the_rotation(dtype: Any) -> None:
    inputs, attributes = normed(dtype)
    references = reference(inputs, attributes, ALL)
    unit = budgets(references)["present_key"]
    key: np.ndarray = inputs["key"].astype(np.float32)
    square = np.mean(key * key, axis=-1, keepdims=True, dtype=np.float32)
    key = key / np.sqrt(square + np.float32(1e-6)) * inputs["k_norm_weight"].astype(np.float32)
    stored = {n: a for n, a in inputs.items() if "norm" not in n} | {"key": key.astype(dtype)}
    got = reference(stored, attributes, ALL)["present_key"].value.astype(dtype)
    assert 0.0 < worst(got, references["present_key"], unit) <= 0.5
    assert (unit[:, :, 9:] > 0.0).all()
    assert not unit[:, :, :9].any()


def test_a_norm_without_rotation_is_not_a_copy() -> None:
    inputs, attributes = normed(np.float16)
    unit = budgets(reference(inputs, attributes | {"do_rotary": 0}, ALL))["present_key"]
    assert (unit[:, :, 9:] > 0.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fault", ["no norm", "weight of the other"])
def test_faults_of_the_norm_are_found(dtype: Any, fault: str) -> None:
    inputs, attributes = normed(dtype)
    references = reference(inputs, attributes, ALL)
    off = dict(inputs)
    if fault == "no norm":
        del off["q_norm_weight"], off["k_norm_weight"]
    else:
        off["q_norm_weight"] = inputs["k_norm_weight"]
    got = reference(off, attributes, ["output"])["output"].value
    assert worst(got, references["output"], budgets(references)["output"]) > 2.0


# --- output_qk ---


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("mode", [1, 2])
def test_faults_in_output_qk_are_found(dtype: Any, mode: int) -> None:
    """Rounding to storage is within half; a small error of scale, softcap or bias is not."""
    inputs, attributes = call(None, dtype, new=3, qk_output=mode, softcap=2.0)
    inputs["attention_bias"] = RandomState(1).randn(1, 2, 3, 12).astype(dtype)
    want = reference(inputs, attributes, ["output_qk"])["output_qk"]
    unit = budgets({"output_qk": want})["output_qk"]
    assert unit.shape == want.value.shape
    assert worst(want.value.astype(dtype), want, unit) <= 0.5
    doubled = inputs | {"attention_bias": inputs["attention_bias"] * dtype(1.05)}
    faults = (
        (inputs, attributes | {"scale": 0.26}),
        (inputs, attributes | {"softcap": 0.0}),
        (doubled, attributes),
        (inputs, attributes | {"qk_output": 3 - mode}),
    )
    for off, said in faults:
        got = reference(off, said, ["output_qk"])["output_qk"].value
        assert worst(got, want, unit) > 2.0


def test_a_masked_probability_is_zero_and_nothing_else() -> None:
    inputs, attributes = call(None, np.float32, past=0, new=3, qk_output=2)
    want = reference(inputs, attributes, ["output_qk"])["output_qk"]
    unit = budgets({"output_qk": want})["output_qk"]
    assert want.defined.all()
    got = want.value.copy()
    got[0, 0, 0, 2] = 1e-30
    assert worst(got, want, unit) == np.inf
