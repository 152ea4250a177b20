"""Known faults are named by the values of failures, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from shipped import shipped_cases

from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.diagnosis.as_if import MatchingFault, as_if
from conformance.diagnosis.faulty_kernels import FaultyKernels, SampledCall
from conformance.diagnosis.shared import effort

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Small calls of one theme for each of some faults.
THEMES = ("window", "softcap", "smoke", "sink", "ragged")


@pytest.fixture(scope="module")
def kernels() -> Iterator[FaultyKernels]:
    with FaultyKernels() as kernels:
        yield kernels


@pytest.fixture(scope="module")
def calls() -> list[SampledCall]:
    cases = [case for case in shipped_cases() if case.theme in THEMES and not case.is_graph]
    small = [case for case in cases if case.call.dtype == "float32" and effort(case) < 100_000]
    return [SampledCall(case, (), "cpu") for case in small if case.contract.demands == "computes"]


def named(
    calls: Sequence[SampledCall],
    kernels: FaultyKernels,
    *faults: str,
    known: FaultyKernels | None = None,
) -> tuple[list[MatchingFault], list[Case]]:
    """What is named for a target that has all these faults, each in calls that it changes."""

    def outputs(call: SampledCall) -> Outputs | None:
        for fault in faults:
            made = kernels.outputs(call, fault)
            if made is None or not call.is_right(made):
                return made
        return kernels.outputs(call, "correct")

    by_id = {call.case.id: call for call in calls}
    returned = {id: outputs(call) for id, call in by_id.items()}
    failing = [c.case for c in calls if (o := returned[c.case.id]) and not c.is_right(o)]
    passing = [call.case for call in calls if call.case not in failing]
    found = as_if([failing], passing, lambda case: returned[case.id], "cpu", known or kernels)
    return found, failing


@pytest.mark.parametrize(
    "fault", ["window_one_longer", "window_ignored_for_prompts", "softcap_loses_the_sign"]
)
def test_values_name_a_fault(calls: list[SampledCall], kernels: FaultyKernels, fault: str) -> None:
    (one,), failing = named(calls, kernels, fault)
    assert one.names == (fault,)
    assert kernels.sentences[fault].rstrip(".").lower() in one.sentence.lower()
    assert len(one.explained) == min(8, len(failing))


@pytest.mark.push
def test_an_unknown_fault_is_not_named(calls: list[SampledCall], kernels: FaultyKernels) -> None:
    with FaultyKernels(without=["window_one_longer"]) as others:
        assert "window_one_longer" not in others.sentences
        assert named(calls, kernels, "window_one_longer", known=others)[0] == []


def test_no_failures_name_nothing(calls: list[SampledCall], kernels: FaultyKernels) -> None:
    assert named(calls, kernels, "correct") == ([], [])


@pytest.mark.push
def test_passing_calls_refute_a_fault(calls: list[SampledCall], kernels: FaultyKernels) -> None:
    """A window that is ignored by prompts alone is no window that is ignored everywhere."""
    with FaultyKernels(without=["window_ignored_for_prompts"]) as others:
        found, _ = named(calls, kernels, "window_ignored_for_prompts", known=others)
    assert "window_ignored" not in [name for one in found for name in one.names]


@pytest.mark.parametrize(
    ("fault", "similar"),
    [
        ("window_one_longer@total > 12", "window_one_longer"),
        ("softcap_ignored@queries > 1", "softcap_ignored"),
    ],
)
def test_what_passing_calls_of_any_size_refute_is_not_named(
    calls: list[SampledCall], kernels: FaultyKernels, fault: str, similar: str
) -> None:
    """All failures have the values of the similar fault, but it would break calls that pass."""
    found, failing = named(calls, kernels, fault)
    assert len(failing) > 3
    assert similar not in [name for one in found for name in one.names]


@pytest.mark.push
def test_calls_it_would_break_are_said(calls: list[SampledCall], kernels: FaultyKernels) -> None:
    """The fault is named for a target that computes two calls of all right."""
    by_id = {call.case.id: call for call in calls}
    wrong = [
        call.case
        for call in calls
        if (made := kernels.outputs(call, "window_ignored")) and not call.is_right(made)
    ]
    failing, spared = wrong[2:], wrong[:2]
    passing = [*spared, *(call.case for call in calls if call.case not in wrong)]

    def returned(case: Case) -> Outputs | None:
        return kernels.outputs(by_id[case.id], "correct" if case in spared else "window_ignored")

    (one,) = as_if([failing], passing, returned, "cpu", kernels)
    assert {case.id for case in one.broken} == {case.id for case in spared}
    assert "it would also break 2 calls that passed, such as" in one.sentence
    assert as_if([failing], passing, returned, "cpu", kernels, until=0.0) == []
