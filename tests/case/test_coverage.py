"""The pairs and triples of values: none lacks a case without a reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from case_files import cases_of
from shipped import shipped_cases
from tables import tables

from conformance.base.paths import ROOT
from conformance.bundle.effects import insensitive
from conformance.case.case import Case
from conformance.maintain.coverage import (
    INDEX,
    are_pairs,
    faults,
    listed,
    looked_at,
    possible,
    size_classes,
    values_of,
)
from conformance.maintain.covering import PAIRS, TRIPLES, Generator, goals_of, lines
from conformance.operator.features import FEATURES, features_of

TABLES = tables(__file__)
MOST_TRIPLES_LEFT = 3250


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


def test_every_possible_pair_has_a_case_and_no_other_pair_does(corpus: list[Case]) -> None:
    found = faults(corpus)
    assert found == [], "add a case or a Rule (conformance/operator/rules.py) for each pair"


def test_each_feature_is_documented() -> None:
    page = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    table = page.partition("## Features")[2].partition("\n## ")[0]
    assert [f.name for f in FEATURES if f"`{f.name}`" not in table] == []


def test_a_pair_without_a_case_is_reported(tmp_path: Path) -> None:
    cases = cases_of(tmp_path, "- {name: a, softcap: 1.0}")
    assert "softcap given × sink head_sink: no case and no reason" in faults(cases)
    assert not any(fault.startswith("heads gqa × softcap given") for fault in faults(cases))


@pytest.mark.parametrize(("body", "unread"), TABLES["unread"])
def test_what_has_no_effect_is_not_counted(tmp_path: Path, body: str, unread: str) -> None:
    """What the result does not depend on is not counted."""
    (case,) = cases_of(tmp_path, f"- {{name: a, {body}}}")
    values = features_of(case.call, case.steps)
    assert values[unread] is not None
    assert looked_at(case) == {**values, unread: None}
    assert unread not in dict(values_of(case))


def test_the_rows_have_all_legal_pairs(corpus: list[Case]) -> None:
    assert not goals_of(PAIRS, corpus).any()


def test_few_triples_have_no_case(corpus: list[Case]) -> None:
    """`python -m conformance.maintain.covering` found no call for these."""
    assert goals_of(TRIPLES, corpus).sum() // 6 <= MOST_TRIPLES_LEFT


def test_a_size_class_has_calls_and_no_others(tmp_path: Path) -> None:
    large, small = cases_of(
        tmp_path, "- {name: a, num_heads: 32}\n- {name: b, num_heads: 31, kv_num_heads: 1}"
    )
    of_16 = ("head_size", "%32=16")
    assert size_classes(large) == {("num_heads", ">=32"), ("group_size", ">=5"), of_16}
    assert size_classes(small) == {("group_size", ">=5"), of_16}


def test_what_no_call_can_have_is_not_possible() -> None:
    """Rules exclude pairs and triples, and a value that goes with no value of another feature."""
    found = {*listed(possible() & ~are_pairs())}
    sink, bias = ("sink", "head_sink"), ("attention_bias", "full")
    assert (("phase", "decode"), bias, sink) in found
    assert (("phase", "decode"), ("cache", "none"), sink) not in found
    decode, none = ("phase", "decode"), ("presents", "none")
    assert (decode, none, ("query_seqlens", "idle")) not in found  # own keys need presents then
    assert (decode, none, sink) in found
    assert not any(len(dict(one)) < 3 for one in found)


def test_new_rows_show_what_no_case_shows(tmp_path: Path) -> None:
    written = cases_of(
        tmp_path,
        "- {name: a, num_heads: 3, kv_num_heads: 1, past_sequence_length: 4}\n"
        "- {name: b, key_value: omitted, past_sequence_length: 4, presents: none}\n"
        "- {name: c, head_sink: true, past_sequence_length: 4}\n"
        "- {name: softcap, softcap: 1.0, past_sequence_length: 2}",
    )
    cases = [replace(case, written_contract=None) for case in written]
    given, sink, heads = ("softcap", "given"), ("sink", "head_sink"), ("num_heads", ">=32")
    omitted, norm = ("key_value", "omitted"), ("qk_norm", "given")
    left = np.zeros((len(INDEX),) * 3, bool)
    for goal in ((given, sink, heads), (given, omitted), (given, norm)):
        for order in itertools.product([INDEX[value] for value in goal], repeat=3):
            left[order] = {*order} == {INDEX[value] for value in goal}
    rows = [*Generator(cases, left).rows()]
    assert [*listed(left)] == [(norm, given)]  # no case has QK norm
    assert len(rows) == 2
    titles = ["One token on a past, key and value left out, no presents, softcap"]
    made = cases_of(tmp_path, "".join(f"- {line}\n" for line in lines(rows, cases[0], titles)))
    shown = [values_of(case) for case in made]
    assert any({given, sink, heads} <= values for values in shown)
    assert any({given, omitted} <= values for values in shown)
    assert not {case.title for case in made} & {*titles}
    assert not any(insensitive(case) for case in made)
