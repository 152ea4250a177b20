"""Bundles that stay open for the next target of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_files import cases_of

from conformance.base.paths import CACHE_VARIABLE
from conformance.case.case import Case
from conformance.run.bundles import Bundles

SMALL_AND_LARGE = """\
- {name: small, relation: scale_in_query, scale: 0.25}
- {name: large, sequence_length: 512, head_size: 128}
"""


@pytest.fixture
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return cases_of(tmp_path, SMALL_AND_LARGE)


def test_a_small_bundle_stays_open_for_the_next_target(cases: list[Case]) -> None:
    bundles = Bundles(again=True)
    small, large = ([bundles.of(case) for _ in range(2)] for case in cases)
    assert small[0] is small[1]
    assert large[0] is not large[1]
    variants = [bundles.of(cases[0], variant=True) for _ in range(2)]
    assert variants[0] is variants[1] is not small[0]


def test_with_one_target_no_bundle_stays_open(cases: list[Case]) -> None:
    bundles = Bundles()
    assert bundles.of(cases[0]) is not bundles.of(cases[0])


def test_the_outputs_that_are_expected_later_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (case,) = cases_of(
        tmp_path, "- {name: scores, qk_output: 1, sequence_length: 200, head_size: 8}"
    )
    bundles = Bundles(again=True)
    assert bundles.of(case, later=True).tensor_bytes < 1 << 16
    assert bundles.of(case, later=True) is not bundles.of(case, later=True)


def test_a_bundle_that_was_changed_is_written_again(cases: list[Case]) -> None:
    bundles = Bundles(again=True)
    before = bundles.of(cases[0])
    file = before.path / before.steps[0].files["query"]
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    after = bundles.of(cases[0])
    assert after is not before
    assert file.read_bytes() == content
    assert np.array_equal(after.expected[0]["output"].value, before.expected[0]["output"].value)
    assert bundles.of(cases[0]) is after
