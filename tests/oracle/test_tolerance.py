"""The error model: correct kernels stay within half a budget, faults exceed two."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gqa_calls import (
    ALL,
    Arrays,
    Attributes,
    inputs_of,
    rotary_caches,
    run_onnxruntime,
)
from numpy.random import RandomState
from random_configurations import STAGES, random_configuration
from tables import tables

from conformance.bundle.prepare import prepare
from conformance.operator.call import checked_call
from conformance.oracle import Reference, reference
from conformance.oracle.tolerance import CONSTANTS, PastErrors, budgets, shares, unit_budget

TABLES = tables(__file__)

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16]


def defined_shares(
    got: np.ndarray, reference: Reference, unit: np.ndarray, target_class: Any
) -> np.ndarray:
    """Return the shares of the defined elements, as the judge computes them."""
    masked = np.where(reference.defined, unit, np.nan)
    return shares(got.astype(float), reference.value, masked, target_class)


def worst_shares(
    got: Arrays, references: dict[str, Reference], target_class: Any = "cpu"
) -> dict[str, float]:
    """Return the largest share of the budget of each output."""
    units = budgets(references)
    found = {
        name: defined_shares(array, references[name], units[name], target_class)
        for name, array in got.items()
    }
    return {name: float(share.max(initial=0.0)) for name, share in found.items()}


# --- correct kernels ---


@pytest.mark.parametrize("path", ["flash", "plain"])
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "all_at_once"])
def test_half_suffices(stage: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime stays within half of the budget in the calls that it does not reject."""
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "1" if path == "plain" else "0")
    dtypes = Counter[str]()
    for seed in range(STAGES.index(stage), 160 * len(STAGES), len(STAGES)):
        configuration = random_configuration(seed)
        inputs, attributes = configuration.inputs, configuration.attributes
        if inputs["query"].dtype == ml_dtypes.bfloat16:
            continue  # it has no kernel
        if inputs.get("attention_bias", np.zeros(1)).min() == np.finfo(np.float32).min:
            continue  # by this number it masks itself
        try:
            got = run_onnxruntime(inputs, attributes)
        except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
            continue
        references = reference(inputs, attributes, ALL)
        for name in ALL:
            assert got[name].shape == references[name].value.shape
            assert got[name].dtype == references[name].dtype
        worst = worst_shares(got, references)
        assert max(worst.values()) <= 0.5, f"{configuration}: {worst}"
        dtypes[str(inputs["query"].dtype)] += 1
    assert min(dtypes["float32"] // 5, dtypes["float16"]) >= 3, dtypes


def prompt(
    dtype: Any,
    *,
    length: int = 24,
    heads: tuple[int, int] = (4, 2),
    head_size: int = 32,
    spread: float = 1.0,
    seed: int = 0,
    past: int = 0,
    **attributes: Any,
) -> tuple[Arrays, Attributes]:
    """Return one sequence of normal numbers without rotary, on a cache of ``past`` tokens."""
    rng = RandomState(seed)
    num_heads, kv_num_heads = heads

    def values(*shape: int) -> np.ndarray:
        return (spread * rng.standard_normal(shape)).astype(dtype)

    counts = (num_heads, kv_num_heads, kv_num_heads)
    arrays = [values(1, length, count * head_size) for count in counts]
    arrays += [values(1, kv_num_heads, past, head_size) for _ in range(2 if past else 0)]
    return inputs_of(*arrays, lengths=[past + length]), {
        "num_heads": num_heads,
        "kv_num_heads": kv_num_heads,
        **attributes,
    }


def careful_kernel(inputs: Arrays, attributes: Attributes, block: int = 8) -> Arrays:
    """Compute a causal prompt in float32, rounding to storage wherever a correct kernel may.

    Online softmax over blocks of keys, the query scaled before it is rounded, probabilities
    rounded before they are multiplied by the values, sums one term after the other.
    """
    dtype = inputs["query"].dtype
    num_heads, kv_num_heads = attributes["num_heads"], attributes["kv_num_heads"]
    length = inputs["query"].shape[1]

    def heads(name: str, count: int) -> np.ndarray:
        tokens = inputs[name][0].astype(np.float32)
        return tokens.reshape(length, count, -1).transpose(1, 0, 2)

    def turned(array: np.ndarray) -> np.ndarray:
        if not attributes.get("do_rotary"):
            return array
        cos = inputs["cos_cache"][:length].astype(np.float32)
        sin = inputs["sin_cache"][:length].astype(np.float32)
        x1, x2 = np.split(array, 2, axis=2)
        return np.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=2)

    key = turned(heads("key", kv_num_heads)).astype(dtype)
    value = heads("value", kv_num_heads)
    scale = np.float32(attributes.get("scale") or value.shape[2] ** -0.5)
    query = (turned(heads("query", num_heads)) * scale).astype(dtype).astype(np.float32)
    group = num_heads // kv_num_heads
    keys = np.repeat(key.astype(np.float32), group, axis=0)
    values = np.repeat(value, group, axis=0)

    top = np.full((num_heads, length), -np.inf, np.float32)
    denominator = np.zeros((num_heads, length), np.float32)
    output = np.zeros(query.shape, np.float32)
    for start in range(0, length, block):
        stop = min(start + block, length)
        scores = np.zeros((num_heads, length, stop - start), np.float32)
        for d in range(query.shape[2]):
            scores += query[:, :, d, None] * keys[:, None, start:stop, d]
        if attributes.get("softcap"):
            cap = np.float32(attributes["softcap"])
            scores = cap * np.tanh(scores / cap)
        future = np.arange(start, stop) > np.arange(length)[:, None]
        scores[:, future] = -np.inf
        new_top = np.maximum(top, scores.max(axis=2))
        shrink = np.exp(top - new_top)
        weights = np.exp(scores - new_top[..., None])
        denominator *= shrink
        output *= shrink[..., None]
        for j in range(stop - start):
            denominator += weights[:, :, j]
            rounded = weights[:, :, j].astype(dtype).astype(np.float32)
            output += rounded[..., None] * values[:, None, start + j]
        top = new_top
    output /= denominator[..., None]
    return {
        "output": output.transpose(1, 0, 2).reshape(1, length, -1).astype(dtype),
        "present_key": key[None],
        "present_value": value[None].astype(dtype),
    }


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_a_careful_kernel_stays_within_half(dtype: Any, spread: float) -> None:
    features: list[dict[str, Any]] = [{}, {"softcap": 2.0}, {"scale": 0.7}, {"do_rotary": 1}]
    for seed, attributes in enumerate(features):
        inputs, attributes = prompt(dtype, seed=seed, spread=spread, length=40, **attributes)
        if "do_rotary" in attributes:
            inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(40, 16, dtype)
        references = reference(inputs, attributes, ALL)
        worst = worst_shares(careful_kernel(inputs, attributes), references)
        assert max(worst.values()) <= 0.5, f"{attributes}: {worst}"


def test_a_careful_kernel_stays_within_half_over_a_long_sum_of_equal_terms() -> None:
    """The rounding errors of equal terms do not cancel: the worst case of correct float32 sums."""
    inputs, attributes = prompt(np.float32, length=700, heads=(1, 1), head_size=8)
    inputs["key"][...] = 0.0
    inputs["value"][...] = 1.1
    references = reference(inputs, attributes, ALL)
    worst = worst_shares(careful_kernel(inputs, attributes, block=700), references)
    assert 0.001 < worst["output"] <= 0.5


def test_rounding_the_exact_values_is_within_the_budget() -> None:
    for seed in range(200):
        configuration = random_configuration(seed)
        references = reference(configuration.inputs, configuration.attributes, ALL)
        rounded = {name: item.value.astype(item.dtype) for name, item in references.items()}
        assert max(worst_shares(rounded, references).values()) <= 0.5, str(configuration)


@pytest.mark.parametrize("dtype", FLOATS)
def test_tiny_values_are_not_judged_by_relative_error_alone(dtype: Any) -> None:
    """If the storage type has subnormals, half their spacing is allowed."""
    inputs, attributes = prompt(dtype)
    tiny = ml_dtypes.finfo(dtype).smallest_normal
    inputs["value"] = (inputs["value"].astype(float) * float(tiny)).astype(dtype)
    references = reference(inputs, attributes, ["output"])
    rounded = {"output": references["output"].value.astype(dtype)}
    assert worst_shares(rounded, references)["output"] <= 0.5


def test_flushing_float32_subnormals_is_within_the_budget() -> None:
    inputs, attributes = prompt(np.float32)
    inputs["value"] *= np.float32(1e-39)
    references = reference(inputs, attributes, ["output"])
    assert np.abs(references["output"].value).max() > 0
    flushed = {"output": np.zeros(references["output"].value.shape, np.float32)}
    assert worst_shares(flushed, references)["output"] <= 0.5


def test_an_exp_that_never_reaches_zero_is_within_the_budget() -> None:
    """A fast exp stops near the smallest normal number, which counts where everything else is 0."""
    inputs, attributes = prompt(np.float32, length=1, past=99, heads=(1, 1), head_size=8)
    inputs["query"][...] = 0.0
    inputs["past_value"][...], inputs["value"][...] = 1.0, 0.0
    inputs["attention_bias"] = np.full((1, 1, 1, 100), -1000.0, np.float32)
    inputs["attention_bias"][..., -1] = 0.0
    references = reference(inputs, attributes, ["output"])
    assert not references["output"].value.any()
    got = {"output": np.full((1, 1, 8), 99 * 2.0**-126, np.float32)}
    assert worst_shares(got, references)["output"] <= 0.5


# --- faults: a kernel that is correct except for one thing ---


def share_of_fault(call: tuple[Arrays, Attributes], faulty: tuple[Arrays, Attributes]) -> float:
    """Return the share of a kernel that computes another call, rounded to storage."""
    references = reference(*call, ["output"])
    dtype = call[0]["query"].dtype
    got = reference(*faulty, ["output"])["output"].value.astype(dtype)
    return worst_shares({"output": got}, references)["output"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "value", "others"), TABLES["attributes off"])
def test_attributes_off_are_found(dtype: Any, name: str, value: float, others: list[float]) -> None:
    inputs, attributes = prompt(dtype, **{name: value})
    for other in others:
        assert share_of_fault((inputs, attributes), (inputs, attributes | {name: other})) > 2


@pytest.mark.parametrize("length", [24, 256])
def test_a_scale_off_by_a_hundredth_is_found_in_float32(length: int) -> None:
    inputs, attributes = prompt(np.float32, length=length, scale=0.2)
    assert share_of_fault((inputs, attributes), (inputs, attributes | {"scale": 0.202})) > 2


def test_a_scale_off_by_a_hundredth_is_found_in_float16_between_near_and_far_keys() -> None:
    """Where q.k is large for some keys and 0 for others; with random keys the error can hide."""
    inputs, attributes = prompt(np.float16, scale=0.2)
    for name in ("query", "key"):
        inputs[name] = np.abs(inputs[name])
    inputs["key"][:, ::2] = 0.0
    faulty = {**attributes, "scale": 0.202}
    assert share_of_fault((inputs, attributes), (inputs, faulty)) > 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_query_heads_assigned_in_rotation_are_found(dtype: Any) -> None:
    """Head n uses key/value head n % K instead of n // (N / K)."""
    inputs, attributes = prompt(dtype, heads=(4, 2))
    query = inputs["query"].reshape(1, 24, 4, 32)
    swapped = {**inputs, "query": query[:, :, [0, 2, 1, 3]].reshape(1, 24, -1)}
    references = reference(inputs, attributes, ["output"])
    output = reference(swapped, attributes, ["output"])["output"].value.reshape(1, 24, 4, 32)
    got = output[:, :, [0, 2, 1, 3]].reshape(1, 24, -1).astype(dtype)
    assert worst_shares({"output": got}, references)["output"] > 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_causal_mask_aligned_top_left_is_found(dtype: Any) -> None:
    inputs, attributes = prompt(dtype, length=4, past=20)
    bias = np.zeros((1, 1, 4, 24), dtype)
    bias[..., np.arange(24) > np.arange(4)[:, None]] = -np.inf
    biased = inputs | {"attention_bias": bias}
    assert share_of_fault((inputs, attributes), (biased, attributes)) > 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_rotary_one_position_off_is_found(dtype: Any) -> None:
    inputs, attributes = prompt(dtype, do_rotary=1)
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(30, 16, dtype)
    off = {**inputs, "position_ids": 1 + np.arange(24)[None]}
    references = reference(inputs, attributes, ALL)
    got = reference(off, attributes, ALL)["present_key"].value.astype(dtype)
    assert worst_shares({"present_key": got}, references)["present_key"] > 2


def test_sums_in_float16_over_many_keys_are_found() -> None:
    inputs, attributes = prompt(np.float16, length=1, past=4095, heads=(1, 1), head_size=16)
    inputs["past_value"] = np.abs(inputs["past_value"])
    references = reference(inputs, attributes, ["output"])
    attention = references["output"].attention
    total = np.zeros(16, np.float16)
    for weight, value in zip(
        attention.probabilities[0, 0, 0, 0], attention.value[0, 0], strict=True
    ):
        total += np.float16(weight) * value.astype(np.float16)
    assert worst_shares({"output": total[None, None]}, references)["output"] > 2


# --- the parts of a budget ---

A = 2.0**-24


def budget_by_hand(
    reference_: Reference,
    unit: float,
    floor: float,
    cap: float,
    sink: float | None,
    of_scores: float = A,
) -> np.ndarray:
    """Return docs/tolerance.md for one head and its last query, sum by sum; [D].

    ``of_scores`` is the unit roundoff of the arithmetic with scores.
    """
    attention = reference_.attention
    q, mq = attention.query[0, 0, 0, -1], attention.query_magnitude[0, 0, 0, -1]
    keys, mks, values = attention.key[0, 0], attention.keys.magnitude[0, 0], attention.value[0, 0]
    logits, p = attention.logits[0, 0, 0, -1], attention.probabilities[0, 0, 0, -1]
    d, n, c = len(q), len(keys), attention.scale
    top = max([*logits] if sink is None else [*logits, sink])

    def exp_error(logit: float) -> float:
        return 2 * of_scores * (top - logit) + 4 * of_scores

    errors = []
    for j in range(n):
        of_query = [
            unit * max(abs(q[e]), mq[e]) + 2 * A * mq[e] + floor * max(1, 1 / c) for e in range(d)
        ]
        of_key = [(unit + 2 * A) * m + floor if m else 0.0 for m in mks[j]]
        error = sum(c * of_query[e] * abs(keys[j][e]) for e in range(d))
        error += sum(c * (abs(q[e]) + of_query[e]) * of_key[e] for e in range(d))
        error += c * d * A * sum(abs(q[e] * keys[j][e]) for e in range(d))
        score = abs(c * (q @ keys[j]))
        error += 3 * of_scores * score
        if cap:
            error = cap * np.tanh(score / cap) - cap * np.tanh((score - error) / cap)
            error += 9 * of_scores * cap * np.tanh(score / cap)
        errors.append(error + of_scores * abs(logits[j]) + exp_error(logits[j]))

    sink_share = 0.0 if sink is None else 1 - p.sum()
    sink_error = 0.0 if sink is None else exp_error(sink)
    least = sum(p[j] * np.exp(-errors[j]) for j in range(n)) + sink_share * np.exp(-sink_error)
    budget = []
    for e in range(d):
        o = attention.output[0, 0, 0, -1, e]
        moved = sum(p[j] * np.expm1(errors[j]) * abs(values[j][e] - o) for j in range(n))
        moved += sink_share * np.expm1(sink_error) * abs(o)
        summed = sum(
            ((unit + 2 * n * A + 4 * of_scores) * p[j] + min(p[j], floor) + 2.0**-126)
            * abs(values[j][e])
            for j in range(n)
        )
        budget.append(moved / least + summed + unit * abs(o) + floor)
    return np.array(budget)


@pytest.mark.parametrize("sink", [None, 2.0, -30.0], ids=["no sink", "sink", "tiny sink"])
@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize(
    ("dtype", "unit", "floor"),
    [
        (np.float32, 2.0**-24, 2.0**-126),
        (np.float16, 2.0**-11, 2.0**-25),
        (ml_dtypes.bfloat16, 2.0**-8, 2.0**-126),
    ],
)
def test_the_budget_is_the_one_of_the_documentation(
    dtype: Any, unit: float, floor: float, cap: float, sink: float | None
) -> None:
    inputs, attributes = prompt(
        dtype, length=2, past=5, heads=(1, 1), head_size=8, scale=0.4, softcap=cap, do_rotary=1
    )
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(7, 2, dtype)  # half of the head
    inputs["attention_bias"] = RandomState(9).randn(1, 1, 2, 7).astype(dtype)
    inputs["attention_bias"][..., 3] = -13.0  # with a tiny probability
    if sink is not None:
        inputs["head_sink"] = np.array([sink], dtype)
    output = reference(inputs, attributes, ["output"])["output"]
    expected = budget_by_hand(output, unit, floor, cap, sink)
    np.testing.assert_allclose(budgets({"output": output})["output"][0, -1], expected, rtol=1e-6)
    stored = unit_budget("output", output, None, stored_scores=True)[0, -1]
    expected = budget_by_hand(output, unit, floor, cap, sink, of_scores=unit)
    np.testing.assert_allclose(stored, expected, rtol=1e-6)


def test_the_class_of_a_target_decides_how_scores_may_be_rounded() -> None:
    made = prepare(checked_call({"dtype": "float16", "batch_size": 1, "sequence_length": 4}))
    usual = made.expected[0]["output"].units
    assert made.judged_as("gpu") is made
    wider = made.judged_as("npu")
    assert (wider.expected[0]["output"].units > usual).all()
    np.testing.assert_array_equal(
        wider.expected[0]["present_key"].units, made.expected[0]["present_key"].units
    )


def test_a_tiny_probability_may_be_lost_in_storage() -> None:
    """exp(-18) is below every float16: the key may be lost, however large its value."""
    inputs, attributes = prompt(np.float16, length=1, past=1, heads=(1, 1), head_size=8)
    inputs["past_value"][...], inputs["value"][...] = 60000.0, 0.0
    inputs["attention_bias"] = np.array([-18.0, 0.0], np.float16).reshape(1, 1, 1, 2)
    inputs["query"][...] = 0.0
    references = reference(inputs, attributes, ["output"])
    exact = references["output"].value
    assert exact.min() > 9e-4
    assert worst_shares({"output": np.zeros_like(exact)}, references)["output"] <= 0.5


def test_copies_must_be_exact() -> None:
    configuration = random_configuration(STAGES.index("concatenated"))
    inputs, attributes = configuration.inputs, configuration.attributes
    attributes.pop("do_rotary", None)
    references = reference(inputs, attributes, ALL)
    units = budgets(references)
    assert not units["present_key"].any()
    assert not units["present_value"].any()
    got = references["present_value"].value.copy()
    got[0, 0, 0, 0] = np.nextafter(np.float32(got[0, 0, 0, 0]), np.float32(9))
    share = defined_shares(got, references["present_value"], units["present_value"], "cpu")
    assert np.isinf(share[0, 0, 0, 0])
    assert np.count_nonzero(share) == 1
    assert not shares(np.array([-0.0]), np.array([0.0]), np.zeros(1), "cpu").any()


def test_in_a_rotated_cache_only_newly_rotated_keys_may_differ() -> None:
    inputs, attributes = prompt(np.float32, length=1, past=5, do_rotary=1)
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(6, 8)  # half of the head
    unit = budgets(reference(inputs, attributes, ["present_key"]))["present_key"]
    assert (unit[:, :, 5, :16] > 0).all()
    assert not unit[:, :, :5].any()
    assert not unit[:, :, 5, 16:].any()


def test_a_budget_belongs_to_its_own_row() -> None:
    """A huge value elsewhere in the cache must not widen the budget of a row that ignores it."""
    inputs, attributes = prompt(np.float32, local_window_size=2)
    before = budgets(reference(inputs, attributes, ["output"]))["output"]
    inputs["value"][0, 20] = 1e6
    after = budgets(reference(inputs, attributes, ["output"]))["output"]
    np.testing.assert_array_equal(before[0, :20], after[0, :20])
    assert (after[0, 20] > before[0, 20]).all()


def test_a_zero_row_of_a_sink_alone_must_be_zero() -> None:
    inputs, attributes = prompt(np.float32, length=1, smooth_softmax=1)
    inputs["attention_bias"] = np.full((1, 1, 1, 1), -np.inf, np.float32)
    references = reference(inputs, attributes, ["output"])
    output = references["output"]
    assert output.defined.all()
    assert worst_shares({"output": np.zeros_like(output.value)}, references)["output"] == 0
    assert worst_shares({"output": output.value + 1e-30}, references)["output"] > 2


def test_a_bias_that_absorbs_every_score_allows_the_range_of_the_values() -> None:
    """-3.4e38 on every key: float32 loses the scores beside it, so any mean is allowed."""
    inputs, attributes = prompt(np.float32, length=6)
    lowest = np.finfo(np.float32).min
    inputs["attention_bias"] = np.full((1, 1, 6, 6), lowest, np.float32)
    references = reference(inputs, attributes, ["output"])
    without_bias = {k: v for k, v in inputs.items() if k != "attention_bias"}
    exact = reference(without_bias, attributes, ["output"])["output"].value
    assert worst_shares({"output": exact.astype(np.float32)}, references)["output"] <= 0.5
    unit = budgets(references)["output"]
    share = defined_shares(np.full(exact.shape, 50.0), references["output"], unit, "cpu")
    assert (share[:, 1:] > 2).all()
    with_sink = {**inputs, "head_sink": np.full(4, lowest)}
    references = reference(with_sink, attributes, ["output"])
    assert worst_shares({"output": np.zeros_like(exact)}, references)["output"] <= 0.5


def test_a_bias_that_hides_some_keys_costs_nothing() -> None:
    """The lowest float32 as a mask: its own rounding error is not an error of a logit."""
    inputs, attributes = prompt(np.float32, length=6)
    inputs["attention_bias"] = np.zeros((1, 1, 6, 6), np.float32)
    plain = budgets(reference(inputs, attributes, ["output"]))["output"]
    inputs["attention_bias"][..., 5, :3] = np.finfo(np.float32).min
    masked = budgets(reference(inputs, attributes, ["output"]))["output"]
    assert masked[0, 5].max() < 3 * plain.max()


def test_the_constant_of_the_class_divides_the_share() -> None:
    references = reference(*prompt(np.float32), ["output"])
    unit = budgets(references)["output"]
    got = references["output"].value + unit
    for target_class, constant in CONSTANTS.items():
        share = defined_shares(got, references["output"], unit, target_class)
        np.testing.assert_allclose(share, 1 / constant, rtol=1e-6)


def test_in_a_loop_the_runtime_may_have_rounded_the_past_itself() -> None:
    """The error of the previous present enters the budget of everything computed from it."""
    inputs, attributes = prompt(np.float16, length=1, past=9, do_rotary=1)
    inputs["cos_cache"], inputs["sin_cache"] = rotary_caches(10, 16, np.float16)
    error = np.full(inputs["past_key"].shape, 2.0**-10)
    error[:, :, 5:] = 0.0
    references = reference(inputs, attributes, ALL)
    plain = budgets(references)
    carried = budgets(references, PastErrors(error, np.zeros_like(error)))
    np.testing.assert_array_equal(carried["present_key"][:, :, :9], error)
    np.testing.assert_array_equal(carried["present_key"][:, :, 9:], plain["present_key"][:, :, 9:])
    np.testing.assert_array_equal(carried["present_value"], plain["present_value"])
    assert (carried["output"] > plain["output"]).all()
    moved = {**inputs, "past_key": inputs["past_key"].astype(float)}
    moved["past_key"] = moved["past_key"] + error * np.sign(RandomState(1).rand(*error.shape) - 0.5)
    moved = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in moved.items()}
    got = reference(moved, attributes, ["output"])["output"].value
    share = np.abs(got - references["output"].value) / carried["output"]
    assert 0.01 < share.max() < 1.0


def test_a_quotient_by_a_huge_softcap_may_be_subnormal() -> None:
    """softcap * tanh(score / softcap) in float32, where the quotient has few bits or is flushed."""
    inputs, attributes = prompt(np.float32, length=4, qk_output=1)
    attributes["softcap"] = cap = float(np.finfo(np.float32).max)
    references = reference(inputs, attributes, ["output", "output_qk"])
    plain = references["output_qk"].value.astype(np.float32)
    with np.errstate(all="ignore"):
        quotient = plain / np.float32(cap)
        capped = np.tanh(quotient) * np.float32(cap)
    assert (np.abs(capped - plain) > 1e-7 * np.abs(plain)).any()
    for got in (capped, np.zeros_like(plain)):
        assert worst_shares({"output_qk": got}, references)["output_qk"] <= 1.0
