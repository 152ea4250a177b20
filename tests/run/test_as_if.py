"""Known faults are named by the values of failures, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import pytest
from shipped import shipped_cases

from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.case.selection import compile_expression
from conformance.diagnosis import faulty_kernels
from conformance.diagnosis.as_if import FaultComparison, MatchingFault
from conformance.diagnosis.faulty_kernels import FaultyKernels, SampledCall
from conformance.diagnosis.shared import effort, simplicity
from conformance.run.assessment import PreparedCase

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

#: Small calls of one theme for each of some faults.
THEMES = ("window", "softcap", "smoke", "sink", "ragged", "decoding", "pairs")

#: What a target returns for a call.
Target = Callable[[Case], Outputs | None]


class Kernels(FaultyKernels):
    """Run each call with each fault once, which the tests ask for again and again."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        super().__init__(without)
        self._made: dict[tuple[str, str], Outputs | None] = {}

    def outputs(self, call: SampledCall, fault: str) -> Outputs | None:
        key = (call.case.id, fault)
        if key not in self._made:
            self._made[key] = super().outputs(call, fault)
        return self._made[key]


class Lab:
    """Small calls, and the kernels with known faults that targets are made of."""

    def __init__(self, kernels: Kernels) -> None:
        cases = [case for case in shipped_cases() if case.theme in THEMES and not case.is_graph]
        small = [each for each in cases if each.call.dtype == "float32" and effort(each) < 70_000]
        self.cases = [each for each in small if each.contract.demands == "computes"]
        self.kernels = kernels
        self.calls = {case.id: SampledCall(case, (), "cpu") for case in self.cases}

    def of(self, fault: str) -> Target:
        """A target that is the kernel with this fault."""
        return lambda case: self.kernels.outputs(self.calls[case.id], fault)

    def failing(self, target: Target) -> list[Case]:
        """The calls with wrong values."""
        returned = {case.id: target(case) for case in self.cases}
        return [c for c in self.cases if (o := returned[c.id]) and not self.calls[c.id].is_right(o)]

    def but(self, failing: list[Case]) -> list[Case]:
        """The other calls."""
        ids = {case.id for case in failing}
        return [case for case in self.cases if case.id not in ids]

    def named(
        self, target: Target, known: FaultyKernels | None = None, **how: Any
    ) -> tuple[list[MatchingFault], list[Case]]:
        """What is named for a target, and the calls that fail on it."""
        failing = self.failing(target)
        found = as_if([failing], self.but(failing), target, known or self.kernels, **how)
        return found, failing


def as_if(
    groups: list[list[Case]],
    passing: list[Case],
    target: Target,
    kernels: FaultyKernels,
    until: float = math.inf,
    smallest: Sequence[Case] = (),
) -> list[MatchingFault]:
    """What is named for these groups of failures."""
    of_target = FaultComparison(passing, target, "cpu", kernels, until)
    return of_target.faults(groups, smallest=smallest)


def off(outputs: Outputs | None) -> Outputs:
    """Wrong values that no fault has."""
    return tuple({name: value + 1 for name, value in step.items()} for step in outputs or ())


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """In which each call is prepared once."""
    prepared: dict[str, PreparedCase] = {}

    def prepared_case(case: Case) -> PreparedCase:
        if case.id not in prepared:
            prepared[case.id] = PreparedCase(case)
        return prepared[case.id]

    with pytest.MonkeyPatch.context() as patch, Kernels() as kernels:
        patch.setattr(faulty_kernels, "prepared_case", prepared_case)
        yield Lab(kernels)


@pytest.mark.parametrize(
    "fault", ["window_one_longer", "window_ignored_for_prompts", "softcap_loses_the_sign"]
)
def test_values_name_a_fault(lab: Lab, fault: str) -> None:
    (one,), failing = lab.named(lab.of(fault))
    assert one.names == (fault,)
    assert lab.kernels.sentences[fault].rstrip(".").lower() in one.sentence.lower()
    assert len(one.explained) == min(8, len(failing))


@pytest.mark.push
def test_of_an_unknown_fault_a_similar_one_is_offered(lab: Lab) -> None:
    with Kernels(without=("window_one_longer",)) as others:
        assert "window_one_longer" not in others.sentences
        (one,), failing = lab.named(lab.of("window_one_longer"), others)
    assert one.similar
    assert others.areas[one.names[0]] == "masks"
    assert one.sentence.startswith("Similar to: a local window")
    tried = len(one.explained) + len(one.others)
    assert tried == min(30, len(failing))
    assert f"which makes {len(one.explained)} of {tried} failures" in one.sentence


def test_where_most_calls_fail_none_is_similar(lab: Lab) -> None:
    """Most faults are alike if they make everything wrong."""
    with Kernels(without=("scale_squared", "scale_default_one_over_head_size")) as others:
        found, failing = lab.named(lab.of("scale_squared"), others)
    assert len(failing) > len(lab.cases) / 2
    assert found == []


def test_no_failures_name_nothing(lab: Lab) -> None:
    assert lab.named(lab.of("correct")) == ([], [])


@pytest.mark.parametrize(
    ("fault", "name", "only"),
    [
        ("window_one_longer@total > 12", "window_one_longer", "total_sequence_length>12"),
        ("softcap_ignored@queries > 1", "softcap_ignored", "sequence_length>1"),
    ],
)
def test_a_fault_of_some_calls_is_named_with_their_condition(
    lab: Lab, fault: str, name: str, only: str
) -> None:
    """All failures have its values, and an expression tells the calls that it would break."""
    (one,), failing = lab.named(lab.of(fault))
    assert one.names == (name,)
    meant, told = compile_expression(only), compile_expression(one.only)
    changed = [*failing, *one.broken]
    assert [told((), case) for case in changed] == [meant((), case) for case in changed]
    assert f"({name}), but only with `{one.only}`: it gives" in one.sentence
    assert f"in other calls it would break {len(one.broken)} calls" in one.sentence


def test_further_failures_tell_faults_apart(lab: Lab) -> None:
    """The square of the default scale is one over head_size, which is another fault."""
    (one,), _ = lab.named(lab.of("scale_squared@has('head_sink')"))
    assert one.names == ("scale_squared",)


def test_a_fault_of_calls_that_no_expression_tells_apart_is_not_named(lab: Lab) -> None:
    """The values of the failures are those of the fault, but half of its calls pass."""
    clips, right = lab.of("softcap_clips"), lab.of("correct")
    spared = [case for case in lab.failing(clips) if crc32(case.id.encode()) % 2]
    assert len(spared) > 4
    found, _ = lab.named(lambda case: right(case) if case in spared else clips(case))
    assert all(one.similar for one in found)


def test_calls_that_the_kernel_does_not_compute_are_no_evidence(lab: Lab) -> None:
    """Some targets accept odd calls, which the kernel refuses with any fault and without."""
    odd = [
        SampledCall(case, (), "cpu")
        for case in shipped_cases()
        if case.id.startswith("bounds_quantised/output_qk[") and not case.steps[0].buffers
    ]
    odd = [o for o in odd if all(o.expected) and lab.kernels.outputs(o, "correct") is None]
    assert len(odd) > 2  # as many as make a fault be named with a condition, or not at all
    ignored = lab.of("softcap_ignored")

    def returned(case: Case) -> Outputs | None:
        if case.id in lab.calls:
            return ignored(case)
        (right,) = [one.expected for one in odd if one.case is case]
        return tuple({name: want.rounded for name, want in step.items()} for step in right)

    failing = lab.failing(ignored)
    passing = [*lab.but(failing), *(one.case for one in odd)]
    (one,) = as_if([failing], passing, returned, lab.kernels)
    assert (one.names, one.broken, one.only) == (("softcap_ignored",), (), "")


def test_two_faults_are_named_and_the_calls_that_have_both(lab: Lab) -> None:
    one, other = "softcap_ignored", "sink_negative"
    both = f"{one}+{other}"
    failing = lab.failing(lab.of(both))
    kinds = ((True, False), (False, True), (True, True))
    groups = [
        [c for c in failing if (bool(c.call.softcap), bool(c.call.head_sink)) == kind]
        for kind in kinds
    ]
    found = as_if(groups, lab.but(failing), lab.of(both), lab.kernels)
    assert [each.names for each in found] == [(one,), (other,), (both,)]
    assert found[-1].explained


def test_a_name_must_explain_the_smallest_call(lab: Lab) -> None:
    """The fault of most failures is not named if another one makes the smallest call wrong."""
    plain = min(lab.cases, key=simplicity)
    ignored = lab.of("softcap_ignored")
    found, failing = lab.named(ignored)
    assert [one.names for one in found] == [("softcap_ignored",)]

    def returned(case: Case) -> Outputs | None:
        return off(ignored(case)) if case is plain else ignored(case)

    passing = lab.but([*failing, plain])
    (one,) = as_if([failing, [plain]], passing, returned, lab.kernels)
    assert (one.names, one.contrary) == (("softcap_ignored",), ())
    assert as_if([failing], passing, returned, lab.kernels, smallest=[plain]) == []
    assert len(as_if([failing], passing, returned, lab.kernels, smallest=failing[:1])) == 1


def test_a_fault_is_similar_if_some_failures_have_other_wrong_values(lab: Lab) -> None:
    ignored = lab.of("softcap_ignored")
    odd = sorted(lab.failing(ignored), key=simplicity)[1:8:3]
    (one,), _ = lab.named(lambda case: off(ignored(case)) if case in odd else ignored(case))
    assert one.names == ("softcap_ignored",)
    assert 0 < len(one.contrary) <= len(odd)
    assert {case.id for case in one.contrary} <= {case.id for case in odd}
    assert one.sentence.startswith("Similar to: softcap is not read (softcap_ignored): it gives")


@pytest.mark.push
def test_calls_it_would_break_are_said(lab: Lab) -> None:
    """The fault is named for a target that computes two calls of all right."""
    ignored, right = lab.of("window_ignored"), lab.of("correct")
    spared = lab.failing(ignored)[:2]

    def returned(case: Case) -> Outputs | None:
        return right(case) if case in spared else ignored(case)

    (one,), _ = lab.named(returned)
    assert {case.id for case in one.broken} == {case.id for case in spared}
    assert "it would also break 2 calls that passed, such as" in one.sentence
    assert lab.named(returned, until=0.0)[0] == []
