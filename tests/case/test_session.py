"""Calls before another one on the same session: their inputs, contract and simplifications."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import cases_of
from rich.console import Console

from conformance.bundle.prepare import prepare, tensor_file
from conformance.case.case import Case
from conformance.case.steps import steps_of
from conformance.cli.drawing import draw
from conformance.diagnosis.shared import effort
from conformance.diagnosis.simpler import simplifications
from conformance.harness.outcomes import Ran
from conformance.harness.protocol import DescribedAnswer
from conformance.judge.verdict import judge
from conformance.operator.call import Call, EarlierCall
from conformance.results.descriptions import case_record
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

FIELDS: dict[str, Any] = {
    "past_sequence_length": 3,
    "batch_size": 2,
    "max_sequence_length": 9,
    "rotary": "half_split",
    "shared_buffer": True,
}
EARLIER = (
    EarlierCall(batch_size=3, past_sequence_length=0, sequence_length=5),
    EarlierCall(max_sequence_length=16, past_sequence_length=12),
)


@pytest.fixture
def call() -> Call:
    return Call(**FIELDS, earlier_calls=EARLIER)


def test_each_call_has_lengths_and_inputs_of_its_own(call: Call) -> None:
    shapes = [[step.input(name).shape for name in ("query", "past_key")] for step in steps_of(call)]
    assert shapes == [
        [(3, 5, 64), (3, 2, 9, 16)],
        [(2, 1, 64), (2, 2, 16, 16)],
        [(2, 1, 64), (2, 2, 9, 16)],
    ]
    assert [step.total_lengths for step in steps_of(call)] == [(5, 5, 5), (13, 13), (4, 4)]
    assert not any(step.carried for step in steps_of(call))
    rows = {step.input("cos_cache").shape for step in steps_of(call)}
    assert rows == {(16, 8)}  # so that all calls could have it as a constant


def test_the_last_call_computes_what_it_computes_alone(call: Call) -> None:
    alone = replace(call, earlier_calls=(), rotary_cache_length=16)
    session, single = prepare(call), prepare(alone)
    for name, array in single.script.steps[-1].inputs.items():
        np.testing.assert_array_equal(session.script.steps[-1].inputs[name], array)
    for name, expected in single.expected[-1].items():
        np.testing.assert_array_equal(session.expected[-1][name].value, expected.value)
    drawn = [step.inputs["query"] for step in session.script.steps]
    assert not np.array_equal(drawn[1], drawn[2])


def test_a_loop_goes_on_with_its_own_present() -> None:
    steps = steps_of(Call(loop=(5, 1), earlier_calls=(EarlierCall(sequence_length=7),)))
    assert [step.total_sequence_length for step in steps] == [7, 5, 6]
    assert [step.carried for step in steps] == [False, False, True]
    assert [step.input("past_key").shape for step in steps][1] == (1, 2, 0, 16)


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Case]:
    def read(**fields: Any) -> Case:
        written = ", ".join(f"{name}: {value}" for name, value in fields.items())
        (one,) = cases_of(tmp_path, f"- {{name: a, {written}}}\n")
        return replace(one, written_contract=None)  # by features

    return read


def test_a_session_must_do_what_each_of_its_calls_must(case: Callable[..., Case]) -> None:
    sliding = {"past_sequence_length": 1, "local_window_size": 1, "sliding_window_cache": 1}
    single, cpu = case(**sliding), "CPUExecutionProvider"
    assert single.contract.on(cpu).demands == "computes"
    after = case(**sliding, earlier_calls="[{batch_size: 2, sequence_length: 2}]")
    assert after.contract.on(cpu).demands == "either"
    assert "batch_size" in after.contract.on(cpu).mentions
    batch = case(**sliding, earlier_calls="[{batch_size: 2}]")
    assert batch.contract.on(cpu) == single.contract.on(cpu)


def test_what_one_call_allows_a_session_allows(case: Callable[..., Case]) -> None:
    """Another reading of a ragged prompt is right beside a chunk that may be refused, too."""
    prompt = "{past_sequence_length: 0, sequence_length: 4, total_sequence_lengths: [4, 2]}"
    fields = {"past_sequence_length": 3, "batch_size": 2, "causal": 0}
    after = case(**fields, sequence_length=2, earlier_calls=f"[{prompt}]").contract
    assert (after.demands, after.readings) == ("either", ("prompt_without_lengths",))
    assert {"batch_size", "seqlens_k"} <= {*after.mentions}


def test_a_chunk_of_a_batch_may_be_refused_in_a_loop_too(case: Callable[..., Case]) -> None:
    assert case(loop="[2, 2]").contract.demands == "computes"
    assert case(loop="[2, 2]", batch_size=2).contract.demands == "either"
    assert case(loop="[2, 1]", batch_size=2).contract.demands == "computes"


def test_a_session_becomes_smaller(case: Callable[..., Case]) -> None:
    one = case(past_sequence_length=3, earlier_calls="[{batch_size: 2}, {sequence_length: 4}]")
    changes = simplifications(one)["earlier_calls"]
    assert changes[0] == {"earlier_calls": ()}
    lists = [each["earlier_calls"] for each in changes]
    assert (EarlierCall(batch_size=2),) in lists
    assert (EarlierCall(batch_size=2), EarlierCall()) in lists
    alone = next(each for each in changes if each.get("batch_size") == 2)
    assert alone["earlier_calls"] == ()
    one = case(loop="[5, 1]", earlier_calls="[{sequence_length: 20}]")
    assert [each.get("sequence_length") for each in simplifications(one)["loop"]][:2] == [1, 5]
    assert effort(one) > effort(case(past_sequence_length=3))


def test_a_record_lists_the_past_of_each_call(case: Callable[..., Case]) -> None:
    """Also one that is like the first call's: otherwise it would be the present before it."""
    one = case(cache="concatenated", earlier_calls="[{}]")
    (later,) = case_record(one).call.later
    assert {"past_key", "past_value"} <= {each.name for each in later}


# Calls that must be refused

SHORT = (
    "{refused: true, inputs: {key: {shape: [batch_size, kv_sequence_length+1, kv_hidden_size]}}}"
)
NARROW = "{refused: true, inputs: {query: {shape: [batch_size, sequence_length, 8]}}}"


def test_the_model_takes_the_shapes_of_refused_calls(case: Callable[..., Case]) -> None:
    """Dims stay as they are where all calls agree."""
    one = case(past_sequence_length=3, earlier_calls=f"[{SHORT}, {{}}, {NARROW}]")
    assert [step.refused for step in one.steps] == [True, False, True, False]
    shapes = [[step.input(name).shape for name in ("query", "key")] for step in one.steps]
    assert shapes == [
        [(1, 1, 64), (1, 2, 32)],
        [(1, 1, 64), (1, 1, 32)],
        [(1, 1, 8), (1, 1, 32)],
        [(1, 1, 64), (1, 1, 32)],
    ]
    for step in one.steps:
        assert step.input("query").dims == ("query_0", "query_1", "query_2")
        assert step.input("key").dims == ("key_0", "key_1", None)
        assert step.input("value").dims == case().steps[0].input("value").dims


def test_only_the_calls_that_are_not_refused_are_judged(case: Callable[..., Case]) -> None:
    one = case(past_sequence_length=3, earlier_calls=f"[{{}}, {SHORT}]")
    prepared = prepare(one.call)
    assert [bool(step) for step in prepared.expected] == [True, False, True]
    assert [step.may_be_rejected for step in prepared.steps] == [False, True, False]
    assert one.features["earlier_calls"] == "refused"
    assert one.contract == case(past_sequence_length=3).contract
    assert case_record(one).call.refused == (1,)
    shown = io.StringIO()
    draw(Console(file=shown), one, "cpu")
    assert "step 1, which must be refused\n" in shown.getvalue()
    packed = case(past_sequence_length=3, key_value="packed", earlier_calls=f"[{NARROW}]")
    assert prepare(packed.call).script.steps[0].inputs["query"].shape == (1, 1, 8)


def test_the_reason_says_that_an_illegal_call_ran(case: Callable[..., Case]) -> None:
    one = case(past_sequence_length=3, earlier_calls=f"[{SHORT}]")
    prepared = prepare(one.call)
    answers = [
        {name: tensor_file(want.rounded, name) for name, want in step.items()}
        for step in prepared.expected
    ]
    said = []
    for illegal in ({}, {"output": b"not read"}):
        ran = Ran(runs=((illegal, answers[1]),) * 2, placement=None, load_ms=1, run_ms=1)
        judged = judge(one, prepared, ran, execution_provider=None, target_class="cpu")
        assert judged.verdict == "pass"
        said.append("1 illegal call before it ran" in judged.reason)
    assert said == [False, True]


def test_a_target_that_cannot_go_on_after_an_error_skips_the_session(
    case: Callable[..., Case],
) -> None:
    said = []
    for features in (("keep",), ("may_be_rejected",)):
        answer = DescribedAnswer(
            **{"id": 1, "outcome": "described", "runtime": "mine", "version": "1"},
            **{"execution_provider": None, "device": "CPU", "features": features},
            dtypes=("float32", "int32"),
        )
        target = DescribedTarget(target_for("exec:./mine"), answer, None, None)
        said.append(target.cannot_take(case(past_sequence_length=3, earlier_calls=f"[{SHORT}]")))
    assert said == ["mine@1 cannot go on after a refused call", None]


def test_a_refused_call_becomes_no_call_of_its_own(case: Callable[..., Case]) -> None:
    one = case(past_sequence_length=3, earlier_calls=f"[{{batch_size: 2}}, {SHORT}]")
    changes = simplifications(one)["earlier_calls"]
    alone = [each for each in changes if not each["earlier_calls"]]
    assert [each.get("batch_size") for each in alone] == [None, 2]
    refused = one.call.earlier_calls[1]
    assert {"earlier_calls": (refused,)} in changes
    assert all(each.inputs == refused.inputs for c in changes for each in c["earlier_calls"][1:])
