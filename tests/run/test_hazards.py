"""Hazards: what is told of results that pass, of elements that the operator leaves undefined."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judged import EITHER, Values, ran, rejected, right, verdict_on
from tables import tables

from conformance.bundle.prepare import prepare
from conformance.judge.verdict import Judgement
from conformance.operator.call import Call, checked_call

TABLES = tables(__file__)


def spoilt(name: str, *places: tuple[int, ...], number: float = np.nan) -> dict[str, Any]:
    """An input with this number at these places."""
    return {name: {"elements": [{"at": list(place), "value": number} for place in places]}}


def call(inputs: dict[str, Any], **fields: Any) -> Call:
    """Two sequences of 4 query heads and 2 key/value heads."""
    return checked_call({"batch_size": 2, "inputs": inputs, **fields})


def values_of(one: Call) -> Values:
    """What a kernel returns that skips what a mask hides, with 0 where nothing is watched."""
    made = right(one)
    for step, want in zip(made, prepare(one).expected, strict=True):
        assert np.isfinite(want["output"].value).all()
        assert step["output"].shape == want["output"].value.shape
    return made


def judged(one: Call, values: Values) -> Judgement:
    return verdict_on(ran(values, values), one)


#: What a mask hides of sequence 0 from its query 0, in key/value head 0 unless it says otherwise;
#: and the query heads that are watched.
HIDDEN: dict[str, tuple[Call, list[int]]] = {
    what: (checked_call(fields), heads) for what, (fields, heads) in TABLES["hidden"].items()
}


def test_a_signalling_nan_is_judged_without_a_warning() -> None:
    """As in memory that no kernel has written; NumPy warns of it, on the user's terminal."""
    one, heads = next(iter(HIDDEN.values()))
    values = values_of(one)
    values[0]["output"].view(np.uint32)[0, 0, 16 * heads[0]] = 0x7FA00000
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judged(one, values).hazard


@pytest.mark.parametrize("what", HIDDEN)
def test_nan_that_a_mask_hides_is_a_hazard_in_its_own_rows(what: str) -> None:
    one, heads = HIDDEN[what]
    good = judged(one, values_of(one))
    assert (good.verdict, good.hazard) == ("pass", None)
    size = 16
    for head in range(4):
        values = values_of(one)
        values[0]["output"][0, 0, head * size : (head + 1) * size] = np.nan
        found = judged(one, values)
        if head in heads:
            assert (found.verdict, found.errors[0].share < 1) == ("pass", True)
            assert found.hazard.startswith(f"output[0, 0, {head * size}] is nan, not ")
            assert found.hazard.endswith("it and 15 others.")
        else:
            assert (found.verdict, found.hazard) == ("wrong", None)
    values = values_of(one)
    values[0]["output"][1, 0, 0] = np.nan  # another sequence
    assert judged(one, values).verdict == "wrong"


def test_where_hidden_numbers_are_finite_nothing_is_watched() -> None:
    for one, _ in HIDDEN.values():
        plain = replace(one, inputs={})
        assert prepare(plain).expected[0]["output"].watched == {}
        values = values_of(plain)
        values[0]["output"][0, 0, 0] = np.nan
        assert judged(plain, values).verdict == "wrong"


def test_any_wrong_value_of_a_watched_element_is_told() -> None:
    """The documentation does not say what NaN behind a mask gives, so it need not be NaN."""
    one, _ = HIDDEN["later key"]
    values = values_of(one)
    values[0]["output"][0, 1, 3] += 1
    found = judged(one, values)
    assert found.verdict == "pass"
    assert found.hazard.startswith("output[0, 1, 3] is ")
    assert found.hazard.endswith("it.")


def test_a_row_with_nothing_to_attend_to_tells_its_value() -> None:
    bias = spoilt("attention_bias", (0, 1, 0), number=-np.inf)
    one = call(bias, sequence_length=2, attention_bias="full")
    values = values_of(one)
    assert judged(one, values).hazard is None  # 0, as with a sink
    values[0]["output"][0, 0, 16:32] = np.nan
    found = judged(one, values)
    assert found.verdict == "pass"
    assert found.hazard == (
        "output[0, 0, 16] is nan, not 0: there is nothing to attend to for it and 15 others."
    )
    values[0]["output"][0, 0, 16:32] = 0.25
    assert "is 0.25, not 0" in str(judged(one, values).hazard)
    values[0]["output"][0, 0, 0] = np.nan
    assert judged(one, values).verdict == "wrong"


def test_output_qk_is_watched_too() -> None:
    one = call(spoilt("key", (0, 2, 3)), sequence_length=4, qk_output=2)
    values = values_of(one)
    values[0]["output_qk"][0, 0, 1] = np.nan
    found = judged(one, values)
    assert found.verdict == "pass"
    assert str(found.hazard).startswith("output_qk[0, 0, 1, 0] is nan, not ")
    values[0]["output_qk"][1, 0, 1] = np.nan
    assert judged(one, values).verdict == "wrong"


def test_numbers_of_earlier_calls_do_not_count() -> None:
    """In a loop, the past is the runtime's own: NaN in it comes from nowhere and stays wrong."""
    one = Call(loop=(2, 1, 1))
    assert all(step["output"].watched == {} for step in prepare(one).expected)


def test_only_a_result_that_passes_has_a_hazard() -> None:
    one, _ = HIDDEN["later key"]
    values = values_of(one)
    values[0]["output"][0, 0, 0] = np.nan
    values[0]["output"][1, 0, 0] += 1
    found = judged(one, values)
    assert (found.verdict, found.hazard) == ("wrong", None)
    assert verdict_on(rejected("no present"), one, EITHER).hazard is None
