"""Other readings of the documentation: their values, and a judge that accepts one, never a mix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gqa_calls import ALL, Arrays, Attributes
from judged import Values, ran, right_by, verdict_on
from shipped import shipped_cases
from small_calls import call_of

from conformance.bundle.prepare import Prepared, prepare
from conformance.case.contract import Contract
from conformance.operator.call import Call, InputOverride
from conformance.operator.readings import READINGS, ReadingName
from conformance.oracle import OracleError, reference
from conformance.oracle.tolerance import budgets
from conformance.report.repro.one_result import computed

DRAWN = np.random.RandomState(3)


def tokens(batch: int, count: int, width: int) -> np.ndarray:
    return DRAWN.uniform(-1, 1, (batch, count, width)).astype(np.float32)


def prompt(batch: int = 1, count: int = 3, **more: Any) -> tuple[Arrays, Attributes]:
    """A first prompt of one head of 4 elements."""
    inputs, attributes = call_of([[0.0]] * count, [[0.0]] * count, [[0.0]] * count, **more)
    inputs |= {name: tokens(batch, count, 4) for name in ("query", "key", "value")}
    inputs["seqlens_k"] = np.full(batch, count - 1, np.int32)
    return inputs, attributes


def tables(rows: int) -> Arrays:
    angle = np.arange(rows)[:, None] * np.array([0.7, 0.2])
    return {"cos_cache": np.cos(angle).astype("f"), "sin_cache": np.sin(angle).astype("f")}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both define the same elements and have the same values there."""
    return all(
        np.array_equal(one[name].defined, other[name].defined)
        and np.allclose(one[name].value, other[name].value, rtol=0, atol=1e-12)
        for name in one
    )


# What each reading computes, against a computation of its own or another call that means the same


def of_scale_of_zero() -> None:
    """All scores are 0, so a row is the mean of its values, weighed by the bias and the sink."""
    bias, sink = DRAWN.uniform(-2, 2, (1, 1, 3, 3)).astype("f"), np.array([0.5], np.float32)
    call = prompt(scale=0.0, softcap=2.0, attention_bias=bias, head_sink=sink)
    made = reference(*call, ["output"], "scale_of_zero")["output"]
    for i in range(3):
        weights = np.exp(bias[0, 0, i, : i + 1].astype(float))
        mean = weights @ call[0]["value"][0, : i + 1] / (weights.sum() + np.exp(0.5))
        np.testing.assert_allclose(made.value[0, i], mean, atol=1e-12)
    unit = budgets({"output": made})["output"]
    assert np.isfinite(unit).all()
    assert (unit > 0).all()
    assert not same({"output": made}, reference(*call, ["output"]))
    without = call[0], {name: value for name, value in call[1].items() if name != "scale"}
    assert same(reference(*without, ALL, "scale_of_zero"), reference(*without, ALL))


def of_position_ids_of_each_row() -> None:
    """Each sequence is as it would be alone."""
    ids = np.array([[2, 0, 0], [5, 9, 9]])
    inputs, attributes = prompt(2, do_rotary=1, position_ids=ids, **tables(8))
    made = reference(inputs, attributes, ALL, "position_ids_of_each_row")
    for b in range(2):
        batched = ("query", "key", "value", "seqlens_k", "position_ids")
        alone = inputs | {name: inputs[name][b : b + 1] for name in batched}
        for name, one in reference(alone, attributes, ALL).items():
            np.testing.assert_array_equal(made[name].value[b], one.value[0])
    usual = reference(inputs, attributes, ALL)
    assert not np.allclose(made["present_key"].value[1], usual["present_key"].value[1])


def of_beyond_the_tables_unrotated() -> None:
    """It is as if the tables went on with an angle of 0."""
    inputs, attributes = prompt(do_rotary=1, **tables(2))
    with pytest.raises(OracleError, match="Position 2 has no row in cos_cache"):
        reference(inputs, attributes, ALL)
    made = reference(inputs, attributes, ALL, "beyond_the_tables_unrotated")
    longer = {
        name: np.concatenate([inputs[name], np.full((3, 2), number, np.float32)])
        for name, number in (("cos_cache", 1.0), ("sin_cache", 0.0))
    }
    assert same(made, reference(inputs | longer, attributes, ALL))
    np.testing.assert_array_equal(made["present_key"].value[0, 0, 2], inputs["key"][0, 2])


def of_prompt_without_lengths() -> None:
    """No row of a first prompt is padding; the lengths of other calls count."""
    inputs, attributes = prompt(2)
    whole = reference(inputs, attributes, ALL)
    for lengths in ([0, 2], [-1, 7]):
        inputs["seqlens_k"] = np.array(lengths, np.int32)
        assert same(reference(inputs, attributes, ALL, "prompt_without_lengths"), whole)
    inputs["total_sequence_length"] = np.array(2, np.int32)
    with pytest.raises(OracleError):
        reference(inputs, attributes, ALL, "prompt_without_lengths")


def of_lengths_beyond_the_total() -> None:
    """It is as if the total were the longest length, as long as the buffer has the rows."""
    step, attributes = prompt(2, 1)
    step |= {name: tokens(2, 6, 4).reshape(2, 1, 6, 4) for name in ("past_key", "past_value")}
    step |= {"seqlens_k": np.array([1, 4], "i4"), "total_sequence_length": np.array(3, "i4")}
    with pytest.raises(OracleError, match=r"seqlens_k\[1\] = 4 is not the index"):
        reference(step, attributes, ALL)
    longer = step | {"total_sequence_length": np.array(5, "i4")}
    made = reference(step, attributes, ALL, "lengths_beyond_the_total")
    assert same(made, reference(longer, attributes, ALL))
    assert same(made, reference(longer, attributes, ALL, "lengths_beyond_the_total"))
    step["seqlens_k"][0] = 8
    with pytest.raises(OracleError, match="neither"):
        reference(step, attributes, ALL, "lengths_beyond_the_total")


def of_negative_softcap_is_none() -> None:
    """The formula has the values of the positive softcap; by the reading there is none."""
    call, positive = prompt(softcap=-0.5), {"softcap": 0.5}
    assert same(reference(*call, ALL), reference(call[0], call[1] | positive, ALL))
    made = reference(*call, ALL, "negative_softcap_is_none")
    assert same(made, reference(call[0], call[1] | {"softcap": 0.0}, ALL))
    assert not same(made, reference(*call, ALL))


def of_prompts_of_query_seqlens() -> None:
    """Of a sequence without past tokens the first position counts on; a later chunk is as usual."""
    inputs, attributes = prompt(2, 2, do_rotary=1)
    inputs |= {
        **{name: tokens(2, 5, 4).reshape(2, 1, 5, 4) for name in ("past_key", "past_value")},
        "seqlens_k": np.array([1, 3], "i4"),
        "total_sequence_length": np.array(5, "i4"),
        "query_seqlens": np.array([2, 1], "i4"),
        **tables(8),
        "position_ids": np.array([[3, 1], [6, 2]]),
    }
    made = reference(inputs, attributes, ALL, "prompts_of_query_seqlens")
    assert not same(made, reference(inputs, attributes, ALL))
    counted = inputs | {"position_ids": np.array([[3, 4], [6, 2]])}
    assert same(made, reference(counted, attributes, ALL))


@pytest.mark.parametrize("reading", READINGS)
def test_each_reading_has_values_of_its_own(reading: ReadingName) -> None:
    globals()[f"of_{reading}"]()


def test_a_call_that_a_reading_is_not_about_is_as_usual() -> None:
    call = prompt(do_rotary=1, scale=0.3, softcap=2.0, **tables(4))
    usual = reference(*call, ALL)
    assert all(same(reference(*call, ALL, reading), usual) for reading in READINGS)


# The bundle


#: Three calls whose scores are 0 by the other reading.
FLAT = Call(loop=(3, 1, 1), attributes={"scale": 0.0})
#: Two sequences whose first positions differ.
PLACES = Call(
    batch_size=2,
    sequence_length=3,
    rotary="half_split",
    rotary_cache_length=16,
    position_ids=True,
    inputs={"position_ids": InputOverride(data=[[0, 1, 2], [4, 5, 6]])},
)
#: By the usual reading it has no meaning.
SHORT = Call(sequence_length=4, rotary="half_split", rotary_cache_length=3)


def read(call: Call, *readings: ReadingName) -> Prepared:
    return prepare(call, readings=readings)


def test_a_bundle_has_the_values_of_each_reading() -> None:
    bundle = read(FLAT, "scale_of_zero", "negative_softcap_is_none")
    assert set(bundle.readings) == {"scale_of_zero", "negative_softcap_is_none"}
    plain = prepare(FLAT)
    assert plain.readings == ()
    assert plain.inputs == bundle.inputs
    flat = bundle.by("scale_of_zero")
    for step, (usual, other) in enumerate(zip(bundle.expected, flat.expected, strict=True)):
        assert np.array_equal(usual["output"].value, plain.expected[step]["output"].value)
        assert not np.allclose(usual["output"].value, other["output"].value)
        work = computed(flat, step)
        assert not work.attention.scores.any()
        got = work.attention.output.transpose(0, 3, 1, 2, 4).reshape(other["output"].value.shape)
        assert np.array_equal(got, other["output"].value)


def test_a_reading_may_give_a_meaning_to_a_call_that_has_none() -> None:
    bundle = read(SHORT, "beyond_the_tables_unrotated", "scale_of_zero")
    assert "has no row in cos_cache" in bundle.unjudged
    assert list(bundle.readings) == ["beyond_the_tables_unrotated"]
    assert bundle.by("beyond_the_tables_unrotated").unjudged is None


# The judge


def judged(call: Call, values: Values, *readings: ReadingName, demands: Any = "computes") -> Any:
    contract = Contract(source="a document", readings=readings, demands=demands)
    return verdict_on(ran(values, values), call, contract, bundle=read(call, *readings))


@pytest.mark.parametrize(
    ("call", "reading"), [(FLAT, "scale_of_zero"), (PLACES, "position_ids_of_each_row")]
)
def test_each_reading_is_right_and_the_result_says_which(call: Call, reading: ReadingName) -> None:
    bundle = read(call, reading)
    usual, other = right_by(bundle), right_by(bundle.by(reading))
    plain = judged(call, usual, reading)
    assert (plain.verdict, plain.reading) == ("pass", None)
    found = judged(call, other, reading)
    assert (found.verdict, found.reading) == ("pass", reading)
    assert f"by the reading {reading}" in found.reason
    assert found.share < 1
    assert found.bits is not None
    assert judged(call, other).verdict == "wrong"


@pytest.mark.parametrize("step", [0, 1, 2])
def test_steps_by_two_readings_are_wrong(step: int) -> None:
    bundle = read(FLAT, "scale_of_zero")
    mixed, other = right_by(bundle), right_by(bundle.by("scale_of_zero"))
    mixed[step] = other[step]
    found = judged(FLAT, mixed, "scale_of_zero")
    assert (found.verdict, found.reading) == ("wrong", None)
    assert "right by no reading" in found.reason


@pytest.mark.parametrize("output", ["output", "output_qk"])
def test_outputs_by_two_readings_are_wrong(output: str) -> None:
    call = Call(sequence_length=3, qk_output=1, attributes={"scale": 0.0})
    bundle = read(call, "scale_of_zero")
    mixed, other = right_by(bundle), right_by(bundle.by("scale_of_zero"))
    assert judged(call, other, "scale_of_zero").verdict == "pass"
    mixed[0][output] = other[0][output]
    assert judged(call, mixed, "scale_of_zero").verdict == "wrong"


def test_the_figures_are_those_of_the_reading_that_fits_best() -> None:
    bundle = read(FLAT, "scale_of_zero")
    values = right_by(bundle.by("scale_of_zero"))
    values[1]["output"][0, 0, 5] += np.float32(1e-5)
    found = judged(FLAT, values, "scale_of_zero")
    assert (found.verdict, found.reading) == ("wrong", "scale_of_zero")
    worst = max(found.errors, key=lambda error: error.share)
    assert (worst.output, worst.step, worst.index) == ("output", 1, (0, 0, 5))
    values[1]["output"][0, 0, 5] = np.nan  # infinitely wrong by both
    assert judged(FLAT, values, "scale_of_zero").reading is None


def test_without_the_usual_meaning_a_reading_decides() -> None:
    name: ReadingName = "beyond_the_tables_unrotated"
    values = right_by(read(SHORT, name).by(name))
    found = judged(SHORT, values, name, demands="either")
    assert (found.verdict, found.reading, found.hazard) == ("pass", name, None)
    values[0]["output"][0, 0, 0] += 1
    found = judged(SHORT, values, name, demands="either")
    assert (found.verdict, found.reading) == ("wrong", name)


def test_a_run_without_any_meaning_is_a_hazard_where_it_may_be_rejected() -> None:
    found = judged(SHORT, right_by(prepare(Call(sequence_length=4))), demands="either")
    assert (found.verdict, found.errors) == ("pass", ())
    assert "has no row in cos_cache" in found.hazard


# The corpus


def test_the_readings_of_the_corpus_have_other_values_than_the_usual_one() -> None:
    """Otherwise a contract names a reading for nothing."""
    for case in shipped_cases():
        if not case.contract.readings:
            continue
        bundle = prepare(case.call, readings=case.contract.readings)
        for reading in case.contract.readings:
            assert reading in bundle.readings, f"{reading} gives {case.id} no values"
            values = right_by(bundle.by(reading))
            without = replace(bundle, wanted_readings=())
            if without.unjudged is None:
                outcome = ran(values, values)
                found = verdict_on(outcome, case.call, case.contract, bundle=without)
                assert found.verdict == "wrong", f"{reading} changes nothing in {case.id}"
