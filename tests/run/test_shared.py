"""What failures share: expressions are found again that calls were chosen by."""

from __future__ import annotations

import random

import pytest
from shipped import shipped_cases
from tables import tables

from conformance.case.case import Case
from conformance.case.selection import compile_expression
from conformance.diagnosis.shared import Shared, shared

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True


def cases_of_nodes() -> list[Case]:
    """A quarter of the shipped cases that must be computed."""
    cases = [case for case in shipped_cases() if not case.is_graph]
    return [case for case in cases if case.contract.demands == "computes"][::4]


def shared_by(*expressions: str, but: int = 0) -> tuple[Shared, list[Case]]:
    """What calls share that fail by any of these expressions; ``but`` so many of them pass."""
    tests = [compile_expression(text) for text in expressions]
    cases = cases_of_nodes()
    failing = [case for case in cases if any(test((), case) for test in tests)]
    random.Random(0).shuffle(failing)
    failing = failing[but:]
    assert len(failing) > 3
    return shared(failing, [case for case in cases if case not in failing]), failing


def selected(expression: str) -> set[str]:
    test = compile_expression(expression)
    return {case.id for case in cases_of_nodes() if test((), case)}


@pytest.mark.parametrize("expression", TABLES["expressions"])
def test_an_expression_is_found_again(expression: str) -> None:
    found, failing = shared_by(expression)
    (pattern,) = found.patterns
    assert selected(pattern.expression) == selected(expression)
    assert (pattern.failures, pattern.calls, found.left) == (len(failing), len(failing), ())
    all_of = f"{len(failing):,} of {len(failing):,}"
    others = f"0 of {len(cases_of_nodes()) - len(failing):,} others"
    exactly = f"Fails exactly with `{pattern.expression}` ({all_of}; {others})."
    assert found.sentences == (exactly,)


def test_passing_calls_are_counted_and_a_few_are_named() -> None:
    found, failing = shared_by("ragged", but=1)
    (pattern,) = found.patterns
    assert (pattern.failures, pattern.calls) == (len(failing), len(failing) + 1)
    (sentence,) = found.sentences
    assert sentence.startswith(f"Fails with `ragged` ({len(failing)} of {len(failing) + 1}, not")
    assert pattern.passing[0].id in sentence
    many, failing = shared_by("ragged", but=20)
    assert many.patterns[0].expression == "ragged"
    assert many.patterns[0].calls == len(failing) + 20
    assert ", not" not in many.sentences[0]


def test_causes_without_a_call_in_common_are_told_apart() -> None:
    found, failing = shared_by("softcap and decode", "packed_qkv and prefill")
    assert len(found.patterns) == 2
    assert sum(pattern.failures for pattern in found.patterns) == len(failing)
    assert not found.left


def test_failures_by_chance_share_nothing() -> None:
    cases = cases_of_nodes()
    random.Random(1).shuffle(cases)
    found = shared(cases[:40], cases[40:])
    assert (found.patterns, len(found.left), found.sentences) == ((), 40, ())


def test_calls_that_no_word_tells_apart_share_nothing() -> None:
    call = shipped_cases()[0]
    assert shared([call] * 3, [call]).patterns == ()


def test_a_failure_of_another_kind_is_named() -> None:
    cases = cases_of_nodes()
    ragged = selected("ragged")
    odd = next(case for case in cases if case.id not in ragged)
    failing = [case for case in cases if case.id in ragged or case is odd]
    found = shared(failing, [case for case in cases if case not in failing])
    assert [pattern.expression for pattern in found.patterns] == ["ragged"]
    assert found.left == (odd,)
    assert odd.id in found.sentences[-1]


def test_one_failure_and_only_failures_share_nothing() -> None:
    cases = cases_of_nodes()[:30]
    assert shared(cases[:1], cases[1:]).patterns == ()
    assert shared(cases, []).patterns == ()
