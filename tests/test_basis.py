"""Contracts promise no more than the features of their calls do."""

from __future__ import annotations

import pytest
from shipped import cases_of_theme

from conformance.case.basis import (
    GROUNDS,
    STRENGTH,
    TOGETHER,
    contract_on,
    grounds_of,
    weakest_of,
)
from conformance.case.contract import Basis, Contract
from conformance.case.contracts import ELSEWHERE, contract_of
from conformance.case.corpus import shipped_files
from conformance.case.features import BORROWING, BY_NAME, DOCUMENTATION, features_of

#: The themes at the limits of the operator weigh each of their contracts on its own.
THEMES = sorted(
    file.stem for file in shipped_files().values() if not file.stem.startswith("bounds_")
)
PLAIN = {feature.name: feature.values[0] for feature in BY_NAME.values()}


@pytest.mark.parametrize("theme", THEMES)
def test_no_contract_promises_more_than_the_features_of_its_call(theme: str) -> None:
    more = [
        f"{case.id}: {case.contract.basis}, but {[ground.words for ground in grounds]}"
        for case in cases_of_theme(theme)
        if case.contract.demands == "computes"
        and (grounds := grounds_of(features_of(case.call, case.steps)))
        and STRENGTH.index(case.contract.basis)
        < max(STRENGTH.index(ground.basis) for ground in grounds)
    ]
    assert not more, "\n".join(more)


@pytest.mark.parametrize("theme", THEMES)
def test_no_contract_demands_of_a_provider_what_its_text_refuses(theme: str) -> None:
    more = []
    for case in cases_of_theme(theme):
        features = features_of(case.call, case.steps)
        rows, window = case.call.max_sequence_length, case.call.local_window_size
        for values, names, different in ELSEWHERE:
            if different["demands"] == "rejects" and "cache" in values and rows == window:
                continue  # CUDA refuses only a sliding-window cache that is longer than its window
            if all(features[name] in those for name, those in values.items()):
                more += [
                    f"{case.id} computes on {name}, but {different['why']}"
                    for name in names
                    if case.contract.on(name).demands == "computes"
                ]
    assert not more, "\n".join(more)


def test_every_ground_is_that_of_values_that_are_not_plain() -> None:
    values = [*GROUNDS, *((n, v) for of, _ in TOGETHER for n, vs in of.items() for v in vs)]
    values += [(n, v) for of, _, _ in ELSEWHERE for n, vs in of.items() for v in vs]
    assert all(value in BY_NAME[name].values[1:] for name, value in values)


@pytest.mark.parametrize(
    ("features", "basis"),
    [
        ({}, "specified"),
        ({"scale": "given", "causal": "bidirectional"}, "specified"),
        ({"scale": "given", "softcap": "given"}, "established"),
        ({"softcap": "given", "key_value": "omitted"}, "requested"),
        ({"attention_bias": "one_head"}, "specified"),
        ({"sink": "head_sink"}, "specified"),
        ({"attention_bias": "one_head", "sink": "head_sink"}, "established"),
        ({"window": "shorter"}, "established"),
        ({"window": "whole"}, "specified"),
        ({"window": "shorter", "cache": "sliding_window"}, "specified"),
        ({"phase": None, "rotary": None}, "specified"),
    ],
)
def test_the_weakest_feature_counts(features: dict[str, str | None], basis: Basis) -> None:
    assert weakest_of({**PLAIN, **features}) == basis
    assert contract_on({**PLAIN, **features}).get("basis", "specified") == basis


def test_a_specified_contract_quotes_the_words_of_its_source_alone() -> None:
    both = contract_on({"scale": "given", "key_value": "packed"})
    assert both["source"] == DOCUMENTATION
    assert '"Custom scale will be used if specified"' in both["why"]
    assert '"packed QKV with shape(batch_size,' in both["why"]
    borrowed = contract_on({"scale": "given", "key_value": "zero_length"})
    assert borrowed["source"] == BORROWING
    assert "Custom scale" not in borrowed["why"]


def test_an_established_contract_says_all_that_no_text_says() -> None:
    why = contract_on({"rotary": "half_split", "softcap": "given", "lengths": "ragged"})["why"]
    assert why.startswith("No text says ")
    assert all(word in why for word in ("rotary", "softcap", "padded"))


def test_what_a_page_describes_is_not_said_to_stand_in_no_text() -> None:
    assert (
        contract_on({"quantised": "float8_channel"})["why"]
        == GROUNDS["quantised", "float8_channel"].words
    )
    both = contract_on({"quantised": "int8_tensor", "softcap": "given"})["why"]
    assert both.startswith("No text says how and when a softcap")
    assert both.endswith(GROUNDS["quantised", "int8_tensor"].words)


def _on(row: dict[str, str], provider: str) -> Contract:
    return Contract.model_validate(contract_of({**PLAIN, **row})).on(provider)


@pytest.mark.parametrize(
    ("row", "demands"),
    [
        ({"qk_norm": "given"}, "computes either rejects rejects either"),
        ({"qk_norm": "given", "rotary": "half_split"}, "computes computes rejects rejects either"),
        (
            {"qk_norm": "given", "rotary": "half_split", "key_value": "packed"},
            "computes either rejects rejects either",
        ),
        ({"causal": "bidirectional"}, "computes either computes either computes"),
        ({"cache": "sliding_window"}, "rejects either computes either either"),
        (
            {"cache": "sliding_window", "attention_bias": "full"},
            "rejects either computes either either",
        ),
        (
            {"attention_bias": "full", "sink": "head_sink"},
            "either computes computes computes computes",
        ),
        (
            {"attention_bias": "one_head", "quantised": "int8_tensor"},
            "either computes computes computes computes",
        ),
        ({"rotary": "interleaved", "head_size": "8"}, "either either either either either"),
        ({"rotary": "partial_half_split", "head_size": "40"}, "either either either either either"),
        ({"rotary": "partial_half_split"}, "either either either either either"),
        (
            {"rotary": "partial_half_split", "head_size": "80"},
            "computes computes computes computes computes",
        ),
        ({"presents": "one"}, "either either either either either"),
        ({"output_qk": "after_softmax"}, "either either computes either computes"),
        ({"presents": "one", "qk_norm": "given"}, "either either rejects rejects either"),
    ],
)
def test_a_row_demands_of_each_provider_what_its_documentation_says(
    row: dict[str, str], demands: str
) -> None:
    providers = ("CUDA", "WebGpu", "CPU", "Js", "Another")
    found = [_on(row, f"{provider}ExecutionProvider").demands for provider in providers]
    assert found == demands.split()


def test_the_norm_of_a_rotated_query_is_established() -> None:
    row = {"qk_norm": "given", "rotary": "half_split"}
    assert _on(row, "CUDAExecutionProvider").basis == "established"
    assert _on({"qk_norm": "given"}, "CUDAExecutionProvider").basis == "specified"
    assert _on(row, "CPUExecutionProvider").basis == "specified"


def test_a_window_on_a_borrowed_cache_is_disputed() -> None:
    row = {"phase": "decode", "cache": "concatenated", "key_value": "zero_length"}
    assert "disputed" not in contract_of({**PLAIN, **row})
    assert contract_of({**PLAIN, **row, "window": "shorter"})["disputed"].endswith("/32462")
