"""Calls that are tried beside a run tell expressions apart, and are neither counted nor named."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from shipped import shipped_cases

from conformance.case.case import Case
from conformance.case.selection import compile_expression
from conformance.diagnosis.explanation import Explanation, explanations, with_experiments
from conformance.diagnosis.shared import BESIDE, shared, simplicity
from conformance.diagnosis.smallest import neighbours

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


@pytest.mark.parametrize(
    ("expression", "theme"),
    [
        ("softcap and total_sequence_length>1", "softcap"),
        ("packed_qkv and decode", "packed_qkv"),
        ("attention_bias and sequence_length>1", "attention_bias"),
    ],
)
def test_further_calls_say_what_of_a_feature(expression: str, theme: str) -> None:
    """The calls of the theme alone cannot tell."""
    meant = compile_expression(expression)
    themes = (theme, "smoke")
    cases = [c for c in shipped_cases() if c.theme in themes and not c.is_graph]
    computed = [case for case in cases if case.contract.demands == "computes"]
    tried: list[Case] = []

    def kind(case: Case) -> str:
        tried.append(case)
        return "wrong" if meant((), case) else ""

    def misplaced(one: Explanation) -> float:
        told = [compile_expression(pattern.expression) for pattern in one.shared.patterns]
        others = [case for case in shipped_cases() if case.theme == "pairs"]
        wrong = [any(test((), case) for test in told) != meant((), case) for case in others]
        return sum(wrong) / sum(meant((), case) for case in others)

    one = explanations((case, "it", "wrong" if meant((), case) else "") for case in computed)[0]
    after = with_experiments(one, kind, None)
    assert misplaced(after) <= 0.02 < misplaced(one)
    assert len(tried) <= 30
    assert len({case.id for case in tried}) == len(tried)


def test_no_call_is_tried_when_the_time_is_up() -> None:
    failing = [case for case in shipped_cases() if case.theme == "softcap"][:4]
    passing = [case for case in shipped_cases() if case.theme == "smoke"]
    results = [(case, "it", "wrong" * (case in failing)) for case in (*failing, *passing)]
    (one,) = explanations(results)

    def kind(case: Case) -> str:
        raise AssertionError(f"{case.id} was tried")

    assert with_experiments(one, kind, None, until=time.monotonic()) == one


def test_calls_beside_a_run_are_neither_counted_nor_named() -> None:
    cases = [case for case in shipped_cases() if not case.is_graph][::4]
    is_ragged = compile_expression("ragged")
    failing = [case for case in cases if is_ragged((), case)]
    passing = [case for case in cases if case not in failing]
    beside = [replace(case, id=f"{BESIDE}/{n}", theme=BESIDE) for n, case in enumerate(failing)]
    (sentence,) = shared([*failing, *beside[1:]], [*passing, beside[0]]).sentences
    number = len(failing)
    assert sentence.startswith(f"Fails with `ragged` ({number} of {number}; 0 of {len(passing):,}")
    only = shared(beside, passing)
    assert (only.failures, only.sentences) == (0, ())
    assert explanations((case, "it", "wrong") for case in beside) == []


def test_neighbours_differ_in_one_part_and_are_possible() -> None:
    cases = [case for case in shipped_cases() if case.theme in ("sink", "softcap", "smoke")]
    base = min((case for case in cases if case.theme == "softcap"), key=simplicity)
    found = [*neighbours(base, cases, None)]
    assert {"head_sink", "smooth_softmax"} <= {case.features["sink"] for case in found}
    assert "none" in {case.features["softcap"] for case in found}
    assert all(case.theme == BESIDE for case in found)
    assert all(case.contract.demands == "computes" for case in found)
    changed = [
        [name for name, value in case.features.items() if value != base.features[name]]
        for case in found
    ]
    assert max(map(len, changed)) <= 3
