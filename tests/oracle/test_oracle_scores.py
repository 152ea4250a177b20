"""The norm of query and key, and output_qk, with examples small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes
from small_calls import normed, prompt

from conformance.oracle import OracleError, reference
from conformance.oracle.tolerance import budgets


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


def test_output_qk_has_a_meaning_only_if_requested() -> None:
    call = prompt([[1.0]], [[1.0]])
    not_asked_for = reference(*call, ["output", "output_qk"])
    assert not_asked_for["output"].defined.all()
    assert not not_asked_for["output_qk"].defined.any()
    assert budgets(not_asked_for)["output_qk"].shape == (1, 1, 1, 1)
    with pytest.raises(OracleError, match="qk_output must be 0 or 1 or 2, not 3"):
        reference(call[0], call[1] | {"qk_output": 3}, ["output"])
    assert list(reference(call[0], call[1] | {"qk_output": 1}, ["output"])) == ["output"]
