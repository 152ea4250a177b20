"""The coverage table and the pairs: features are read from a call, and no pair is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from case_files import cases_of
from shipped import shipped_cases

from conformance.base.paths import ROOT
from conformance.case.call import Call
from conformance.case.case import Case
from conformance.case.features import FEATURES, features_of
from conformance.case.tensors import steps_of
from conformance.maintain.coverage import faults, looked_at, pair_counts, text
from conformance.maintain.covering import legal_pairs, pairs_in, rows_for
from conformance.maintain.looked_at import recorded
from conformance.maintain.looked_at import text as inputs_text


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


PLAIN = {feature.name: feature.values[0] for feature in FEATURES}
DECODE = {"phase": "decode", "cache": "concatenated"}


@pytest.mark.parametrize(
    ("fields", "differs"),
    [
        ({"sequence_length": 5}, {}),
        ({"past_sequence_length": 5}, DECODE),
        ({"past_sequence_length": 5, "sequence_length": 2}, {**DECODE, "phase": "chunked_prefill"}),
        ({"loop": [2, 1]}, {**DECODE, "phase": "loop"}),
        ({"loop": [2, 1], "max_sequence_length": 4}, {"phase": "loop", "cache": "static"}),
        (
            {"past_sequence_length": 3, "max_sequence_length": 9, "shared_buffer": True},
            {"phase": "decode", "cache": "shared_buffer"},
        ),
        (
            {
                "past_sequence_length": 9,
                "max_sequence_length": 4,
                "local_window_size": 3,
                "sliding_window_cache": 1,
            },
            {"phase": "decode", "cache": "sliding_window", "window": "shorter"},
        ),
        (
            {"past_sequence_length": 5, "key_value": "zero_length", "presents": "none"},
            {**DECODE, "key_value": "zero_length", "presents": "none"},
        ),
        ({"presents": "value_only"}, {"presents": "one"}),
        (
            {"batch_size": 2, "sequence_length": 5, "total_sequence_lengths": [5, 3]},
            {"batch": "more", "lengths": "ragged"},
        ),
        ({"num_heads": 2}, {"heads": "mha"}),
        ({"kv_num_heads": 1}, {"heads": "mqa"}),
        ({"num_heads": 1, "kv_num_heads": 1}, {"heads": "mha"}),
        ({"head_size": 512}, {"head_size": "512"}),
        ({"head_size": 48}, {"head_size": "other"}),
        ({"rotary": "interleaved"}, {"rotary": "interleaved"}),
        (
            {"rotary": "half_split", "rotary_dim": 8, "position_ids": True},
            {"rotary": "partial_half_split", "position_ids": "given"},
        ),
        ({"attributes": {"causal": 0}}, {"causal": "bidirectional"}),
        ({"sequence_length": 5, "local_window_size": 4}, {"window": "shorter"}),
        ({"sequence_length": 5, "local_window_size": 5}, {"window": "whole"}),
        ({"sequence_length": 5, "local_window_size": 6}, {"window": "longer"}),
        ({"loop": [2, 1], "local_window_size": 3}, {**DECODE, "phase": "loop", "window": "whole"}),
        ({"local_window_size": 0}, {"window": None}),
        ({"scale": 0.0}, {}),
        ({"scale": 1.0, "softcap": 2.0}, {"scale": "given", "softcap": "given"}),
        ({"attention_bias": "one_batch"}, {"attention_bias": "full"}),
        ({"attention_bias": "one_batch_one_head"}, {"attention_bias": "one_head"}),
        (
            {"batch_size": 2, "attention_bias": "one_batch"},
            {"batch": "more", "attention_bias": "one_batch"},
        ),
        ({"smooth_softmax": 1}, {"sink": "smooth_softmax"}),
        ({"smooth_softmax": 1, "head_sink": True}, {"sink": "head_sink"}),
        ({"qk_output": 2}, {"output_qk": "after_softmax"}),
        (
            {
                **{"past_sequence_length": 3, "cache_dtype": "uint8", "kv_cache_bit_width": 4},
                **{"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"},
            },
            {**DECODE, "quantised": "int4_channel"},
        ),
        (
            {"past_sequence_length": 3, "cache_dtype": "int8", "k_quant_type": "PER_TENSOR"},
            {**DECODE, "quantised": None},
        ),
        ({"dtype": "bfloat16", "dims": "static"}, {"dtype": "bfloat16", "dims": "static"}),
        ({"kv_sequence_length": 4}, {"phase": None, "key_value": None}),
    ],
    ids=str,
)
def test_each_feature_is_read_from_the_call(
    fields: dict[str, Any], differs: dict[str, Any]
) -> None:
    call = Call.model_validate(fields)
    assert features_of(call, steps_of(call)) == {**PLAIN, **differs}


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


def test_the_committed_page_is_what_the_command_writes(corpus: list[Case]) -> None:
    page = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
    fresh = page == text(corpus, recorded())
    assert fresh, "docs/coverage.md is out of date: python -m conformance.maintain.generate"


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
