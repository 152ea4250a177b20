"""Tests the judge with hand-made outcomes on real bundles, each with one fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from goldens import check_golden
from judged import COMPUTES, EITHER, PROMPT, Values, file, ran, rejected, right, verdict_on
from onnx import TensorProto

from conformance.base.array_types import NUMPY
from conformance.bundle.expected import Expected
from conformance.bundle.prepare import ComputedSteps, Prepared, prepare
from conformance.case.contract import Contract
from conformance.case.corpus import find
from conformance.case.steps import steps_of
from conformance.harness.outcomes import (
    Crashed,
    InfrastructureFailure,
    Outcome,
    Rejected,
    TimedOut,
    Unavailable,
)
from conformance.judge.error_map import SequenceLimits, error_map
from conformance.judge.verdict import Judgement, Unjudgeable, compare
from conformance.operator.call import Call, checked_call
from conformance.oracle import Reference
from conformance.oracle.tolerance import CONSTANTS, shares
from conformance.results.records import ErrorMap
from conformance.results.verdicts import VERDICTS
from conformance.results.wrong_outputs import wrong_outputs

#: The first sequence of the batch has 2 tokens of 4: the other rows are undefined.
RAGGED = Call(batch_size=2, sequence_length=4, total_sequence_lengths=(2, 4))
#: 7 of 12 rows of the buffer are undefined.
STATIC = Call(past_sequence_length=4, max_sequence_length=12)
LOOP = Call(loop=(3, 1, 2), rotary="half_split")
#: Must be rejected; the oracle has values for it nevertheless.
NO_PLACE = Call(past_sequence_length=4, presents="none")
REJECTS = Contract(demands="rejects", source="a document", mentions=("Present", "past_key"))
REQUESTED = Contract(basis="requested", source="an issue")


SCORES_AND_ALL = ("output", "present_key", "present_value", "output_qk")


def off(call: Call, by: float = 1.0) -> Values:
    """What a runtime returns that is right but for the first element of the output."""
    values = right(call)
    values[0]["output"].flat[0] += by
    return values


def without_values(why: str) -> Prepared:
    """A call for which the oracle has no values."""
    made = prepare(PROMPT)
    made.__dict__["_computed"] = ComputedSteps([], [], why)
    return made


def judged(call: Call, first: Values, second: Values | None = None) -> Judgement:
    """The judgement on a case that must compute and ran twice, by default with equal results."""
    return verdict_on(ran(first, first if second is None else second), call)


# The verdicts


DIED = Crashed(signal="SIGSEGV", message="The runner died of SIGSEGV.")
UNAVAILABLE = Unavailable(reason="There is no fp16 on this adapter.")


def test_every_verdict_can_be_produced() -> None:
    good = ran(right(PROMPT), right(PROMPT), placement="CPU")
    seen = [
        verdict_on(DIED),
        verdict_on(TimedOut(seconds=30.0)),
        verdict_on(ran(off(PROMPT), off(PROMPT))),
        verdict_on(good, contract=REJECTS),
        verdict_on(good, provider="CUDA"),
        verdict_on(rejected("no such kernel")),
        verdict_on(good, provider="CPU"),
        verdict_on(UNAVAILABLE),
    ]
    missing = [verdict for verdict in VERDICTS if verdict not in {one.verdict for one in seen}]
    assert not missing, f"Edit conformance/judge/verdict.py, then add a line here: {missing}"
    assert tuple(one.verdict for one in seen) == VERDICTS


@pytest.mark.parametrize(
    ("outcome", "verdict", "reason"),
    [
        (DIED, "crash", DIED.message),
        (TimedOut(seconds=2.5), "timeout", "No answer within 2.5 s; the process was killed."),
        (UNAVAILABLE, "skip", UNAVAILABLE.reason),
    ],
    ids=["crash", "timeout", "skip"],
)
@pytest.mark.parametrize("contract", [COMPUTES, REJECTS, EITHER], ids=lambda one: one.demands)
def test_what_did_not_run(outcome: Outcome, verdict: str, reason: str, contract: Contract) -> None:
    """What did not run has one verdict under every contract and needs no oracle."""
    for bundle in (None, without_values("no")):
        made = verdict_on(outcome, NO_PLACE, contract, bundle=bundle)
        assert (made.verdict, made.reason) == (verdict, reason)


def test_a_node_on_another_execution_provider_is_a_fallback_whatever_its_values() -> None:
    elsewhere = ran(right(PROMPT), right(PROMPT), placement="CPUExecutionProvider")
    made = verdict_on(elsewhere, provider="CUDAExecutionProvider")
    assert made.verdict == "fallback"
    assert "CPUExecutionProvider" in made.reason
    assert "CUDAExecutionProvider" in made.reason
    for provider in ("CPUExecutionProvider", None):  # None: a runtime that has none
        assert verdict_on(elsewhere, provider=provider).verdict == "pass"


@pytest.mark.parametrize(
    ("kernels", "reason"),
    [
        (("math",), "It ran, but with the kernel math; flash was requested."),
        (("xqa", "math"), "It ran, but with the kernels xqa and math; flash was requested."),
        (("flash", "math"), "It ran with flash, but in part with the kernel math."),
        (None, "It ran, but the runtime reports no kernel, so nothing proves that flash ran."),
    ],
)
def test_another_kernel_is_a_fallback(kernels: tuple[str, ...] | None, reason: str) -> None:
    """Another kernel is a fallback whatever its values."""
    done = replace(ran(right(PROMPT), right(PROMPT)), kernels=kernels)
    for contract in (COMPUTES, REJECTS, EITHER):
        made = verdict_on(done, contract=contract, kernel="flash")
        assert (made.verdict, made.reason, made.other_kernel) == ("fallback", reason, True)
    assert verdict_on(done).verdict == "pass"
    assert verdict_on(replace(done, kernels=("flash",)), kernel="flash").verdict == "pass"


def test_another_execution_provider_is_worse_than_another_kernel() -> None:
    done = replace(ran(right(PROMPT), right(PROMPT), placement="A"), kernels=("math",))
    made = verdict_on(done, provider="B", kernel="flash")
    assert (made.reason, made.other_kernel) == ("It ran, but on A; B was requested.", False)


def test_an_infrastructure_failure_is_not_a_verdict() -> None:
    with pytest.raises(Unjudgeable):
        verdict_on(InfrastructureFailure(message="The runner spoke French."))


# The budget


def edges(want: float, budget: float, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The last number of ``dtype`` within ``budget`` above ``want``, and the one after it."""
    inside = np.array([want + budget]).astype(dtype)
    up, down = (np.array([sign * np.inf]).astype(dtype) for sign in (1, -1))
    if float(inside[0]) - want > budget:
        inside = np.nextafter(inside, down)
    return inside, np.nextafter(inside, up)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("output", ["output", "present_key"])
@pytest.mark.parametrize("place", ["first", "middle", "last", "largest", "smallest"])
def test_a_budget_ends_between_two_numbers(dtype: Any, output: str, place: str) -> None:
    """One step beyond the budget fails and the step before passes."""
    call = Call(sequence_length=5, rotary="half_split", dtype=dtype)
    want = prepare(call).expected[0][output]
    sizes = np.abs(want.value.ravel())
    flat = {
        "first": 0,
        "middle": sizes.size // 2,
        "last": sizes.size - 1,
        "largest": int(sizes.argmax()),
        "smallest": int(sizes.argmin()),
    }[place]
    index = np.unravel_index(flat, want.value.shape)
    budget = CONSTANTS["cpu"] * want.unit[index]
    assert budget > 0
    inside, outside = edges(float(want.value[index]), float(budget), NUMPY[dtype])
    values = right(call)
    values[0][output][index] = inside[0]
    assert judged(call, values).verdict == "pass"
    values[0][output][index] = outside[0]
    beyond = judged(call, values)
    assert beyond.verdict == "wrong"
    assert beyond.share > 1
    assert str(list(map(int, index))) in beyond.reason


# Faults


def swap_heads(values: Values) -> None:
    """Heads 0 and 1 (of 16 elements) are swapped."""
    output = values[0]["output"]
    output[..., :32] = np.concatenate([output[..., 16:32], output[..., :16]], axis=-1)


def transpose_heads(values: Values) -> None:
    """[B, S, N, D] stored as [B, N, S, D], in the same shape."""
    batch_size, sequence_length, hidden_size = values[0]["output"].shape
    heads = values[0]["output"].reshape(batch_size, sequence_length, 4, 16)
    values[0]["output"] = heads.transpose(0, 2, 1, 3).reshape(1, sequence_length, hidden_size)


def swap_presents(values: Values) -> None:
    one = values[0]
    one["present_key"], one["present_value"] = one["present_value"], one["present_key"]


def put(number: float, output: str = "output") -> Callable[[Values], None]:
    def breaks(values: Values) -> None:
        values[0][output].flat[7] = number

    return breaks


def reshape(*shape: int) -> Callable[[Values], None]:
    def breaks(values: Values) -> None:
        values[0]["present_key"] = values[0]["present_key"].reshape(shape)

    return breaks


def retype(dtype: Any, output: str = "output") -> Callable[[Values], None]:
    def breaks(values: Values) -> None:
        values[0][output] = values[0][output].astype(dtype)

    return breaks


def one_step_off(values: Values) -> None:
    """The next float32: a copy must be exact."""
    values[0]["present_value"].flat[5] = np.nextafter(
        values[0]["present_value"].flat[5], np.float32(2)
    )


def drop_row(values: Values) -> None:
    values[0]["output"] = values[0]["output"][:, :-1]


def zero(values: Values) -> None:
    values[0]["output"][:] = 0


OUTPUT, PRESENTS = ("output",), ("presents",)


@pytest.mark.parametrize(
    ("breaks", "says", "outputs"),
    [
        (put(math.nan), "output is nan at [0, 0, 7]", OUTPUT),
        (put(math.inf), "output is inf at [0, 0, 7]", OUTPUT),
        (put(-math.inf), "output is -inf at [0, 0, 7]", OUTPUT),
        (put(math.nan, "present_value"), "present_value is nan", PRESENTS),
        (put(1024.0), "output is 1024 at [0, 0, 7]", OUTPUT),
        (swap_heads, "output is ", OUTPUT),
        (transpose_heads, "output is ", OUTPUT),
        (swap_presents, "present_key is ", PRESENTS),
        (one_step_off, "it must be exact", PRESENTS),
        (reshape(1, 5, 2, 16), "present_key has shape (1, 5, 2, 16), not (1, 2, 5, 16)", PRESENTS),
        (reshape(2, 5, 16), "present_key has shape (2, 5, 16), not (1, 2, 5, 16)", PRESENTS),
        (drop_row, "output has shape (1, 4, 64), not (1, 5, 64)", OUTPUT),
        (retype(np.float16), "output has dtype float16, not float32", OUTPUT),
        (retype(np.float64), "output has dtype ONNX type 11, not float32", OUTPUT),
        (retype(np.int32, "present_key"), "present_key has dtype int32, not float32", PRESENTS),
        (zero, "output is 0 at", OUTPUT),
    ],
)
def test_a_fault_is_wrong_and_described(
    breaks: Callable[[Values], None], says: str, outputs: tuple[str, ...]
) -> None:
    values = right(PROMPT)
    assert judged(PROMPT, values).verdict == "pass"
    breaks(values)
    made = judged(PROMPT, values)
    assert made.verdict == "wrong"
    assert says in made.reason
    assert wrong_outputs(made.faults, made.errors) == outputs


@pytest.mark.parametrize("demands", ["computes", "rejects"])
def test_every_output_that_is_wrong_is_known_and_named(demands: Any) -> None:
    made = right(PROMPT)
    put(1e6)(made)
    put(math.nan, "present_value")(made)
    judgement = verdict_on(ran(made, made), contract=Contract(demands=demands, source="a text"))
    assert wrong_outputs(judgement.faults, judgement.errors) == ("output", "presents")
    (worst,) = judgement.faults
    assert worst.output == "present_value"
    assert judgement.reason.endswith("; output is wrong, too.")


def test_a_wrong_output_of_any_call_of_a_loop_counts() -> None:
    made = right(LOOP)
    made[2]["output"] = made[2]["output"] + np.float32(1e3)
    made[0]["present_key"] = made[0]["present_key"][..., :1]
    judgement = judged(LOOP, made)
    assert wrong_outputs(judgement.faults, judgement.errors) == ("output", "presents")


def test_minus_zero_is_zero() -> None:
    call = Call(sequence_length=5, key_value="zero_valued")
    values = right(call)
    for output in values[0].values():
        output[...] = np.float32(-0.0)
    made = judged(call, values)
    assert (made.verdict, made.share) == ("pass", 0.0)
    assert [error.output for error in made.errors] == ["output", "present_key", "present_value"]


# Two runs


def test_two_runs_that_differ_are_wrong_though_each_is_within_the_budget() -> None:
    other = right(PROMPT)
    other[0]["output"][0, 2, 9] = np.nextafter(other[0]["output"][0, 2, 9], np.float32(9))
    assert judged(PROMPT, other).verdict == "pass"
    made = judged(PROMPT, right(PROMPT), other)
    assert made.verdict == "wrong"
    assert "two runs on the same input differ in output" in made.reason


def test_two_runs_are_compared_bit_by_bit() -> None:
    call = Call(sequence_length=5, key_value="zero_valued")
    other = right(call)
    other[0]["present_key"][0, 0, 0, 0] = -0.0
    assert judged(call, right(call), other).verdict == "wrong"


@pytest.mark.parametrize("breaks", [retype(np.float16), drop_row], ids=["dtype", "shape"])
def test_two_runs_of_another_dtype_or_shape_are_wrong(breaks: Callable[[Values], None]) -> None:
    other = right(PROMPT)
    breaks(other)
    assert "two runs" in judged(PROMPT, right(PROMPT), other).reason


def test_the_same_values_in_another_encoding_are_the_same() -> None:
    """Repeated numbers may be packed, and fields come in any order."""
    outcome = ran(right(PROMPT), right(PROMPT))
    values = right(PROMPT)[0]["output"]
    tensor = TensorProto(data_type=1, name="output", raw_data=values.tobytes())
    packed = bytes(values.shape)  # one byte each, as they are below 128
    spelled = b"\x0a" + bytes([len(packed)]) + packed + tensor.SerializeToString()
    outcome.runs[1][0]["output"] = spelled
    assert verdict_on(outcome).verdict == "pass"


# Undefined elements


@pytest.mark.parametrize("call", [RAGGED, STATIC], ids=["ragged", "static"])
def test_undefined_elements_are_never_compared(call: Call) -> None:
    first, second = right(call), right(call)
    undefined = 0
    for name, want in prepare(call).expected[0].items():
        hole = np.isnan(want.unit)
        undefined += int(hole.sum())
        first[0][name][hole] = np.nan
        second[0][name][hole] = 1e30
    assert undefined
    made = judged(call, first, second)
    assert made.verdict == "pass"
    assert sum(error.undefined for error in made.errors) == undefined
    sizes = [values.size for values in first[0].values()]
    assert [error.compared + error.undefined for error in made.errors] == sizes


def test_no_value_is_wrong_only_where_the_oracle_has_one() -> None:
    cases = find(["bounds_quantised/output_qk_of_nothing"]).named
    call = cases[0].call
    values = right(call)
    values[0]["output_qk"] = np.zeros(0, np.float16)  # whatever its dtype
    assert judged(call, values).verdict == "pass"
    values[0]["output"] = np.zeros(0, np.float32)
    assert judged(call, values).reason == "It ran, but output has shape (0,), not (1, 3, 64)."


def test_a_defined_element_beside_undefined_ones_counts() -> None:
    values = right(RAGGED)
    values[0]["output"][0, 1, 0] = 3.0
    made = judged(RAGGED, values)
    assert made.verdict == "wrong"
    assert made.errors[0].index == (0, 1, 0)
    other = right(RAGGED)
    other[0]["output"][1, 3, 63] = np.nextafter(other[0]["output"][1, 3, 63], np.float32(9))
    assert judged(RAGGED, right(RAGGED), other).verdict == "wrong"


def expected_of(value: np.ndarray, unit: np.ndarray, dtype: np.dtype[Any]) -> Expected:
    return Expected("output", Reference(value, ~np.isnan(unit), dtype, unit=np.nan_to_num(unit)))


def _by_all_elements(got: np.ndarray, value: np.ndarray, unit: np.ndarray) -> dict[str, Any]:
    """The figures of `compare` by their definition, from all defined elements."""
    defined = np.flatnonzero(~np.isnan(unit.reshape(-1)))
    x, y = (array.reshape(-1)[defined].astype(np.float64) for array in (got, value))
    share = shares(x, y, unit.reshape(-1)[defined], "cpu")
    with np.errstate(all="ignore"):
        errors = np.where(x == y, 0.0, np.nan_to_num(np.abs(x - y), nan=math.inf, posinf=math.inf))
        ratios = np.where(x == y, 0.0, errors / np.abs(y))
    worst = int(np.argmax(share))
    return {
        "index": tuple(map(int, np.unravel_index(defined[worst], got.shape))),
        "share": share[worst],
        "got": x[worst],
        "want": y[worst],
        "absolute": errors.max(),
        "relative": ratios.max(),
        "budget": CONSTANTS["cpu"] * unit.reshape(-1)[defined[worst]],
        "needed": CONSTANTS["cpu"] * share[worst],
        "compared": len(defined),
        "undefined": got.size - len(defined),
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.int8])
@pytest.mark.parametrize("undefined", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("seed", range(6))
def test_the_figures_are_those_of_all_elements(dtype: Any, undefined: float, seed: int) -> None:
    draw = np.random.RandomState(seed)
    shape = (2, 3, 5, 4)
    near = draw.randint(-3, 4, shape).astype(dtype)
    value = np.where(draw.random_sample(shape) < 0.7, near.astype(np.float64), draw.randn(*shape))
    unit = np.where(value == near.astype(np.float64), 0.0, 0.125)
    gone = draw.random_sample(shape) < undefined
    gone[0, 0, 0, 1] = False  # at least one is defined
    unit, near, value = (
        np.where(gone, other, a) for other, a in ((np.nan, unit), (0, near), (0, value))
    )
    near = near.astype(dtype)
    want = expected_of(value, unit, np.dtype(dtype))
    assert np.array_equal(want.value, value)
    assert np.array_equal(want.unit, unit, equal_nan=True)
    for faults in (0, 1, 4):
        got = near.copy()
        for place in draw.randint(0, got.size, faults):
            wrong = 2 if dtype is np.int8 else draw.choice([np.nan, np.inf, -2.0, -0.0, 0.5])
            got.reshape(-1)[place] = wrong
        made = compare("present_key", 0, got, want, "cpu", 3)
        for name, figure in _by_all_elements(got, value, unit).items():
            assert getattr(made, name) == pytest.approx(figure, rel=1e-5, abs=0, nan_ok=True), name


INF, NAN = math.inf, math.nan
STEP = float(np.nextafter(np.float32(1), np.float32(2)))


@pytest.mark.parametrize(
    ("got", "value", "unit", "share", "index"),
    [
        ([NAN, 2.0], [0.0, 2.0], [NAN, 0.5], 0.0, 1),  # of the defined elements
        # An infinity is right only where the oracle has it.
        *(([sign * INF, 1.0], [sign * INF, 1.0], [INF, 0.5], 0.0, 0) for sign in (1, -1)),
        *(([other, 1.0], [INF, 1.0], [INF, 0.5], INF, 0) for other in (-INF, 3e38, 0.0, NAN)),
        *(([other, 1.0], [-INF, 1.0], [INF, 0.5], INF, 0) for other in (INF, -3e38, 0.0, NAN)),
        ([INF, INF], [INF, 1.0], [INF, 0.5], INF, 1),
        # NaN is equal to nothing, not even to NaN.
        ([NAN], [NAN], [0.0], INF, 0),
        ([NAN], [1.0], [1e30], INF, 0),
        # A copy has no budget.
        ([1.0], [1.0], [0.0], 0.0, 0),
        ([STEP], [1.0], [0.0], INF, 0),
    ],
)
def test_the_figures_of_single_elements(
    got: list[float], value: list[float], unit: list[float], share: float, index: int
) -> None:
    want = expected_of(np.array(value), np.array(unit), np.dtype(np.float32))
    made = compare("output", 0, np.array(got, np.float32), want, "cpu")
    assert (made.share, made.index) == (share, (index,))
    if share == 0.0:
        assert (made.got, made.absolute, made.relative) == (got[index], 0.0, 0.0)
    elif got[index] != STEP:
        assert (made.absolute, made.relative) == (INF, INF)


def test_an_output_without_defined_elements_has_no_figures() -> None:
    want = expected_of(np.zeros(2), np.full(2, np.nan), np.dtype(np.float32))
    assert compare("output", 0, np.zeros(2, np.float32), want, "cpu") is None


# Maps of the errors

BYTES = Call(past_sequence_length=3, cache_dtype="uint8", kv_cache_bit_width=4,
             k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR")  # fmt: skip
SLIDING = Call(
    past_sequence_length=3, max_sequence_length=8, sliding_window_cache=1, local_window_size=2
)
SCORES = Call(sequence_length=3, past_sequence_length=2, qk_output=2)
#: Calls, and the numbers that are wrong in their outputs; a wrong byte differs in its high half.
MAPPED: dict[str, tuple[Call, list[tuple[str, Any, float]]]] = {
    "nothing is wrong": (PROMPT, []),
    "a head and a position": (
        PROMPT,
        [("output", np.s_[0, :, 32:48], NAN), ("present_value", np.s_[0, :, 3, 7], INF)],
    ),
    "batch by batch, beside what is undefined": (
        RAGGED,
        [("output", np.s_[0, 1:, 0], NAN), ("output", (0, np.s_[2:]), NAN),
         ("output", (1, 3, 63), NAN)],
    ),
    "a sliding-window cache": (SLIDING, [("output", (0, 0, 0), NAN)]),
    "scores by their keys": (SCORES, [("output_qk", (0, 1, 2, 4), NAN)]),
    "two numbers a byte": (BYTES, [("present_key", (0, 1, 0, 5), 0xFF)]),
}  # fmt: skip


def drawn(name: str, where: ErrorMap | None) -> list[str]:
    if where is None:
        return [f"{name}: no map"]
    worst, sides = where.worst, f"{where.heads} heads by {where.positions} positions"
    return [
        f"{name}: {sides}, lengths {[*where.lengths]}, edges {where.edges}",
        *where.rows,
        f"worst: batch {worst.batch}, head {worst.head}, {worst.tokens} by {worst.elements}",
        *worst.rows,
    ]


def from_shares(output: str, share: np.ndarray, heads: int = 1, *more: Any) -> ErrorMap | None:
    return error_map(output, share, np.zeros(share.shape), np.ones(share.shape, bool), heads, *more)


def test_the_maps_of_errors() -> None:
    told = []
    for name, (call, wrong) in MAPPED.items():
        values = right(call)
        for output, place, number in wrong:
            values[0][output][place] = number
        told.append(f"=== {name}")
        for error in judged(call, values).errors:
            told += drawn(error.output, error.where)
    told.append("=== a digit is a power of ten")
    for share in (1.0, 1.001, 10.0, 11.0, 1e8, 1.1e8, INF):
        of_all = np.array([INF, 0.0, share]).reshape(1, 3, 1)
        told.append(f"{share:g}: {from_shares('output', of_all).rows}")
    told.append("=== long sides are grouped in blocks with their worst value")
    share = np.zeros((2, 20, 130, 4))
    share[1, 19, 129, 3], share[0, 1, 3, 0] = 5.0, 50.0
    told += drawn("present_key", from_shares("present_key", share, 20))
    told.append("=== outputs of another rank")
    for output, shape in (("output", (2, 2)), ("output", (1, 2, 5)), ("present_key", (1, 2, 4))):
        told += drawn(output, from_shares(output, np.full(shape, 9.0), 2))
    for fields in (
        *({}, {"local_window_size": 2}, {"local_window_size": 4}, {"causal": 0}),
        *({"total_sequence_lengths": (4,)}, {"query_seqlens": (2,)}, {"key_value": "zero_length"}),
    ):
        call = checked_call({"sequence_length": 3, "past_sequence_length": 2, **fields})
        limits = SequenceLimits(call, steps_of(call)[0])
        told.append(f"=== {fields}")
        told += [f"edges of {output}: {limits.edges(output)}" for output in SCORES_AND_ALL]
        share = np.zeros((1, 1, 3, 5))
        share[0, 0, 0, 1], share[0, 0, 0, 4] = 5.0, 6.0
        told += drawn("output_qk", from_shares("output_qk", share, 1, limits))
    check_golden("maps.txt", "\n".join(told) + "\n")


# Loops


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("output", ["output", "present_key", "present_value"])
def test_a_loop_names_the_call(step: int, output: str) -> None:
    values = right(LOOP)
    assert judged(LOOP, values).verdict == "pass"
    values[step][output].flat[3] += 1
    made = judged(LOOP, values)
    assert made.verdict == "wrong"
    assert f"{output} in step {step} is " in made.reason
    assert [error.step for error in made.errors if not error.share <= 1] == [step]


def test_a_loop_names_the_call_whose_runs_or_shapes_differ() -> None:
    other = right(LOOP)
    other[1]["output"].flat[0] += np.float32(1e-7)
    reason = judged(LOOP, right(LOOP), other).reason
    assert "differ in output in step 1" in reason
    other = right(LOOP)
    other[2]["present_key"] = other[2]["present_key"][:, :, :-1]
    assert "present_key in step 2 has shape" in judged(LOOP, other).reason


# Rejections


@pytest.mark.parametrize("stage", ["load", "run"])
@pytest.mark.parametrize(
    ("contract", "message", "verdict", "vague"),
    [
        (COMPUTES, "not implemented", "unsupported", False),
        (COMPUTES, " \n", "unsupported", True),
        (REQUESTED, "not implemented", "unsupported", False),
        (REJECTS, "Input 3 needs PRESENT_KEY", "pass", False),
        (REJECTS, "the PAST_KEY is bad", "pass", False),
        (REJECTS, "Invalid argument", "pass", True),
        (REJECTS, "", "pass", True),
        (EITHER, "present is missing", "pass", False),
        (EITHER, "Invalid argument", "pass", True),
        (Contract(demands="rejects", source="s"), "whatever", "pass", False),
        (Contract(demands="rejects", source="s"), "  ", "pass", True),
    ],
)
def test_rejection(stage: str, contract: Contract, message: str, verdict: str, vague: bool) -> None:
    made = verdict_on(rejected(message, stage), NO_PLACE, contract)
    assert (made.verdict, made.vague) == (verdict, vague)
    assert f"at {stage}" in made.reason
    assert ("without a message" in made.reason) == (not message.strip())
    if vague and message.strip():
        assert ", ".join(contract.mentions) in made.reason


def test_a_rejection_that_came_after_a_change_of_an_input_has_a_hazard() -> None:
    late = Rejected(stage="run", step=0, code="FAIL", message="no", changed=("past_key",))
    made = verdict_on(late, NO_PLACE, EITHER)
    assert made.verdict == "pass"
    assert "past_key" in made.hazard
    assert verdict_on(rejected("no"), NO_PLACE, EITHER).hazard is None


def test_a_case_may_allow_both_outcomes() -> None:
    good, bad = right(NO_PLACE), off(NO_PLACE)
    assert verdict_on(ran(good, good), NO_PLACE, EITHER).verdict == "pass"
    assert verdict_on(ran(bad, bad), NO_PLACE, EITHER).verdict == "wrong"


def test_wrong_results_are_wrong_even_if_only_requested() -> None:
    wrong = ran(off(PROMPT), off(PROMPT))
    assert verdict_on(wrong, PROMPT, REQUESTED).verdict == "wrong"


def test_accepted_says_whether_the_values_are_correct() -> None:
    good, bad = right(NO_PLACE), off(NO_PLACE)
    harmless = verdict_on(ran(good, good), NO_PLACE, REJECTS)
    assert (harmless.verdict, harmless.values_right) == ("accepted", True)
    assert "values right" in harmless.reason
    silent = verdict_on(ran(bad, bad), NO_PLACE, REJECTS)
    assert (silent.verdict, silent.values_right) == ("accepted", False)
    assert "values wrong: output is " in silent.reason
    assert [fault.kind for fault in silent.faults] == ["beyond_budget"]
    assert silent.errors
    unstable = verdict_on(ran(good, bad), NO_PLACE, REJECTS)
    assert (unstable.verdict, unstable.values_right) == ("accepted", False)


# Without values from the oracle


@pytest.mark.parametrize(
    ("contract", "verdict"), [(REJECTS, "accepted"), (COMPUTES, None), (EITHER, "pass")]
)
def test_a_bundle_without_values(contract: Contract, verdict: str | None) -> None:
    bundle = without_values("heads that do not divide")
    outcome = ran(right(PROMPT), right(PROMPT))
    if verdict is None:
        with pytest.raises(Unjudgeable, match="heads that do not divide"):
            verdict_on(outcome, contract=contract, bundle=bundle)
        return
    made = verdict_on(outcome, contract=contract, bundle=bundle)
    assert (made.verdict, made.values_right, made.errors) == (verdict, None, ())
    assert "heads that do not divide" in (made.hazard or made.reason)


# Invalid outputs of runners


def without(values: Values, name: str) -> Values:
    return [{key: array for key, array in step.items() if key != name} for step in values]


@pytest.mark.parametrize("run", [0, 1])
def test_missing_and_extra_outputs_are_the_runners_error(run: int) -> None:
    good = right(PROMPT)
    for odd in (without(good, "present_key"), [{**good[0], "extra": good[0]["output"]}]):
        runs = [good, good]
        runs[run] = odd
        with pytest.raises(
            Unjudgeable, match=r"The runner returned .*, the model has output, present_key"
        ):
            verdict_on(ran(*runs))


def invalid(content: bytes, run: int = 0) -> str:
    """Why the file of output in one of two runs is not a valid tensor."""
    outcome = ran(right(PROMPT), right(PROMPT))
    outcome.runs[run][0]["output"] = content
    with pytest.raises(Unjudgeable) as caught:
        verdict_on(outcome)
    said, _, why = str(caught.value).partition(": ")
    assert said == "The file of output is not a valid tensor"
    assert why.endswith(".")
    assert "\n" not in why
    return why


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 64, file(np.ones((1, 5, 64), np.float32), "output")[:99]],
    ids=["empty", "no protobuf", "cut short"],
)
def test_a_file_that_is_not_a_tensor_is_the_runners_error(content: bytes, run: int) -> None:
    assert invalid(content, run)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"raw_data": b"abcd"}, ""),  # too few values
        ({"dims": [1], "raw_data": b"abc"}, ""),  # half a value
        ({"dims": [2**40, 2**40], "raw_data": None}, ""),
        ({"dims": [1], "data_type": 99, "raw_data": b"a"}, ""),
        ({"dims": [-1, 5, 64]}, "it has a dimension of -1"),
        ({"dims": [1] * 65}, ""),
        ({"name": "present_key"}, "it has the name 'present_key'"),
        ({"name": ""}, "it has the name ''"),
        ({"raw_data": None, "float_data": [1.0] * 320}, "it has the field float_data"),
        ({"float_data": [1.0]}, "it has the field float_data"),
        ({"raw_data": None, "int32_data": [1]}, "it has the field int32_data"),
        ({"raw_data": None, "int64_data": [1]}, "it has the field int64_data"),
        ({"raw_data": None, "double_data": [1]}, "it has the field double_data"),
        ({"raw_data": None, "string_data": [b"1"]}, "it has the field string_data"),
        ({"segment": TensorProto.Segment(begin=0, end=1)}, "it has the field segment"),
        ({"data_location": TensorProto.EXTERNAL}, "it has the field data_location"),
        ({"doc_string": "hello"}, "it has the field doc_string"),
        ({"dims": [2**32, 2**32]}, ""),  # 0 elements if the product is kept in 64 bits
    ],
)
def test_a_forbidden_tensor_is_the_runners_error(fields: dict[str, object], words: str) -> None:
    """What the protocol forbids in a tensor is the runner's error."""
    values = right(PROMPT)[0]["output"]
    allowed = {"dims": values.shape, "data_type": 1, "name": "output", "raw_data": values.tobytes()}
    assert invalid(TensorProto(**{**allowed, **fields}).SerializeToString()).startswith(words)


def test_values_in_another_file_are_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even correct ones: an untrusted tensor may point to any file of this machine."""
    values = right(PROMPT)[0]["output"]
    (tmp_path / "weights").write_bytes(values.tobytes())
    monkeypatch.chdir(tmp_path)
    tensor = TensorProto(dims=values.shape, data_type=1, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights")
    said = "it has the field data_location, external_data"
    assert invalid(tensor.SerializeToString()).startswith(said)
