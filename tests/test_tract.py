"""tract itself, where it is installed: its results match its expectations, in all its forms.

Every night on all cases; else on prompts.
"""

from __future__ import annotations

import pytest
from shipped import cases_of_theme, shipped_cases

from conformance.case.case import Case
from conformance.results.records import ResultRecord
from conformance.run.engine import TargetRun
from conformance.run.target import target_plans
from conformance.targets.registry import target_for
from conformance.targets.tools import TRACT_VERSION


def results(ep: str, cases: list[Case]) -> list[ResultRecord]:
    """The results of ``ep``, all expected; skips if the pinned release is not installed."""
    (plan,) = target_plans(cases, [target_for(ep)])
    with TargetRun(plan) as run:
        if run.ready.described is None or run.ready.described.version != TRACT_VERSION:
            pytest.skip(f"{ep} {TRACT_VERSION} is not there: {run.ready.unavailable}")
        records = [run.run_one(case).record for case in plan.cases]
    known = [record for record in records if isinstance(record, ResultRecord)]
    assert len(known) == len(records)
    assert [f"{each.case}: {each.reason}" for each in known if each.unexpected] == []
    return known


@pytest.mark.slow
@pytest.mark.parametrize("ep", ["tract", "tract-plain", "tract-wheel"])
def test_every_result_of_tract_is_expected(ep: str) -> None:
    verdicts = {record.verdict for record in results(ep, [*shipped_cases()])}
    assert verdicts == {"crash", "wrong", "accepted", "unsupported", "pass", "skip"}


def test_the_expectations_of_prompts_hold() -> None:
    records = results("tract-wheel", cases_of_theme("prefill"))
    assert "pass" in {record.verdict for record in records}
    assert {record.placement for record in records if record.outcome == "ran"} == {"cpu"}
