"""cases/regions.yaml: every feature at every size, as the design of its rows says."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml
from committed_values import find_committed_values

from conformance.base.paths import data_path
from conformance.maintain import region_cases, telling_values
from conformance.maintain.covering import Covering, Pair, Row, pairs_of
from conformance.maintain.region_cases import (
    FAMILIES,
    IMPLIED,
    SIZES,
    Family,
    Made,
    cost,
    pairs_of_sizes,
    size_of,
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
def entries() -> list[dict[str, Any]]:
    file = data_path("cases") / "covering" / "regions.yaml"
    found: list[dict[str, Any]] = yaml.load(file.read_text(), yaml.CSafeLoader)["cases"]
    return found


@pytest.fixture(scope="module")
def rows(entries: list[dict[str, Any]]) -> list[Row]:
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
    entries: list[dict[str, Any]],
) -> None:
    ragged = [
        lengths
        for entry in entries
        if isinstance(lengths := entry.get("total_sequence_lengths"), list)
    ]
    assert len(ragged) > 50
    assert all(lengths[0] < max(lengths) for lengths in ragged)


def test_only_the_plain_family_has_large_heads_in_calls_of_many_tokens(
    entries: list[dict[str, Any]],
) -> None:
    """Each is a large shader to compile on WebGPU."""
    large = {
        entry["name"]
        for entry in entries
        if max(entry.get("loop", [entry.get("sequence_length")])) >= 32 and entry["head_size"] > 64
    }
    assert 3 < len(large) < 20
    assert {name for name in large if not name.startswith("plain_")} == set()


def test_biases_hide_keys_and_quantised_tokens_lie_between_codes_and_beyond(
    entries: list[dict[str, Any]],
) -> None:
    elements = {
        entry["name"]: {
            name: [element["value"] for element in given["elements"]]
            for name, given in entry.get("inputs", {}).items()
            if "elements" in given
        }
        for entry in entries
    }
    biases = [given.get("attention_bias", []) for given in elements.values()]
    assert sum(-math.inf in bias for bias in biases) > 10
    for number, own in {"int8": [6.5 / 64, -200 / 64], "int4": [6.5 / 8, -20 / 8]}.items():
        rows = [given for name, given in elements.items() if re.match(f"{number}_(ten|chan)", name)]
        assert sum(given.get("key") == given.get("value") == own for given in rows) > 5


def test_expensive_rows_are_as_cheap_as_their_own_pairs_let_them_be() -> None:
    """A wide row whose pairs other rows have, too, becomes a cheap one; its own pairs stay."""
    plain = next(family for family in FAMILIES if family.name == "plain")
    wide = {
        "feature": "plain",
        "phase": "decode",
        "cache": "static",
        "batch": "9",
        "lengths": "equal",
        "heads": "9:9",
        "head_size": "256",
        "keys": "4096",
        "edge": "whole",
    }
    cheap = {**wide, "batch": "1", "heads": "2:2", "keys": "16"}
    rows = [Made(plain, {**wide, "head_size": "8"}, []), Made(plain, wide, [])]
    others = [Made(plain, {**cheap, "head_size": size}, []) for size in ("8", "256")]
    before = {pair for made in (*rows, *others) for pair in region_cases._demanded(made)}
    made = region_cases._cheapened([*rows, *others])
    assert before <= {pair for each in made for pair in region_cases._demanded(each)}
    assert sum(cost(size_of(each.row)) for each in made) < sum(
        cost(size_of(each.row)) for each in (*rows, *others)
    )


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
    find_committed_values(monkeypatch, ["regions"], telling_values)
    fresh = (data_path("cases") / "covering" / "regions.yaml").read_text(encoding="utf-8") == text()
    assert fresh, "out of date: python -m conformance.maintain.generate cases/regions.yaml"
