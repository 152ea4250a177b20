"""tract itself, where its package is installed: its results on prompts match its expectations."""

from __future__ import annotations

import pytest
from shipped import cases_of_theme

from conformance.results.records import ResultRecord
from conformance.run.engine import PlanRun
from conformance.run.target import target_plans
from conformance.targets.registry import target_for
from conformance.targets.tools import TRACT_VERSION


def test_the_expectations_of_prompts_hold() -> None:
    """Every night runs all targets on all cases."""
    (plan,) = target_plans(cases_of_theme("prefill"), [target_for("tract-wheel")])
    with PlanRun(plan) as run:
        if run.ready.described is None or run.ready.described.version != TRACT_VERSION:
            pytest.skip(f"tract {TRACT_VERSION} is not there: {run.ready.unavailable}")
        records = [run.run_one(case).record for case in plan.cases]
    known = [record for record in records if isinstance(record, ResultRecord)]
    assert len(known) == len(records)
    assert [f"{each.case}: {each.reason}" for each in known if each.unexpected] == []
    assert "pass" in {record.verdict for record in known}
    assert {record.placement for record in known if record.outcome == "ran"} == {"cpu"}
