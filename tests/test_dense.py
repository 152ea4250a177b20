"""cases/dense.yaml: each two values of features at each size, as the design of its rows says."""

from __future__ import annotations

import re

import pytest
import yaml
from committed_values import find_committed_values

from conformance.base.paths import data_path
from conformance.maintain import dense_cases, telling_values
from conformance.maintain.covering import Row, sets_of
from conformance.maintain.dense_cases import FACTORS, FEATURES, RULES, SIZES, UNSEEN, text, wanted


def _one_of(name: str, levels: tuple[str, ...]) -> str:
    words = "|".join(sorted(levels, key=len, reverse=True))
    return rf"(?:_(?P<{name}>{words}))?"


_NAME = re.compile(
    rf"(?P<phase>{'|'.join(SIZES['phase'])})_(?P<cache>{'|'.join(SIZES['cache'])})_b(?P<batch>\d+)"
    r"(?:_(?P<lengths>ragged))?_h(?P<heads>\d+_\d+)_d(?P<head_size>\d+)_keys(?P<keys>\d+)"
    + "".join(_one_of(name, values[1:]) for name, values in FEATURES.items())
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The levels of each entry, except for `edge`, which is part of its number of keys."""
    file = data_path("cases") / "covering" / "dense.yaml"
    return [_row(entry["name"]) for entry in yaml.load(file.read_text(), yaml.CSafeLoader)["cases"]]


def _row(name: str) -> Row:
    match = _NAME.fullmatch(name)
    assert match, name
    found = {factor: value or FACTORS[factor][0] for factor, value in match.groupdict().items()}
    found["heads"] = found["heads"].replace("_", ":")
    found["keys"] = max(
        (level for level in SIZES["keys"] if int(level) < int(found["keys"])), key=int
    )
    return {factor: found[factor] for factor in (*FEATURES, *SIZES)}


def test_each_two_features_meet_at_each_size(rows: list[Row]) -> None:
    met = {found for row in rows for found in sets_of(row, FACTORS, 3)}
    missing = [
        found
        for found in wanted()
        if found not in met and not any(rule.forbids(dict(found)) for rule in (*RULES, *UNSEEN))
    ]
    assert missing == []


def test_a_row_has_many_features(rows: list[Row]) -> None:
    numbers = [sum(row[name] != FEATURES[name][0] for name in FEATURES) for row in rows]
    assert sum(number >= 5 for number in numbers) >= 0.9 * len(numbers)


@pytest.mark.slow
def test_the_committed_rows_are_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    find_committed_values(monkeypatch, ["dense"], telling_values, dense_cases)
    fresh = (data_path("cases") / "covering" / "dense.yaml").read_text(encoding="utf-8") == text()
    assert fresh, "out of date: python -m conformance.maintain.generate cases/dense.yaml"
