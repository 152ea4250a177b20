"""Symptoms and causes: which results are alike, and how much of them is printed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from synthetic_runs import beyond, error, expected, result
from tables import tables

from conformance.results.causes import causes, symptom
from conformance.results.records import (
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)

TABLES = tables(__file__)

TARGET = "cpu@1.31.1"


@pytest.mark.parametrize(("message", "shown"), TABLES["crashes"])
def test_the_symptom_of_a_crash_is_the_signal_and_the_last_words(message: str, shown: str) -> None:
    assert symptom(result(verdict="crash", message=message, reason=message)) == shown


DTYPE = WrongDtype(output="output", got="float32", want="float16")
SHAPE = WrongShape(output="x", got=(1,), want=(2,))
BROKEN = RelationBroken(
    output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.1, share=10.0
)
BUDGET = "is beyond its error budget"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"faults": (beyond(),)}, f"output {BUDGET}"),
        ({"faults": (beyond(got=math.nan),)}, "output is not finite"),
        ({"faults": (beyond(want=math.inf),)}, f"output {BUDGET}"),
        ({"faults": (beyond("b"), beyond("a"))}, f"a {BUDGET}; b {BUDGET}"),
        ({"faults": (RunsDiffer(output="output"),)}, "two runs differ in output"),
        ({"faults": (DTYPE, SHAPE)}, "output has another dtype; x has another shape"),
        ({"faults": (BROKEN,)}, "the variant packed_qkv gives another output"),
        ({"faults": (beyond(),), "of_variant": True}, f"in the variant, output {BUDGET}"),
        ({"errors": (error(share=0.5), error(output="x"))}, f"x {BUDGET}"),
    ],
)
def test_wrong_values_have_kinds_of_faults_by_output(fields: dict[str, Any], shown: str) -> None:
    """The symptom of wrong values is the kinds of faults by output."""
    assert symptom(result(verdict="wrong", **({"errors": ()} | fields))) == shown


@pytest.mark.parametrize(("message", "shown"), TABLES["rejections"])
def test_a_rejections_symptom_is_its_message_without_numbers(message: str, shown: str) -> None:
    assert symptom(result(verdict="unsupported", message=message)) == shown


def test_the_symptom_of_other_results() -> None:
    cpu = "CPUExecutionProvider"
    assert symptom(result(verdict="timeout")) == "no answer in time"
    assert symptom(result(verdict="accepted", values_right=True)) == ""
    assert symptom(result(verdict="fallback", placement=cpu)) == f"it ran on {cpu}"
    red = result(unexpected=True, expectation=expected("crash"))
    assert symptom(red) == "the expectation is crash (expectations/cpu.yaml:12)"


# Causes


def unexpected(number: int, verdict: str = "wrong", **fields: Any) -> ResultRecord:
    alone: dict[str, Any] = {"errors": ()} if "faults" in fields else {}
    fields = {"unexpected": True, "reason": f"Reason {number}.", **alone, **fields}
    return result(f"t/case[n={number}]", fields.pop("target", TARGET), verdict, **fields)


def sentences(*results: ResultRecord) -> list[tuple[int, str]]:
    return [(len(c.members), c.sentence) for c in causes(results, lambda one: one)]


def test_wrong_values_are_alike_whatever_the_numbers_and_the_worst_come_first() -> None:
    presents = unexpected(2, faults=(beyond("present_key", got=5.0),))
    many = unexpected(0, faults=(beyond(),)), unexpected(1, faults=(beyond(got=9e9),))
    crash = unexpected(9, "crash", message="It died.")
    qk = unexpected(3, faults=(beyond("output_qk"),))
    assert sentences(presents, qk, *many, crash) == [
        (1, f"crash on {TARGET}: It died"),
        (2, f"wrong in output on {TARGET}: output {BUDGET}"),
        (1, f"wrong only in output_qk on {TARGET}: output_qk {BUDGET}"),
        (1, f"wrong only in presents on {TARGET}: present_key {BUDGET}"),
    ]


def test_a_known_defect_with_other_wrong_outputs_is_another_cause() -> None:
    names = (["output"], ["present_key"], ["present_value", "present_key"], ["output", "output_qk"])
    known: dict[str, Any] = {"unexpected": False, "expectation": expected()}
    results = [
        unexpected(number, errors=tuple(error(output=name) for name in wrong), **known)
        for number, wrong in enumerate(names)
    ]
    why = f"on {TARGET}: Reads past the end of the cache."
    assert sentences(*results) == [
        (1, f"wrong in output {why}"),
        (1, f"wrong in output and output_qk {why}"),
        (2, f"wrong only in presents {why}"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"target": "cpu@1.30.0"},
        {"verdict": "crash"},
        {"faults": (beyond("present_key"),)},
        {"expectation": expected()},
        {"verdict": "unsupported", "message": "kernel for float16"},
    ],
    ids=lambda other: "-".join(other),
)
def test_what_differs_is_not_alike(other: dict[str, Any]) -> None:
    pair = unexpected(0, faults=(beyond(),)), unexpected(1, **{"faults": (beyond(),), **other})
    assert [number for number, _ in sentences(*pair)] == [1, 1]


def test_messages_are_told_apart_after_a_long_common_beginning() -> None:
    """As those of ONNX Runtime begin; the end says what is wrong, and is quoted."""
    common = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while " * 2
    texts = [f"{common}Status Message: {what} is wrong." for what in ("key", "value", "key")]
    found = sentences(*(unexpected(n, "unsupported", message=m) for n, m in enumerate(texts)))
    assert [number for number, _ in found] == [2, 1]
    quoted = found[0][1].removeprefix(f"refused at run on {TARGET}: … ")
    assert f" {quoted}" in f"{common}Status Message: key is wrong".replace("2", "N")
    assert quoted.endswith(" Status Message: key is wrong")


def test_the_stage_is_named_if_all_have_it_and_makes_no_other_cause() -> None:
    stages = ("run", "run", "load")
    three = [unexpected(0, "unsupported", stage=each, message="no kernel") for each in stages]
    assert sentences(*three[:2]) == [(2, f"refused at run on {TARGET}: no kernel")]
    assert sentences(*three) == [(3, f"refused on {TARGET}: no kernel")]
