"""tract itself, where it is installed: its results match its expectations, in both forms.

Every night on all cases; else on prompts.
"""

from __future__ import annotations

from functools import cache

import pytest
from shipped import cases_of_theme, shipped_cases

from conformance.judge.expectations import load_expectations
from conformance.results.records import ResultRecord
from conformance.run.engine import TargetRun
from conformance.run.target import TargetPlan, target_plans
from conformance.targets.registry import target_for
from conformance.targets.tools import TRACT_VERSION

#: The finding of the defects that only the optimised graph has, which computes in tiles.
BEYOND_A_TILE = "docs/findings/tract-nan-beyond-a-tile.md"

Results = dict[str, ResultRecord]


@cache
def found(ep: str, theme: str) -> tuple[str, Results]:
    """The results of ``ep`` on a theme, with its name; or why there are none."""
    cases = tuple(cases_of_theme(theme))
    target = target_for(ep)
    lines = tuple(load_expectations(target.expectations))
    with TargetRun(TargetPlan(target, cases, lines)) as run:
        if run.ready.described is None:
            assert run.ready.unavailable is not None
            return f"{run.ready.unavailable} {run.ready.fix or ''}", {}
        version = run.ready.described.version
        if version != TRACT_VERSION:
            return f"it is {version}, and {TRACT_VERSION} is what is known", {}
        records = [run.run_one(case).record for case in cases]
    assert all(isinstance(record, ResultRecord) for record in records)
    return run.ready.name, {r.case: r for r in records if isinstance(r, ResultRecord)}


def of(ep: str, theme: str = "tiles") -> Results:
    """The results of ``ep``; skips if it is not installed."""
    name, records = found(ep, theme)
    if not records:
        pytest.skip(f"{ep}: {name}")
    return records


@pytest.mark.slow
@pytest.mark.parametrize("ep", ["tract", "tract-plain", "tract-wheel"])
def test_every_result_of_tract_is_expected(ep: str) -> None:
    cases = shipped_cases()
    (plan,) = target_plans(cases, [target_for(ep)])
    with TargetRun(plan) as run:
        if run.ready.described is None or run.ready.described.version != TRACT_VERSION:
            pytest.skip(f"{ep} {TRACT_VERSION} is not there: {run.ready.unavailable}")
        records = [run.run_one(case).record for case in plan.cases]
    assert [r for r in records if not isinstance(r, ResultRecord)] == []
    known = [r for r in records if isinstance(r, ResultRecord)]
    assert [f"{r.case}: {r.reason}" for r in known if r.unexpected] == []
    assert {r.verdict for r in known} == {
        "crash",
        "wrong",
        "accepted",
        "unsupported",
        "pass",
        "skip",
    }


def test_the_expectations_of_prompts_hold() -> None:
    records = of("tract-wheel", "prefill")
    assert [f"{r.case}: {r.reason}" for r in records.values() if r.unexpected] == []
    assert "pass" in {record.verdict for record in records.values()}
    assert {r.placement for r in records.values() if r.outcome == "ran"} == {"cpu"}


@pytest.mark.slow
def test_the_binary_and_the_package_agree_to_the_bit() -> None:
    binary, package = of("tract"), of("tract-wheel")
    for case, record in binary.items():
        other = package[case]
        assert (record.verdict, record.bits) == (other.verdict, other.bits), case


@pytest.mark.slow
def test_the_optimised_and_the_plain_graph_agree_except_for_known_defects() -> None:
    optimised, plain = of("tract"), of("tract-plain")
    differ = {case for case, record in optimised.items() if record.verdict != plain[case].verdict}
    known = {
        case
        for case, record in optimised.items()
        if record.known is not None and record.known.link == BEYOND_A_TILE
    }
    assert differ == known
    assert {case.partition("[")[0] for case in differ} == {
        "tiles/window",
        "tiles/long_prompt",
        "tiles/hidden_by_the_bias",
        "tiles/prompt_of_thousands",
    }
