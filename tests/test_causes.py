"""Unexpected results by cause: what counts as alike, and how much of it is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import cases_of
from synthetic_runs import error, expected, result

from conformance.case.case import Case
from conformance.cli.listing import by_cause
from conformance.results.causes import causes
from conformance.results.records import (
    BeyondBudget,
    ResultRecord,
)
from conformance.results.verdicts import Verdict

TARGET = "cpu@1.31.1"


def unexpected(number: int, verdict: Verdict = "wrong", **fields: Any) -> ResultRecord:
    alone: dict[str, Any] = {"errors": ()} if "faults" in fields else {}
    fields = {"unexpected": True, "reason": f"Reason {number}.", **alone, **fields}
    return result(f"t/case[n={number}]", fields.pop("target", TARGET), verdict, **fields)


def beyond(got: float, output: str = "output") -> tuple[BeyondBudget, ...]:
    return (BeyondBudget(output=output, index=(0, 1), got=got, want=0.0, budget=1e-7, share=got),)


def sentences(*results: ResultRecord) -> list[tuple[int, str]]:
    return [(len(c.members), c.sentence) for c in causes(results, lambda one: one)]


def test_wrong_values_are_alike_whatever_the_numbers() -> None:
    other = unexpected(2, faults=beyond(5.0, "present_key"))
    assert sentences(
        other, unexpected(0, faults=beyond(2.0)), unexpected(1, faults=beyond(9e9))
    ) == [
        (2, f"wrong in output on {TARGET}: output is beyond its error budget"),
        (1, f"wrong only in presents on {TARGET}: present_key is beyond its error budget"),
    ]


def test_a_known_defect_with_other_wrong_outputs_is_another_cause() -> None:
    names = (["output"], ["present_key"], ["present_value", "present_key"], ["output", "output_qk"])
    known = {"unexpected": False, "expectation": expected()}
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
        {"faults": beyond(1.0, "present_key")},
        {"expectation": expected()},
        {"message": "kernel for float16"},
    ],
    ids=lambda other: "-".join(other),
)
def test_what_differs_is_not_alike(other: dict[str, Any]) -> None:
    pair = unexpected(0, faults=beyond(1.0)), unexpected(1, **{"faults": beyond(1.0), **other})
    assert [number for number, _ in sentences(*pair)] == [1, 1]


def test_messages_are_told_apart_after_a_long_common_beginning() -> None:
    """As those of ONNX Runtime begin; the end says what is wrong, and is quoted."""
    common = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while " * 2
    texts = [f"{common}Status Message: {what} is wrong." for what in ("key", "value", "key")]
    found = sentences(*(unexpected(n, "unsupported", message=m) for n, m in enumerate(texts)))
    assert [number for number, _ in found] == [2, 1]
    assert found[0][1].endswith(" Status Message: key is wrong")
    quoted = found[0][1].removeprefix(f"unsupported at run on {TARGET}: … ")
    assert f" {quoted}" in f"{common}Status Message: key is wrong".replace("2", "N")


@pytest.mark.parametrize("number", [1, 2])
def test_the_stage_is_named_if_all_have_it(number: int) -> None:
    """It makes no other cause, as on the page, which groups by verdict and symptom."""
    pair = [
        unexpected(n, "unsupported", stage=stage, message="no kernel")
        for n, stage in enumerate(("run", "load")[:number])
    ]
    told = "unsupported at run" if number == 1 else "unsupported"
    assert sentences(*pair) == [(number, f"{told} on {TARGET}: no kernel")]


def test_the_worst_comes_first_and_then_the_most_frequent() -> None:
    crash = unexpected(9, "crash", message="It died.")
    few, many = unexpected(0, faults=beyond(1.0, "output_qk")), unexpected(1, faults=beyond(1.0))
    found = [text.split(":")[0] for _, text in sentences(few, many, many, crash)]
    wrong = [f"wrong in {each} on {TARGET}" for each in ("output", "output_qk")]
    assert found == [f"crash on {TARGET}", wrong[0], wrong[1].replace(" in", " only in")]
    assert [number for number, _ in sentences(few, many, many, crash)] == [1, 2, 1]


# What is printed


@pytest.fixture(scope="module")
def a_case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    (case,) = cases_of(tmp_path_factory.mktemp("one"), "- name: a")
    return case


def lines(case: Case, *results: ResultRecord) -> list[str]:
    return [line for text in by_cause([(case, r) for r in results]) for line in text.split("\n")]


def test_many_causes_fill_about_a_screen(a_case: Case) -> None:
    """First some in full, then some in a line, and then the number."""
    words = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    printed = lines(
        a_case,
        *(unexpected(n, "unsupported", message=f"no kernel {words[n % 100]}") for n in range(1004)),
    )
    assert len(printed) < 80
    full = sum(line.endswith(". One of them:") for line in printed)
    short = [line for line in printed if line.startswith("  10 unsupported at run on ")]
    assert full >= 3
    assert len(short) == 8
    left = 100 - full - len(short)
    # 4 of the 100 have 11 results, and come first
    assert f"  and {10 * left} results of {left} other causes" in printed
    assert printed[-1].startswith("1004 unexpected results of 100 causes; ")


def test_hostile_messages_stay_on_one_line(a_case: Case, tmp_path: Path) -> None:
    evil = "\x1b[31mred\x1b]0;title\x07\r\n" + "x" * 100_000
    printed = "\n".join(
        lines(a_case, *(unexpected(n, "unsupported", message=evil) for n in range(9)))
    )
    head = printed.split("\n")[1]
    assert head.startswith(f"9 unsupported at run on {TARGET}: … xxx")
    assert len(head) < 250
    assert "\x1b" not in printed
