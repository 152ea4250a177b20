"""The norm of query and key, and output_qk, with examples small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes
from small_calls import normed, prompt

from conformance.oracle import OracleError, reference
from conformance.oracle.tolerance import budgets


def test_query_and_key_are_divided_by_their_root_mean_square() -> None:
    """Values are unchanged."""
    inputs, attributes = normed([2.0, 1.0], [1.0, -10.0], qk_norm_epsilon=0.0)
    references = reference(inputs, attributes, [*ALL])
    np.testing.assert_allclose(references["present_key"].value[0, 0, 0], [1.4, -2.0])
    np.testing.assert_array_equal(references["present_value"].value[0, 0, 0], [7.0, 1.0])
    attention = references["output"].attention
    want = [6.0 / np.sqrt(5.0), 1.0 / np.sqrt(5.0)]
    np.testing.assert_allclose(attention.query[0, 0, 0, 0], want)


def test_each_head_has_its_own_norm_and_all_share_one_weight() -> None:
    query = [3.0, 1.0, 0.6, 0.2]
    call = normed([2.0, 1.0], [1.0, 1.0], query, num_heads=2, qk_norm_epsilon=0.0)
    attention = reference(*call, ["output"])["output"].attention
    np.testing.assert_allclose(attention.query[0, 0, 0, 0], attention.query[0, 0, 1, 0], rtol=1e-6)


def test_the_norm_comes_before_the_rotation() -> None:
    inputs, attributes = normed([1.0, 1.0], [1.0, 10.0], qk_norm_epsilon=0.0, do_rotary=1)
    inputs |= {"cos_cache": np.zeros((1, 1), np.float32), "sin_cache": np.ones((1, 1), np.float32)}
    present = reference(inputs, attributes, ALL)["present_key"]
    np.testing.assert_allclose(present.value[0, 0, 0], [-2.0, 1.4])


def test_past_keys_are_not_normed_again() -> None:
    inputs, attributes = normed([1.0, 1.0], [1.0, 1.0])
    inputs["past_key"] = inputs["past_value"] = np.array([[[[5.0, 5.0]]]], np.float32)
    inputs["seqlens_k"], inputs["total_sequence_length"] = np.array([1], "i4"), np.array(2, "i4")
    present = reference(inputs, attributes, ALL)["present_key"]
    np.testing.assert_array_equal(present.value[0, 0, 0], [5.0, 5.0])
    np.testing.assert_allclose(present.value[0, 0, 1], [1.4, 0.2], rtol=1e-6)


@pytest.mark.parametrize(("said", "epsilon"), [({}, 1e-6), ({"qk_norm_epsilon": 0.04}, 0.04)])
def test_epsilon_limits_the_norm_of_small_heads(said: Attributes, epsilon: float) -> None:
    call = normed([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1e-3, 0.0], **said)
    references = reference(*call, ALL)
    want = 1e-3 / np.sqrt(5e-7 + epsilon)
    np.testing.assert_allclose(references["present_key"].value[0, 0, 0, 0], want, rtol=1e-6)
    assert references["output"].defined.all()


def test_an_epsilon_of_a_side_overrides_that_of_both() -> None:
    """The mean square of (0.2, 0) is 0.02, so with 0.02 a head is divided by 0.2."""
    small = [0.2, 0.0]
    inputs, attributes = normed([1.0, 1.0], [1.0, 1.0], small, small, qk_norm_epsilon=0.7)

    def first(**own: float) -> tuple[float, float]:
        made = reference(inputs, attributes | own, ALL)
        attention = made["output"].attention
        return attention.query[0, 0, 0, 0, 0], made["present_key"].value[0, 0, 0, 0]

    both = 0.2 / np.sqrt(0.72)
    np.testing.assert_allclose(first(q_norm_epsilon=0.02), (1.0, both), rtol=1e-6)
    np.testing.assert_allclose(first(k_norm_epsilon=0.02), (both, 1.0), rtol=1e-6)


def test_without_a_norm_an_epsilon_changes_nothing() -> None:
    inputs, attributes = prompt([[3.0, 1.0]], [[7.0, 1.0]])
    want = reference(inputs, attributes, ["output"])["output"].value
    made = reference(inputs, attributes | {"q_norm_epsilon": -1.0}, ["output"])["output"].value
    np.testing.assert_array_equal(made, want)


# --- output_qk ---


def qk(
    call: tuple[Arrays, Attributes], mode: int, **attributes: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Values and mask of defined elements of the first head, [S, T]."""
    made = reference(call[0], call[1] | {"qk_output": mode} | attributes, [*ALL, "output_qk"])
    return made["output_qk"].value[0, 0], made["output_qk"].defined[0, 0]


def test_output_qk_before_the_softmax_is_the_input_of_the_softmax() -> None:
    call = prompt([[1.0], [2.0]], [[3.0], [-1.0]])
    value, defined = qk(call, 1, scale=0.5)
    np.testing.assert_array_equal(value, [[1.5, 0.0], [3.0, -1.0]])
    np.testing.assert_array_equal(defined, [[True, False], [True, True]])


def test_output_qk_after_the_softmax_is_probabilities_and_zeros() -> None:
    call = prompt([[1.0], [1.0]], [[np.log(3.0)], [0.0]])
    value, defined = qk(call, 2)
    np.testing.assert_allclose(value, [[1.0, 0.0], [0.75, 0.25]], rtol=1e-6)
    assert defined.all()
    value, _ = qk(call, 2, smooth_softmax=1)
    np.testing.assert_allclose(value, [[0.75, 0.0], [0.6, 0.2]], rtol=1e-6)


@pytest.mark.parametrize("mode", [1, 2])
def test_columns_beyond_the_end_of_a_sequence_are_undefined(mode: int) -> None:
    inputs, attributes = prompt([[1.0]] * 3, [[1.0]] * 3)
    inputs["seqlens_k"] = np.array([1], np.int32)  # the third token is padding
    _, defined = qk((inputs, attributes), mode)
    want = [[True, mode == 2, False], [True, True, False], [False] * 3]
    np.testing.assert_array_equal(defined, want)


def test_output_qk_has_a_meaning_only_if_requested() -> None:
    call = prompt([[1.0]], [[1.0]])
    not_asked_for = reference(*call, ["output", "output_qk"])
    assert not_asked_for["output"].defined.all()
    assert not not_asked_for["output_qk"].defined.any()
    assert budgets(not_asked_for)["output_qk"].shape == (1, 1, 1, 1)
    with pytest.raises(OracleError, match="qk_output must be 0 or 1 or 2, not 3"):
        reference(call[0], call[1] | {"qk_output": 3}, ["output"])
    assert list(reference(call[0], call[1] | {"qk_output": 1}, ["output"])) == ["output"]
