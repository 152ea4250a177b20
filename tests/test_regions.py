"""cases/regions.yaml: every feature at every size, as the design of its rows says."""

from __future__ import annotations

import re

import pytest
import yaml
from committed_values import find_committed_values

from conformance.base.paths import data_path
from conformance.maintain import telling_values
from conformance.maintain.covering import Covering, Pair, Row, pairs_of
from conformance.maintain.region_cases import (
    FAMILIES,
    IMPLIED,
    SIZES,
    Family,
    pairs_of_sizes,
    text,
    wanted_of,
)

_NAME = re.compile(
    r"(?P<feature>\w+?)_(?P<phase>prefill|decode|chunk_\d+|loop)_"
    r"(?P<cache>none|concatenated|static|shared_buffer)_b(?P<batch>\d+)_(?P<ragged>ragged_)?"
    r"h(?P<heads>\d+_\d+)_d(?P<head_size>\d+)_keys(?P<keys>\d+)"
)


def _row(name: str) -> Row:
    """The sizes of an entry, except for `edge`, which is part of its number of keys."""
    match = _NAME.fullmatch(name)
    assert match, name
    found = match.groupdict()
    keys = max(int(level) for level in SIZES["keys"] if int(level) < int(found["keys"]))
    lengths = "ragged" if found.pop("ragged") else "equal"
    heads = found["heads"].replace("_", ":")
    return {**found, "heads": heads, "keys": str(keys), "lengths": lengths}


@pytest.fixture(scope="module")
def entries() -> list[dict[str, object]]:
    file = data_path("cases") / "regions.yaml"
    found: list[dict[str, object]] = yaml.load(file.read_text(), yaml.CSafeLoader)["cases"]
    return found


@pytest.fixture(scope="module")
def rows(entries: list[dict[str, object]]) -> list[Row]:
    return [_row(str(entry["name"])) for entry in entries]


def _missing(wanted: list[Pair], rows: list[Row], families: list[Family]) -> list[Pair]:
    """The pairs without an entry and without a reason in each of the families."""
    met = {pair for row in rows for pair in pairs_of(row, {"feature": (), **SIZES})}

    def excluded(pair: Pair) -> bool:
        row = dict(pair)
        implied = any(rule.forbids(row) for rule in IMPLIED)
        return implied or all(family.forbids(row) for family in families)

    return [
        pair
        for pair in wanted
        if "edge" not in dict(pair) and pair not in met and not excluded(pair)
    ]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_feature_meets_each_size(family: Family, rows: list[Row]) -> None:
    mine = [row for row in rows if row["feature"] in family.values]
    assert _missing(list(wanted_of(family)), mine, [family]) == []


def test_each_two_sizes_meet_in_a_common_family(rows: list[Row]) -> None:
    common = [family for family in FAMILIES if family.common]
    mine = [row for row in rows if any(row["feature"] in family.values for family in common)]
    assert _missing(list(pairs_of_sizes()), mine, common) == []


def test_a_ragged_batch_does_not_begin_with_its_longest_sequence(
    entries: list[dict[str, object]],
) -> None:
    ragged = [
        lengths
        for entry in entries
        if isinstance(lengths := entry.get("total_sequence_lengths"), list)
    ]
    assert len(ragged) > 50
    assert all(lengths[0] < max(lengths) for lengths in ragged)


def test_a_covering_has_each_pair_that_is_allowed() -> None:
    factors = {"a": ("0", "1", "2"), "b": ("0", "1", "2"), "c": ("0", "1", "2")}

    def allowed(row: Row) -> bool:
        return not (row.get("a") == "0" and row.get("b") == "0")

    def wanted() -> dict[Pair, None]:
        return {
            ((one, x), (other, y)): None
            for one, other in (("a", "b"), ("a", "c"), ("b", "c"))
            for x in factors[one]
            for y in factors[other]
        }

    left = wanted()
    made = list(Covering(factors, allowed, lambda row: 1.0).rows(list(left), left))
    assert list(left) == [(("a", "0"), ("b", "0"))]
    assert all(allowed(row) for row, _ in made)
    assert 9 <= len(made) <= 13
    again = wanted()
    assert list(Covering(factors, allowed, lambda row: 1.0).rows(list(again), again)) == made


@pytest.mark.slow
def test_the_committed_regions_are_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    find_committed_values(monkeypatch, "regions", telling_values)
    fresh = (data_path("cases") / "regions.yaml").read_text(encoding="utf-8") == text()
    assert fresh, "out of date: python -m conformance.maintain.generate cases/regions.yaml"
