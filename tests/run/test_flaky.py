"""Flaky cases: known by their rate, whichever of their verdicts comes, and shown as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_runs as runs
from pydantic import ValidationError

from conformance.expectations.known import Known
from conformance.expectations.match import Expectation
from conformance.results.differences import difference
from conformance.results.records import FlakyRecord

FLAKY = FlakyRecord(verdicts=("wrong", "pass"), failed=3, runs=10)
KNOWN = runs.expected("wrong", flaky=FLAKY)


def line(**fields: Any) -> Expectation:
    known = {
        "cases": "theme/a",
        "versions": "",
        "verdict": "wrong",
        "flaky": {"failed": 3, "runs": 10},
        "link": "https://example.org/1",
        "why": "Two threads write to one row.",
    }
    return Expectation(Known.model_validate(known | fields), Path("cpu.yaml"), 7)


@pytest.mark.parametrize(
    ("fields", "verdict", "differs"),
    [
        ({}, "wrong", None),
        ({}, "pass", None),
        ({}, "crash", "the verdict is crash, not wrong or pass"),
        ({"wrong": "presents"}, "pass", None),
        ({"flaky": {"failed": 1, "runs": 2, "also": "crash"}}, "crash", None),
        (
            {"flaky": {"failed": 2, "runs": 2, "also": ["crash", "timeout"]}},
            "pass",
            "the verdict is pass, not wrong or crash or timeout",
        ),
    ],
)
def test_a_flaky_case_has_one_of_its_verdicts(
    fields: dict[str, Any], verdict: str, differs: str | None
) -> None:
    assert line(**fields).differs(runs.result(verdict=verdict)) == differs


@pytest.mark.parametrize(
    "fields",
    [
        {"flaky": {"failed": 3, "runs": 2}},
        {"flaky": {"failed": 0, "runs": 2}},
        {"verdict": "pass"},
        {"flaky": {"failed": 1, "runs": 2, "also": ["wrong"]}},
    ],
)
def test_a_flaky_line_needs_a_share_and_another_verdict(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        line(**fields)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (("pass", KNOWN), ("wrong", KNOWN), False),
        (("wrong", KNOWN), ("pass", KNOWN), False),
        (("pass", None), ("wrong", KNOWN), False),
        (("wrong", None), ("pass", KNOWN), False),
        (("pass", KNOWN), ("crash", KNOWN), True),
        (("pass", None), ("wrong", None), True),
    ],
)
def test_a_change_between_its_verdicts_is_none(before: Any, after: Any, worse: bool) -> None:
    old, new = (
        runs.result(verdict=verdict, expectation=known, unexpected=known is None)
        for verdict, known in (before, after)
    )
    change = difference(old, new)
    assert (change is not None and change[0] == "broken") == worse
