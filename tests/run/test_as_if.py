"""Known faults are named by the values of failures, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import pytest
from shipped import shipped_cases

from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.selection import compile_expression
from conformance.diagnosis.as_if import FaultComparison, MatchingFault
from conformance.diagnosis.faulty_kernels import FaultyKernels, SampledCall
from conformance.diagnosis.shared import effort, simplicity

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Small calls of one theme for each of some faults.
THEMES = ("window", "softcap", "smoke", "sink", "ragged", "decoding", "pairs")


@pytest.fixture(scope="module")
def kernels() -> Iterator[FaultyKernels]:
    with FaultyKernels() as kernels:
        yield kernels


@pytest.fixture(scope="module")
def calls() -> list[SampledCall]:
    cases = [case for case in shipped_cases() if case.theme in THEMES and not case.is_graph]
    small = [case for case in cases if case.call.dtype == "float32" and effort(case) < 70_000]
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
    of_target = FaultComparison(passing, lambda case: returned[case.id], "cpu", known or kernels)
    return of_target.faults([failing]), failing


@pytest.mark.parametrize(
    "fault", ["window_one_longer", "window_ignored_for_prompts", "softcap_loses_the_sign"]
)
def test_values_name_a_fault(calls: list[SampledCall], kernels: FaultyKernels, fault: str) -> None:
    (one,), failing = named(calls, kernels, fault)
    assert one.names == (fault,)
    assert kernels.sentences[fault].rstrip(".").lower() in one.sentence.lower()
    assert len(one.explained) == min(8, len(failing))


@pytest.mark.push
def test_of_an_unknown_fault_a_similar_one_is_offered(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    with FaultyKernels(without=["window_one_longer"]) as others:
        assert "window_one_longer" not in others.sentences
        (one,), failing = named(calls, kernels, "window_one_longer", known=others)
    assert one.similar
    assert others.areas[one.names[0]] == "masks"
    assert one.sentence.startswith("Similar to: a local window")
    tried = len(one.explained) + len(one.others)
    assert tried == min(30, len(failing))
    assert f"which makes {len(one.explained)} of {tried} failures" in one.sentence


def test_where_most_calls_fail_none_is_similar(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    """Most faults are alike if they make everything wrong."""
    with FaultyKernels(without=["scale_squared", "scale_default_one_over_head_size"]) as others:
        found, failing = named(calls, kernels, "scale_squared", known=others)
    assert len(failing) > len(calls) / 2
    assert found == []


def test_no_failures_name_nothing(calls: list[SampledCall], kernels: FaultyKernels) -> None:
    assert named(calls, kernels, "correct") == ([], [])


@pytest.mark.parametrize(
    ("fault", "name", "only"),
    [
        ("window_one_longer@total > 12", "window_one_longer", "total_sequence_length>12"),
        ("softcap_ignored@queries > 1", "softcap_ignored", "sequence_length>1"),
    ],
)
def test_a_fault_of_some_calls_is_named_with_their_condition(
    calls: list[SampledCall], kernels: FaultyKernels, fault: str, name: str, only: str
) -> None:
    """All failures have its values, and an expression tells the calls that it would break."""
    (one,), failing = named(calls, kernels, fault)
    assert one.names == (name,)
    meant, told = compile_expression(only), compile_expression(one.only)
    changed = [*failing, *one.broken]
    assert [told((), case) for case in changed] == [meant((), case) for case in changed]
    assert f"({name}), but only with `{one.only}`: it gives" in one.sentence
    assert f"in other calls it would break {len(one.broken)} calls" in one.sentence


def test_further_failures_tell_faults_apart(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    """The square of the default scale is one over head_size, which is another fault."""
    (one,), _ = named(calls, kernels, "scale_squared@has('head_sink')")
    assert one.names == ("scale_squared",)


def test_a_fault_of_calls_that_no_expression_tells_apart_is_not_named(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    """The values of the failures are those of the fault, but half of its calls pass."""
    wrong = [c for c in calls if not c.is_right(kernels.outputs(c, "softcap_clips") or ())]
    spared = {call.case.id for call in wrong if crc32(call.case.id.encode()) % 2}
    by_id = {call.case.id: call for call in calls}

    def returned(case: Case) -> Outputs | None:
        fault = "correct" if case.id in spared else "softcap_clips"
        return kernels.outputs(by_id[case.id], fault)

    failing = [call.case for call in wrong if call.case.id not in spared]
    passing = [call.case for call in calls if call.case not in failing]
    assert len(spared) > 4
    found = FaultComparison(passing, returned, "cpu", kernels).faults([failing])
    assert all(one.similar for one in found)


def test_calls_that_the_kernel_does_not_compute_are_no_evidence(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    """Some targets accept odd calls, which the kernel refuses with any fault and without."""
    odd = [
        SampledCall(case, (), "cpu")
        for case in shipped_cases()
        if case.id.startswith("bounds_quantised/output_qk[") and not case.steps[0].buffers
    ]
    odd = [one for one in odd if all(one.expected) and kernels.outputs(one, "correct") is None]
    assert len(odd) > 2  # as many as make a fault be named with a condition, or not at all
    by_id = {call.case.id: call for call in calls}

    def returned(case: Case) -> Outputs | None:
        if case.id in by_id:
            return kernels.outputs(by_id[case.id], "softcap_ignored")
        (right,) = [one.expected for one in odd if one.case is case]
        return tuple({name: want.rounded for name, want in step.items()} for step in right)

    failing = [c.case for c in calls if not c.is_right(returned(c.case) or ())]
    passing = [*(c.case for c in calls if c.case not in failing), *(one.case for one in odd)]
    (one,) = FaultComparison(passing, returned, "cpu", kernels).faults([failing])
    assert (one.names, one.broken, one.only) == (("softcap_ignored",), (), "")


def test_two_faults_are_named_and_the_calls_that_have_both(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    one, other = "softcap_ignored", "sink_negative"
    by_id = {call.case.id: call for call in calls}
    both = f"{one}+{other}"
    fails = {c.case.id for c in calls if not c.is_right(kernels.outputs(c, both) or ())}
    groups = [
        [c.case for c in calls if c.case.id in fails and has(c)]
        for has in (
            lambda c: c.case.call.softcap and not c.case.call.head_sink,
            lambda c: c.case.call.head_sink and not c.case.call.softcap,
            lambda c: c.case.call.head_sink and c.case.call.softcap,
        )
    ]
    passing = [call.case for call in calls if call.case.id not in fails]
    of_target = FaultComparison(
        passing, lambda case: kernels.outputs(by_id[case.id], both), "cpu", kernels
    )
    found = of_target.faults(groups)
    assert [each.names for each in found] == [(one,), (other,), (both,)]
    assert found[-1].explained


def test_a_name_must_explain_the_smallest_call(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    """The fault of most failures is not named if another one makes the smallest call wrong."""
    plain = min((call for call in calls), key=lambda call: simplicity(call.case))
    found, failing = named(calls, kernels, "softcap_ignored")
    assert [one.names for one in found] == [("softcap_ignored",)]
    by_id = {call.case.id: call for call in calls}

    def returned(case: Case) -> Outputs | None:
        call = by_id[case.id]
        right = kernels.outputs(call, "correct" if case is plain.case else "softcap_ignored")
        if right is None or case is not plain.case:
            return right
        return tuple({name: value + 1 for name, value in step.items()} for step in right)

    passing = [c.case for c in calls if c.case not in failing and c is not plain]
    of_target = FaultComparison(passing, returned, "cpu", kernels)
    (one,) = of_target.faults([failing, [plain.case]])
    assert (one.names, one.contrary) == (("softcap_ignored",), ())
    assert of_target.faults([failing], smallest=[plain.case]) == []
    assert len(of_target.faults([failing], smallest=failing[:1])) == 1


def test_a_fault_is_similar_if_some_failures_have_other_wrong_values(
    calls: list[SampledCall], kernels: FaultyKernels
) -> None:
    by_id = {call.case.id: call for call in calls}
    _, failing = named(calls, kernels, "softcap_ignored")
    odd = sorted(failing, key=simplicity)[1:8:3]

    def returned(case: Case) -> Outputs | None:
        made = kernels.outputs(by_id[case.id], "softcap_ignored" if case in failing else "correct")
        if made is None or case not in odd:
            return made
        return tuple({name: value + 1 for name, value in step.items()} for step in made)

    passing = [call.case for call in calls if call.case not in failing]
    (one,) = FaultComparison(passing, returned, "cpu", kernels).faults([failing])
    assert one.names == ("softcap_ignored",)
    assert 0 < len(one.contrary) <= len(odd)
    assert {case.id for case in one.contrary} <= {case.id for case in odd}
    assert one.sentence.startswith("Similar to: softcap is not read (softcap_ignored): it gives")


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

    (one,) = FaultComparison(passing, returned, "cpu", kernels).faults([failing])
    assert {case.id for case in one.broken} == {case.id for case in spared}
    assert "it would also break 2 calls that passed, such as" in one.sentence
    assert FaultComparison(passing, returned, "cpu", kernels, until=0.0).faults([failing]) == []
