"""Descriptions of calls and numbers: what they mention or omit, and generated titles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import cases_of
from tables import tables

from conformance.operator.features import FEATURES, words

TABLES = tables(__file__)

PLAIN = {feature.name: feature.plain for feature in FEATURES}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_every_value_has_words(feature: Any) -> None:
    """And all of them differ, one feature at a time."""
    for phase in ("prefill", "decode"):
        row = {**PLAIN, "phase": phase, "batch": "more", "cache": "static"}
        said = [words({**row, feature.name: value}) for value in feature.values]
        # One token usually has a past of its own length.
        known = {"none", "concatenated"} if feature.name == "cache" else set()
        told = [
            text for text, value in zip(said, feature.values, strict=True) if value not in known
        ]
        assert len(set(told)) == len(told)


# Entries without a title


@pytest.mark.parametrize(("fields", "titles"), TABLES["titles"], ids=["written", "without", "long"])
def test_the_titles_of_an_entry(tmp_path: Path, fields: str, titles: list[str]) -> None:
    assert [case.title for case in cases_of(tmp_path, f"- {{name: a, {fields}}}")] == titles
