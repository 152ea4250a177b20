"""Descriptions of calls and numbers: what they mention or omit, and generated titles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import cases_of

from conformance.base.words import plural
from conformance.case.features import FEATURES
from conformance.case.wording import words

PLAIN = {feature.name: feature.values[0] for feature in FEATURES}


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


def test_features_without_a_value_are_not_mentioned() -> None:
    assert words({**PLAIN, "phase": None, "rotary": None, "softcap": "given"}) == "Softcap"
    assert words({}) == "Call"


# Entries without a title


def titles(folder: Path, body: str) -> list[str]:
    return [case.title for case in cases_of(folder, body)]


def test_a_written_title_is_used(tmp_path: Path) -> None:
    body = "- {name: a, title: My own, matrix: {seed: [1, 2]}}"
    assert titles(tmp_path, body) == ["My own", "My own"]


def test_without_a_title_features_that_are_no_axes_stand_for_it(tmp_path: Path) -> None:
    body = """
    - name: a
      sequence_length: 4
      softcap: 1.0
      matrix: {dtype: [float32, float16], past_sequence_length: [0, 3]}
    """
    assert titles(tmp_path, body)[1:3] == ["Several tokens on a past, softcap", "Prompt, softcap"]


def test_a_title_made_of_many_features_is_cut_at_a_comma(tmp_path: Path) -> None:
    body = """
    - name: b
      sequence_length: 3
      past_sequence_length: 9
      max_sequence_length: 16
      num_heads: 2
      kv_num_heads: 1
      rotary: half_split
      softcap: 1.0
      head_sink: true
      attention_bias: full
    """
    (title,) = titles(tmp_path, body)
    assert title == "Several tokens on a past, static cache, MQA, rotary, softcap, attention bias"


def test_only_one_is_singular() -> None:
    assert [plural(n, "case") for n in range(3)] == ["0 cases", "1 case", "2 cases"]
