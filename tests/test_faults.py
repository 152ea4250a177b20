"""cases/faults_*.yaml: what each fault needs meets each region, as the mutants declare both."""

from __future__ import annotations

from pathlib import Path

import pytest
from committed_values import find_committed_values

from conformance.base.paths import data_path
from conformance.case.call import Call
from conformance.case.features import BY_NAME, features_of
from conformance.case.load import load
from conformance.case.tensors import steps_of
from conformance.maintain import fault_cases, missing_cases, telling_values
from conformance.maintain.fault_cases import Wanted
from conformance.maintain.fault_rows import FACTORS, Row, words_of
from conformance.maintain.fault_values import call_of
from conformance.maintain.power import known_mutants
from conformance.maintain.region_record import OfMutant, Recorded

NOTHING_MISSING = {mutant.name: OfMutant() for mutant in known_mutants() if not mutant.everywhere}


def row(**levels: str) -> Row:
    """A row of plain levels but for these."""
    return {**{name: of[0] for name, of in FACTORS.items()}, **levels}


ROWS = {
    "plain": row(),
    "prompt": row(phase="prefill", cache="none", keys="64", rotary="partial", head_size="64"),
    "one token": row(phase="prefill", keys="0", sink="sink", softcap="softcap"),
    "chunk": row(phase="chunk_3", cache="static", batch="5", lengths="ragged", heads="9:9"),
    "borrowed": row(key_value="borrowed", presents="none", bias="hidden", keys="128"),
    "codes": row(quantised="int4_channel", cache="shared_buffer", window="tile", keys="64"),
    "sliding": row(cache="sliding_shared", window="few", rotary="interleaved", position_ids="far"),
    "bidirectional": row(phase="prefill", causal="bidirectional", norm="norm", scale="scale_one"),
    "zeros": row(zeros="zero_head", output_qk="scores", sink="smooth_zero", bias="apart"),
}


@pytest.mark.parametrize("levels", ROWS.values(), ids=ROWS)
def test_the_words_of_a_row_are_the_features_of_its_call(levels: Row) -> None:
    call = Call.model_validate({**call_of(levels), "dtype": "float32"})
    found, words = features_of(call, steps_of(call)), words_of(levels)
    named = {n: words[n] for n in words if n in BY_NAME and n not in ("head_size", "dtype")}
    assert named == {name: found[name] for name in named}
    assert words["head_size"] == call.head_size
    assert "float32" in words["dtype"]
    assert (words["num_heads"], words["kv_num_heads"]) == (call.num_heads, call.kv_num_heads)
    assert words["keys"] == max(steps_of(call)[-1].total_lengths)
    assert words["queries"] == call.sequence_length


def test_a_rider_is_at_the_edge_of_the_codes() -> None:
    fields = call_of(row(quantised="int8_tensor", keys="64"))
    scale = fields["inputs"]["v_scale"]["values"]["value"]
    numbers = [one["value"] / scale for one in fields["inputs"]["value"]["elements"]]
    assert any(number % 1 == 0.5 for number in numbers)  # halfway between two codes
    assert any(number < -128 for number in numbers)  # beyond them


def test_a_hidden_tile_lies_where_the_last_query_sees_it() -> None:
    fields = call_of(row(bias="hidden", keys="128", window="most"))
    last, tile = fields["inputs"]["attention_bias"]["elements"]
    assert last["value"] == tile["value"] == -float("inf")
    start = tile["at"][3]
    oldest = 129 - fields["local_window_size"]
    assert start % 16 == 0
    assert oldest <= start < start + tile["count"] < 129


@pytest.mark.slow
def test_the_needs_of_faults_and_the_regions_are_those_of_the_mutants() -> None:
    wanted = Wanted()
    assert wanted.left.any(axis=1).all()  # each need is possible in some region
    before = wanted.left.sum()
    met = wanted.met(row(rotary="half_split", window="tile", keys="64"))
    assert 0 < met.sum() < before


@pytest.mark.slow
def test_the_committed_rows_are_what_the_command_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    themes = ["faults_prefill", "faults_decode"]
    find_committed_values(monkeypatch, themes, telling_values)
    for theme in themes:
        file = data_path("cases") / "covering" / f"{theme}.yaml"
        fresh = file.read_text(encoding="utf-8") == fault_cases.text(theme)
        assert fresh, f"out of date: python -m conformance.maintain.generate cases/{theme}.yaml"


@pytest.mark.slow
def test_a_case_is_searched_for_what_is_not_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs a region of the fault, and is found again instead of another one."""
    missing = OfMutant(missing=frozenset(["head_size_8"]))
    recorded = Recorded((), {}, {**NOTHING_MISSING, "window_one_longer": missing})
    monkeypatch.setattr(Recorded, "read", lambda: recorded)
    monkeypatch.setattr(missing_cases, "data_path", lambda name: tmp_path)
    assert missing_cases.main() == 0
    [name] = capsys.readouterr().out.split()
    assert {case.name for case in load([tmp_path / "power_regions.yaml"])} == {name}
    assert "_d8_" in name
    assert missing_cases.main() == 0
    assert capsys.readouterr().out == ""
