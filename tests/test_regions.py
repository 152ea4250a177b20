"""cases/regions.yaml: every feature at every size, as the design of its rows says."""

from __future__ import annotations

import pytest

from conformance.base.paths import data_path
from conformance.maintain.covering import Pair, pairs_of
from conformance.maintain.region_cases import (
    FAMILIES,
    IMPLIED,
    SIZES,
    Made,
    call_of,
    name_of,
    pairs_of_sizes,
    rows,
    size_of,
    text,
    title_of,
    wanted_of,
)



@pytest.fixture(scope="module")
def made() -> list[Made]:
    return rows()


def _forbidden(pair: Pair, number: int) -> bool:
    row = dict(pair)
    return FAMILIES[number].forbids(row) or any(rule.forbids(row) for rule in IMPLIED)


def test_each_feature_meets_each_size_in_its_family(made: list[Made]) -> None:
    for number, family in enumerate(FAMILIES):
        met = {
            pair for row in made if row.family is family for pair in pairs_of(row.row, family.factors)
        }
        missing = [
            pair for pair in wanted_of(family) if pair not in met and not _forbidden(pair, number)
        ]
        assert not missing, f"{family.name}: {missing}"


def test_each_two_sizes_meet_in_a_common_family(made: list[Made]) -> None:
    met = {pair for row in made if row.family.common for pair in pairs_of(row.row, SIZES)}
    common = [number for number, family in enumerate(FAMILIES) if family.common]
    missing = [
        pair
        for pair in pairs_of_sizes()
        if pair not in met and not all(_forbidden(pair, number) for number in common)
    ]
    assert not missing


def test_a_row_has_a_name_and_a_title_of_its_own(made: list[Made]) -> None:
    assert len({name_of(row) for row in made}) == len(made)
    assert len({title_of(row) for row in made}) == len(made)


def test_a_ragged_batch_does_not_begin_with_its_longest_sequence(made: list[Made]) -> None:
    found = 0
    for row in made:
        if row.row["lengths"] == "ragged":
            lengths = call_of(row)["total_sequence_lengths"]
            assert len(lengths) == size_of(row.row).batch
            assert lengths[0] < max(lengths) == size_of(row.row).keys
            found += 1
    assert found > 50


@pytest.mark.slow
def test_the_committed_regions_are_what_the_command_writes() -> None:
    fresh = (data_path("cases") / "regions.yaml").read_text(encoding="utf-8") == text()
    assert fresh, "out of date: python -m conformance.maintain.generate cases/regions.yaml"
