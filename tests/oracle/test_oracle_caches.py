"""Quantised and sliding-window caches, with examples small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gqa_calls import inputs_of
from small_calls import CODES, FLOAT8, quantised_decode, resident, windowed

from conformance.oracle import Format, OracleError, reference
from conformance.oracle.tolerance import budgets

PRESENTS = ("present_key", "present_value")


@pytest.mark.parametrize(
    ("stored", "numbers", "codes"),
    [
        # With a scale of 0.5, 1.25 and 1.75 are halfway between two codes and go to the even one.
        ("int8", [1.25, -1.75], [2, -4]),
        ("int8", [99.0, -99.0], [127, -128]),
        ("int8", [0.3, -0.2], [1, 0]),
        # Two codes in one byte, each with 8 added, the first one in the low half.
        ("int4", [1.0, -1.5], [(2 + 8) + 16 * (-3 + 8)]),
        ("int4", [99.0, -99.0], [(7 + 8) + 16 * (-8 + 8)]),
        ("int4", [0.25, 0.75], [(0 + 8) + 16 * (2 + 8)]),
        # Between 16 and 32, float8 has steps of 2; its maximum is 448.
        ("float8", [8.4, 9.5], [16.0, 20.0]),
        ("float8", [8.5, 999.0], [16.0, 448.0]),
    ],
)
def test_new_tokens_are_stored_as_codes(stored: str, numbers: list[float], codes: Any) -> None:
    past = [[8], [7]] if stored == "int4" else [[1, 2], [3, 4]]
    references = reference(*quantised_decode(stored, numbers, past), PRESENTS)
    for present in references.values():
        assert present.dtype == CODES[stored][0]
        assert present.defined.all()
        np.testing.assert_array_equal(present.value[0, 0, :2], past)
        np.testing.assert_array_equal(present.value[0, 0, 2], codes)


def test_each_channel_has_its_scale() -> None:
    """All in one row, too."""
    inputs, attributes = quantised_decode("int8", [1.0, 1.0], [[1, 1]], [[[[0.5, 0.25]]]])
    inputs["v_scale"] = np.array([1.0, 0.125], np.float32)
    references = reference(inputs, attributes, PRESENTS)
    np.testing.assert_array_equal(references["present_key"].value[0, 0, 1], [2, 4])
    np.testing.assert_array_equal(references["present_value"].value[0, 0, 1], [1, 8])


def test_the_last_element_of_an_odd_head_is_alone_in_its_byte() -> None:
    format = Format(np.dtype(np.uint8), np.ones((1, 1, 1, 1)))
    stored = np.array([[[[0x1A, 0xF7]]]], np.uint8)
    np.testing.assert_array_equal(format.unpack(stored, 3), [[[[2, -7, -1]]]])
    assert format.pack(format.unpack(stored, 3))[0, 0, 0, 0] == 0x1A

    past = np.array([[[[0x87, 0xF9]]]], np.uint8)
    new = ([[[number] * 3]] for number in (0.0, 1.0, 3.0))
    inputs = inputs_of(*new, past, past, lengths=[2])
    inputs |= dict.fromkeys(("k_scale", "v_scale"), np.ones(1, "f"))
    types = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 4}
    found = reference(inputs, {"num_heads": 1, "kv_num_heads": 1, **types}, ("output", *PRESENTS))
    np.testing.assert_array_equal(found["output"].value, [[[1.0, 1.5, 2.0]]])
    present = found["present_value"]
    np.testing.assert_array_equal(present.value[0, 0, :, 0], [0x87, 0xBB])
    np.testing.assert_array_equal(present.defined[0, 0], [[True, False], [True, False]])
    assert budgets(found)["present_value"].shape == (1, 1, 2, 2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, FLOAT8])
def test_every_code_round_trips(dtype: Any) -> None:
    raw = np.arange(256, dtype=np.uint8).view(dtype)
    raw = raw[np.isfinite(raw.astype(np.float32))].reshape(1, 1, 1, -1)
    format = Format(np.dtype(dtype), np.array([[[[0.0123]]]], np.float32).astype(float))
    back = format.pack(
        format.encode(format.decode(format.unpack(raw, raw.size * (1 + format.packed))))
    )
    np.testing.assert_array_equal(back, raw.astype(float))


def test_the_dtype_gives_the_bit_width_without_the_attribute() -> None:
    for stored in CODES:
        inputs, attributes = quantised_decode(stored, [1.0, 2.0], [[1], [2]])
        want = reference(inputs, attributes, PRESENTS)
        del attributes["kv_cache_bit_width"]
        got = reference(inputs, attributes, PRESENTS)
        np.testing.assert_array_equal(got["present_key"].value, want["present_key"].value)


# --- sliding-window caches ---


@pytest.mark.parametrize(("capacity", "window"), [(1, 1), (4, 4), (6, 4), (7, 3), (5, 1)])
@pytest.mark.parametrize("new", [1, 3, 9])
def test_a_sliding_window_cache_equals_a_full_cache(capacity: int, window: int, new: int) -> None:
    """Same output as with the full cache; present holds the last L(T) tokens from row 0 on."""
    for before in range(15):
        inputs, attributes, tokens = windowed(before, new, capacity, window)
        references = reference(inputs, attributes, ["output", *PRESENTS])
        whole = {name: array for name, array in inputs.items() if not name.startswith("past")}
        if before:
            whole |= dict.fromkeys(("past_key", "past_value"), tokens[None, None, :before])
        want = reference(whole, attributes | {"sliding_window_cache": 0}, ["output"])
        np.testing.assert_allclose(references["output"].value, want["output"].value, rtol=1e-14)
        kept = resident(before + new, capacity, window)
        for name in PRESENTS:
            present = references[name]
            assert present.value.shape == (1, 1, capacity, 2)
            np.testing.assert_array_equal(present.value[0, 0, :kept], tokens[-kept:])
            np.testing.assert_array_equal(present.defined[0, 0, :, 0], np.arange(capacity) < kept)


def test_each_sequence_of_a_sliding_window_cache_has_its_own_layout() -> None:
    """Capacity 4, window 3: of 5 tokens the last 3 stay (2 are evicted), of 4 all four do."""
    tokens = np.arange(5, dtype=np.float32).reshape(5, 1)
    past = np.array([[[0], [1], [2], [3]], [[0], [1], [2], [9]]], np.float32)[:, None]
    new = np.array([tokens[4:5], tokens[3:4]])
    inputs = inputs_of([[[1.0]]] * 2, new, new, past, past, lengths=[5, 4])
    attributes = {"num_heads": 1, "kv_num_heads": 1, "local_window_size": 3}
    present = reference(inputs, attributes | {"sliding_window_cache": 1}, PRESENTS)["present_key"]
    np.testing.assert_array_equal(present.value[0, 0, :3, 0], [2, 3, 4])
    np.testing.assert_array_equal(present.value[1, 0, :, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(present.defined[:, 0, :, 0], [[1, 1, 1, 0], [1, 1, 1, 1]])


def test_the_columns_of_a_bias_are_positions_in_the_sequence() -> None:
    inputs, attributes, _ = windowed(9, 1, 4, 3)
    bias = np.zeros((1, 1, 1, 10), np.float32)
    bias[..., :7] = np.nan  # evicted, or outside of the window
    bias[..., 8] = -np.inf
    inputs["attention_bias"] = bias
    output = reference(inputs, attributes, ["output"])["output"]
    seen = output.attention.probabilities[0, 0, 0, 0] > 0
    assert seen.tolist() == [False] * 7 + [True, False, True]


def test_a_borrowed_sliding_window_cache_allows_one_query_only() -> None:
    inputs, attributes, tokens = windowed(9, 1, 3, 3)
    inputs["past_key"] = inputs["past_value"] = tokens[None, None, 7:10]
    inputs["key"] = inputs["value"] = np.zeros((1, 0, 2), np.float32)
    present = reference(inputs, attributes, PRESENTS)["present_key"]
    np.testing.assert_array_equal(present.value[0, 0], tokens[7:])
    inputs["query"] = np.ones((1, 2, 2), np.float32)
    with pytest.raises(OracleError, match="tokens that the window cache has evicted"):
        reference(inputs, attributes, PRESENTS)
