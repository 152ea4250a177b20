"""Flaky cases: a change from one of their verdicts to another is none."""

from __future__ import annotations

from typing import Any

import pytest
import synthetic_runs as runs

from conformance.results.differences import difference
from conformance.results.records import FlakyRecord

FLAKY = FlakyRecord(verdicts=("wrong", "pass"), failed=3, runs=10)
KNOWN = runs.expected("wrong", flaky=FLAKY)


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
