"""query_seqlens in the oracle: padded calls worked out by hand, laws, and the calls it rejects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes, inputs_of
from small_calls import drawn_chunks

from conformance.oracle import OracleError, reference
from conformance.oracle.tolerance import budgets

PRESENTS = ("present_key", "present_value")


def chunk(
    past: list[list[float]],
    new: list[list[float]],
    lengths: list[int],
    counts: list[int],
    *,
    total: int,
    **more: Any,
) -> tuple[Arrays, Attributes]:
    """One head of one element: all keys are equal, so that an output is a mean of values.

    ``past`` and ``new`` have the values of each sequence; ``lengths`` are those after the call.
    """
    past_value, value = np.array(past, np.float32), np.array(new, np.float32)
    ones, past_key = (np.ones_like(each) for each in (value, past_value))
    tokens = (each[..., None] for each in (ones, ones, value))
    caches = (each[:, None, :, None] for each in (past_key, past_value))
    inputs = inputs_of(*tokens, *caches, lengths=lengths, total=total)
    inputs["query_seqlens"] = np.array(counts, np.int32)
    attributes: Attributes = {"num_heads": 1, "kv_num_heads": 1}
    for name, thing in more.items():
        (inputs if isinstance(thing, np.ndarray) else attributes)[name] = thing
    return inputs, attributes


# Worked out by hand


def test_a_batch_with_an_idle_entry_and_a_window_by_hand() -> None:
    """A window of two tokens: each output is the mean of a token and the one before it.

    The first sequence has two of three rows, the second none, the third begins with this chunk.
    """
    call = chunk(
        [[2.0, 4.0, 8.0, 9], [1.0, 5.0, 7.0, 9], [9.0, 9.0, 9.0, 9]],
        [[0.0, 6.0, 99.0], [99.0, 99.0, 99.0], [1.0, 3.0, 5.0]],
        [5, 3, 3],
        [2, 0, 3],
        total=6,
        local_window_size=2,
    )
    made = reference(*call, ALL)
    output = made["output"]
    want = [[4.0, 3.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 4.0]]
    np.testing.assert_array_equal(output.value[..., 0], want)
    defined = [[True, True, False], [False] * 3, [True] * 3]
    np.testing.assert_array_equal(output.defined[..., 0], defined)
    rows = made["present_value"].value[:, 0, :, 0]
    np.testing.assert_array_equal(rows[0, :5], [2.0, 4.0, 8.0, 0.0, 6.0])
    np.testing.assert_array_equal(rows[1, :3], [1.0, 5.0, 7.0])  # untouched
    np.testing.assert_array_equal(rows[2, :3], [1.0, 3.0, 5.0])


def test_the_positions_of_a_padded_chunk_by_hand() -> None:
    """Row s of the tables turns by a right angle s times: (1, 0), (0, 1), (-1, 0), (0, -1)."""
    quarter = np.arange(6)[:, None]
    past = np.full((2, 1, 4, 2), 7, np.float32)
    inputs = inputs_of(*[[[[1, 0]] * 2] * 2] * 3, past, 0 * past, lengths=[3, 2], total=4)
    inputs |= {
        "query_seqlens": np.array([1, 2], np.int32),
        "cos_cache": np.round(np.cos(quarter * np.pi / 2)).astype(np.float32),
        "sin_cache": np.round(np.sin(quarter * np.pi / 2)).astype(np.float32),
    }
    made = reference(inputs, {"num_heads": 1, "kv_num_heads": 1, "do_rotary": 1}, ALL)
    keys = made["present_key"].value[:, 0]
    np.testing.assert_array_equal(keys[0, :3], [[7, 7], [7, 7], [-1, 0]])  # place 2, not 0 or 1
    np.testing.assert_array_equal(keys[1, :2], [[1, 0], [0, 1]])
    attention = made["output"].attention
    np.testing.assert_array_equal(attention.query[0, 0, 0, 0], [-1, 0])


# Laws


def test_each_valid_row_is_that_of_the_call_without_padding() -> None:
    inputs, attributes = drawn_chunks(0, [7, 8, 3], [2, 4, 1])
    made = reference(inputs, attributes, ALL)
    for b, (count, length) in enumerate(zip([2, 4, 1], [7, 8, 3], strict=True)):
        batched = ("past_key", "past_value", "seqlens_k", "query_seqlens")
        alone = {name: inputs[name][b : b + 1] for name in batched}
        alone |= {name: inputs[name][b : b + 1, :count] for name in ("query", "key", "value")}
        one = reference(inputs | alone, attributes, ALL)
        np.testing.assert_allclose(
            made["output"].value[b, :count], one["output"].value[0], rtol=1e-14
        )
        assert made["output"].defined[b, :count].all()
        for name in PRESENTS:
            got, want = made[name].value[b, :, :length], one[name].value[0, :, :length]
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("content", [np.nan, np.inf, 1e30])
def test_padding_and_unused_rows_count_for_nothing(content: float) -> None:
    inputs, attributes = drawn_chunks(1, [7, 8, 3], [2, 0, 1])
    spoiled = {name: array.copy() for name, array in inputs.items()}
    for b, (count, length) in enumerate(zip([2, 0, 1], [7, 8, 3], strict=True)):
        for name in ("query", "key", "value"):
            spoiled[name][b, count:] = content
        for name in ("past_key", "past_value"):
            spoiled[name][b, :, length - count :] = content
    want, got = (reference(each, attributes, ALL) for each in (inputs, spoiled))
    for name in ("output", *PRESENTS):
        np.testing.assert_array_equal(got[name].defined, want[name].defined)
        np.testing.assert_array_equal(got[name].value, want[name].value)


def test_a_window_cache_keeps_what_single_tokens_leave() -> None:
    """Chunks of four rows with 2, 4, 0 and 1 tokens, and the same seven tokens one by one."""
    values = np.arange(1.0, 8.0)
    attributes: Attributes = {"local_window_size": 2, "sliding_window_cache": 1}

    def after(chunks: list[list[float]]) -> np.ndarray:
        past, length = np.zeros((1, 3), np.float32), 0
        for tokens in chunks:
            length += len(tokens)
            new = [[*tokens, *[99.0] * (4 - len(tokens))]]
            call = chunk(past.tolist(), new, [length], [len(tokens)], total=12, **attributes)
            made = reference(*call, ALL)["present_value"]
            past = np.where(made.defined, made.value, 0.0)[:, 0, :, 0]
        return past

    several = after([[*values[:2]], [*values[2:6]], [], [values[6]]])
    np.testing.assert_array_equal(several, after([[value] for value in values]))


def test_prompts_of_a_quantised_cache_may_attend_to_their_exact_keys() -> None:
    """Only sequences without a past, and of several tokens unless the total is 1."""

    def wide(counts: list[int], total: int) -> list[bool]:
        lengths = [2, 4, 1][: len(counts)]
        inputs, attributes = drawn_chunks(2, lengths, counts, total=total)
        pasts = ("past_key", "past_value")
        quantised = {name: (inputs[name] * 100).astype(np.int8) for name in pasts}
        scales = {name: np.array([0.03], np.float32) for name in ("k_scale", "v_scale")}
        kinds = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
        found = reference(inputs | quantised | scales, attributes | kinds, ["output"])
        units = budgets(found)["output"]
        return [bool(units[b, 0].max() > 1e-4) for b in range(len(counts))]

    assert wide([2, 3, 1], 12) == [True, False, False]


# Calls without a meaning


def test_a_total_below_the_rows_of_a_chunk() -> None:
    with pytest.raises(OracleError, match="total_sequence_length 3 is less than the 4 tokens"):
        reference(*drawn_chunks(4, [2], [2], total=3), ALL)
    inputs, attributes = drawn_chunks(4, [2], [2], total=3)
    attributes |= {"sliding_window_cache": 1}  # which is staged, so that nothing has to fit
    assert reference(inputs, attributes, ALL)["output"].defined[0, :2].all()
