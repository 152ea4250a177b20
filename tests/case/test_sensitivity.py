"""Sensitivity: the effect of each feature, and the refusal of a case that detects nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from case_files import cases_of
from shipped import cases_of_theme
from tables import tables

from conformance.base.paths import ROOT
from conformance.bundle.effects import (
    REPLACED,
    THRESHOLDS,
    effects,
    enough,
    insensitive,
    is_recorded,
    part_of,
    why_insensitive,
)
from conformance.bundle.inputs import draw_inputs
from conformance.case.case import EffectName
from conformance.case.corpus import shipped_files
from conformance.case.steps import steps_of
from conformance.operator.call import Call, checked_call
from conformance.operator.replacement import EDGE_THRESHOLD, THRESHOLD
from conformance.operator.tensors import attributes_of
from conformance.oracle import reference
from conformance.oracle.tolerance import CONSTANTS, budgets

TABLES = tables(__file__)

DECODE = {"past_sequence_length": 9}
INT8 = {
    "cache_dtype": "int8",
    "kv_cache_bit_width": 8,
    "k_quant_type": "PER_TENSOR",
    "v_quant_type": "PER_TENSOR",
}
CHANNELS = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}


def test_the_documentation_lists_each_effect() -> None:
    page = (ROOT / "docs" / "sensitivity.md").read_text(encoding="utf-8")
    table = page.partition("## Effects and thresholds")[2].partition("\n\n- ")[0]
    missing = {part_of(name) for name in THRESHOLDS if f"`{part_of(name)}`" not in table}
    assert not missing, f"add {sorted(missing)} to the table in docs/sensitivity.md"


def all_effects_of(**fields: Any) -> dict[str, float]:
    """Every effect of a call."""
    return effects(checked_call(fields), every=True)


def effects_of(**fields: Any) -> dict[str, float]:
    """The effect of each part that a case must show: the least of those that concern the part."""
    found: dict[str, float] = {}
    for name, effect in all_effects_of(**fields).items():
        if name in THRESHOLDS:
            part = part_of(name)
            found[part] = min(effect, found.get(part, effect))
    return found


# Effects


ROWS = [
    about
    for about in yaml.safe_load(Path(__file__).with_name("described_calls.yaml").read_text("utf-8"))
    if "effects" in about
]


@pytest.mark.parametrize("about", ROWS, ids=lambda about: str(about["call"]))
def test_a_call_has_the_effects_that_are_listed(about: dict[str, Any]) -> None:
    """In each dtype, the feature that it shows has enough with the generated values."""
    for dtype in ("float32", "float16", "bfloat16") if "shows" in about else ("float32",):
        fields = {**about["call"], "dtype": dtype}
        assert sorted(effects_of(**fields)) == about["effects"], dtype
        found = all_effects_of(**fields)
        for effect, threshold in THRESHOLDS.items():
            if part_of(effect) == about.get("shows"):
                assert found.get(effect, threshold) >= threshold, (effect, dtype)


def test_a_window_that_hides_nothing_has_no_edge() -> None:
    for window in (9, 10):
        found = effects_of(sequence_length=9, local_window_size=window)
        assert found == {"window": 0.0}
    found = effects_of(sequence_length=9, local_window_size=8)
    assert found["window"] > THRESHOLD
    assert found["window_edge"] > EDGE_THRESHOLD


def test_the_effect_of_a_scale_is_measured_in_its_present() -> None:
    prompt = {**INT8, "cache": "concatenated", "sequence_length": 4}
    for presents in ("both", "key_only", "value_only"):
        assert effects_of(**prompt, presents=presents)["quantisation"] > THRESHOLD


def test_the_effect_is_the_largest_change_in_budgets() -> None:
    """Calculated here for a softcap: the oracle with it and without it."""
    call = checked_call(
        {**DECODE, "softcap": 4.0, "dtype": "float16", "num_heads": 2, "kv_num_heads": 1}
    )
    (step,) = steps_of(call)
    inputs, attributes = draw_inputs(call, step), attributes_of(call)
    right = reference(inputs, attributes, step.connected_outputs)
    wrong = reference(inputs, {**attributes, "softcap": 0.0}, ["output"])["output"].value
    moved = np.abs(wrong - right["output"].value) / budgets(right)["output"]
    effect = moved.max() / max(CONSTANTS.values())
    assert effects_of(**call.as_written())["softcap"] == float(f"{effect:.3g}")


@pytest.mark.parametrize("past", [1, 5])
def test_a_forgotten_past_equals_one_hidden_by_a_bias(past: int) -> None:
    """The closed form, compared with the oracle; the only other key is the new one."""
    call = Call(past_sequence_length=past, batch_size=2)
    (step,) = steps_of(call)
    inputs, attributes = draw_inputs(call, step), attributes_of(call)
    right = reference(inputs, attributes, step.connected_outputs)
    bias = np.zeros((1, 1, 1, past + 1), np.float32)
    bias[..., :past] = -np.inf
    wrong = reference({**inputs, "attention_bias": bias}, attributes, ["output"])
    moved = np.abs(wrong["output"].value - right["output"].value) / budgets(right)["output"]
    least = moved.reshape(2, -1).max(axis=1).min() / max(CONSTANTS.values())
    assert effects(call)["past"] == pytest.approx(least, rel=0.01)


def test_every_name_that_a_case_may_list_is_checked() -> None:
    assert set(get_args(EffectName)) == {part_of(name) for name in THRESHOLDS}


# Replaced inputs

BATCH = {"batch_size": 2, "past_sequence_length": 9, "sequence_length": 2}
TURNED = {**BATCH, "rotary": "half_split", "position_ids": True}
SCALES = {**INT8, **CHANNELS, **BATCH}


def first(axis: int) -> Any:
    return lambda array: np.broadcast_to(np.take(array, [0], axis=axis), array.shape).copy()


@pytest.mark.parametrize(
    ("name", "fields", "replaced"),
    [
        ("query/first_sequence", BATCH, first(0)),
        ("query/first_token", BATCH, first(1)),
        ("key/first_token", BATCH, first(1)),
        ("value/zeros", BATCH, np.zeros_like),
        ("past_key/first_head", BATCH, first(1)),
        ("past_value/first_token", BATCH, first(2)),
        (
            "seqlens_k/total",
            {**BATCH, "total_sequence_lengths": [11, 5]},
            lambda array: np.full_like(array, 10),
        ),
        ("cos_cache/ones", TURNED, np.ones_like),
        ("position_ids/first_sequence", TURNED, first(0)),
        ("attention_bias/first_head", {**BATCH, "attention_bias": "full"}, first(1)),
        ("attention_bias/none", {**BATCH, "attention_bias": "one_head"}, np.zeros_like),
        ("head_sink/first", {**BATCH, "head_sink": True}, first(0)),
        ("k_scale/doubled_past", SCALES, lambda array: 2 * array),
        ("v_scale/first_head_past", SCALES, first(1)),
        ("k_norm_weight/ones", {**BATCH, "qk_norm": True}, np.ones_like),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_effects_are_of_the_replaced_call(name: str, fields: dict[str, Any], replaced: Any) -> None:
    """Here the oracle reads the replaced input itself."""
    call = checked_call({**fields, "presents": "both"})
    (step,) = steps_of(call)
    inputs, attributes = draw_inputs(call, step), attributes_of(call)
    changed = {**inputs, name.partition("/")[0]: replaced(inputs[name.partition("/")[0]])}
    outputs = REPLACED[name].outputs
    right = reference(inputs, attributes, step.connected_outputs)
    wrong, units = reference(changed, attributes, step.connected_outputs), budgets(right)
    width = call.num_heads // call.kv_num_heads * call.head_size
    most = 0.0
    for output in outputs:
        at = np.s_[-1:, :, -width:] if output == "output" else np.s_[-1:, -1:]
        off = np.abs(wrong[output].value - right[output].value)[at]
        unit = np.where(right[output].computed, units[output], np.inf)[at]
        shares = np.divide(off, unit, out=np.zeros_like(off), where=off > 0)
        most = max(most, np.nanmax(shares) / max(CONSTANTS.values()))
    found = effects(call, every=True)[name]
    assert found == float(f"{min(most, 1e9):.3g}") >= enough(name)


def test_an_effect_only_outside_the_last_head_is_found() -> None:
    """The effect is first measured on the last head of the last sequence."""
    fields = {"num_heads": 2, "kv_num_heads": 2, "head_size": 16, "sequence_length": 2}
    values = {"value": {"data": [[[0.5] * 16 + [1.0] * 16, [-0.5] * 16 + [1.0] * 16]]}}
    found = all_effects_of(**fields, inputs=values)
    assert found["value/first_token"] > THRESHOLD


def test_an_input_that_equals_its_replacement_is_not_looked_at() -> None:
    """Implied positions: a kernel that ignores the input is right."""
    found = all_effects_of(**DECODE, rotary="half_split", position_ids="implied")
    assert found["position_ids/implied"] == 0.0
    found = all_effects_of(**DECODE, rotary="half_split", position_ids=True)
    assert found["position_ids/implied"] > THRESHOLD
    single = all_effects_of(batch_size=1, **DECODE, attention_bias="one_head")
    assert not {"query/first_sequence", "attention_bias/first_head"} & set(single)


def test_a_bias_with_rows_of_another_length_is_seen() -> None:
    """A static buffer has more rows than the call has tokens."""
    fields = {"max_sequence_length": 16, "past_sequence_length": 5, "sequence_length": 3}
    found = all_effects_of(**fields, attention_bias="full")
    assert found["total_sequence_length/rows"] > EDGE_THRESHOLD


# A case


@pytest.mark.parametrize(("fields", "sentence"), TABLES["insensitive"])
def test_only_idle_parts_are_declared(tmp_path: Path, fields: str, sentence: str | None) -> None:
    """A part without effect must be declared and no other."""
    (case,) = cases_of(tmp_path, f"- {{name: a, {fields}}}")
    said = why_insensitive(case)
    assert said is None if sentence is None else re.fullmatch(sentence, said or "")


@pytest.mark.push
@pytest.mark.parametrize(
    "most", [pytest.param(5, id="some"), pytest.param(10_000, id="all", marks=pytest.mark.night)]
)
@pytest.mark.parametrize("theme", shipped_files().values(), ids=lambda file: file.stem)
def test_every_shipped_case_is_sensitive_and_its_theme_is_recorded(theme: Path, most: int) -> None:
    """So that runs need not measure it. Of large themes a part is measured, and all every night.

    The record is of all cases, as they were when their file was written.
    """
    record = "python -m conformance.maintain.generate"
    cases = cases_of_theme(theme.stem)
    cases = cases[:: -(-len(cases) // most)]
    found = {case.id: insensitive(case) for case in cases}
    assert {name: sentence for name, sentence in found.items() if sentence} == {}
    assert is_recorded(theme), f"after a change of the theme, run: {record}"
