"""Descriptions of calls: which features they mention or omit, and generated titles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import cases_of

from conformance.case.call import Call
from conformance.case.features import FEATURES, features_of
from conformance.case.tensors import steps_of
from conformance.case.wording import words

PLAIN = {feature.name: feature.values[0] for feature in FEATURES}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sequence_length": 5}, "Prompt"),
        ({"past_sequence_length": 5}, "One token on a past"),
        ({"past_sequence_length": 5, "sequence_length": 2}, "Several tokens on a past"),
        ({"loop": [2, 1], "max_sequence_length": 4}, "Generation loop, static cache"),
        ({"sequence_length": 5, "cache": "concatenated"}, "Prompt, past of no token"),
        (
            {"past_sequence_length": 5, "key_value": "zero_length", "presents": "none"},
            "One token on a past, borrowed cache, no presents",
        ),
        (
            {"past_sequence_length": 5, "sequence_length": 5, "key_value": "zero_length"},
            "Prompt, borrowed cache",
        ),
        ({"sequence_length": 3, "batch_size": 2}, "Prompt, batch"),
        (
            {"sequence_length": 3, "batch_size": 2, "total_sequence_lengths": [3, 1]},
            "Prompt, ragged batch",
        ),
        (
            {
                "past_sequence_length": 9,
                "max_sequence_length": 4,
                "local_window_size": 4,
                "sliding_window_cache": 1,
            },
            "One token on a past, sliding-window cache",
        ),
        (
            {"sequence_length": 9, "head_size": 80, "rotary": "half_split", "rotary_dim": 32},
            "Prompt, head_size 80, partial rotary",
        ),
        ({"sequence_length": 9, "head_size": 20}, "Prompt, unusual head_size"),
        ({"sequence_length": 9, "dtype": "float16", "softcap": 1.0}, "Prompt, softcap, float16"),
    ],
)
def test_a_call_in_words(fields: dict[str, Any], said: str) -> None:
    call = Call.model_validate(fields)
    assert words(features_of(call, steps_of(call))) == said


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
