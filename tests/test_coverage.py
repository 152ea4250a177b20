"""The coverage table and the pairs: none is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_files import cases_of
from shipped import shipped_cases

from conformance.base.paths import ROOT
from conformance.case.case import Case
from conformance.case.features import features_of
from conformance.maintain.coverage import faults, looked_at, pair_counts
from conformance.maintain.covering import legal_pairs, pairs_in, rows_for
from conformance.maintain.looked_at import text as inputs_text


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


def test_every_possible_pair_has_a_case_and_no_other_pair_does(corpus: list[Case]) -> None:
    found = faults(corpus)
    assert found == [], "add a case or a Rule (conformance/case/features.py) for each pair"


def test_a_pair_without_a_case_is_reported(tmp_path: Path) -> None:
    cases = cases_of(tmp_path, "- {name: a, softcap: 1.0}")
    assert "softcap given × sink head_sink: no case and no reason" in faults(cases)
    assert not any(fault.startswith("heads gqa × softcap given") for fault in faults(cases))


@pytest.mark.parametrize(
    ("body", "unread"),
    [
        (
            "position_ids: implied, rotary: half_split, insensitive_to: [position_ids]",
            "position_ids",
        ),
        ("sequence_length: 4, batch_size: 2, total_sequence_lengths: [4, 2]", "lengths"),
        ("softcap: 1.0, insensitive_to: [softcap]", "softcap"),
        ("head_sink: true, insensitive_to: [head_sink]", "sink"),
    ],
)
def test_what_the_result_does_not_depend_on_is_not_counted(
    tmp_path: Path, body: str, unread: str
) -> None:
    (case,) = cases_of(tmp_path, f"- {{name: a, {body}}}")
    values = features_of(case.call, case.steps)
    assert values[unread] is not None
    assert looked_at(case) == {**values, unread: None}
    assert not any(unread in pair[::2] for pair in pair_counts([case]))


def test_the_theme_pairs_alone_covers_every_pair(corpus: list[Case]) -> None:
    pairs = (case for case in corpus if case.theme == "pairs")
    counts = pair_counts(pairs, lambda case: features_of(case.call, case.steps))
    missing = {pair for pair in legal_pairs() if not counts[*pair[0], *pair[1]]}
    # bfloat16's coarse rounding hides scales; cases/quantised_types.yaml has sharper numbers.
    assert all(pair[1] == ("dtype", "bfloat16") and "quantised" in pair[0] for pair in missing)


@pytest.mark.slow
def test_the_committed_page_on_inputs_is_what_the_command_writes(corpus: list[Case]) -> None:
    page = ROOT / "docs" / "inputs.md"
    fresh = page.read_text(encoding="utf-8") == inputs_text(corpus)
    generate = "python -m conformance.maintain.generate"
    assert fresh, f"out of date: {generate} docs/inputs.md docs/coverage.md"


def test_the_rows_have_all_legal_pairs(corpus: list[Case]) -> None:
    pairs = pairs_in(case for case in corpus if case.theme == "pairs")
    assert rows_for(pairs) == []
