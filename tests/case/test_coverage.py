"""The pairs of features: none lacks a case."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from case_files import cases_of
from shipped import shipped_cases
from tables import tables

from conformance.base.paths import ROOT
from conformance.case.case import Case
from conformance.maintain.coverage import faults, legal_pairs, looked_at, pair_counts, pairs_of
from conformance.maintain.covering import FeaturePair, goals_of, line_of, new_rows
from conformance.operator.features import FEATURES, features_of

TABLES = tables(__file__)


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
    assert not any(unread in dict(pair) for pair in pair_counts([case]))


def test_the_theme_pairs_alone_covers_every_pair(corpus: list[Case]) -> None:
    pairs = (case for case in corpus if case.theme == "pairs")
    counts = pair_counts(pairs, lambda case: features_of(case.call, case.steps))
    missing = {pair for pair in legal_pairs() if not counts[pair]}
    # bfloat16's coarse rounding hides scales; cases/quantised_types.yaml has sharper numbers.
    assert all(pair[1] == ("dtype", "bfloat16") and "quantised" in pair[0] for pair in missing)


def test_the_rows_have_all_legal_pairs(corpus: list[Case]) -> None:
    assert goals_of(case for case in corpus if case.theme == "pairs") == set()


def test_new_rows_have_the_pairs_that_no_row_has(tmp_path: Path) -> None:
    rows = cases_of(
        tmp_path,
        "- {name: a, num_heads: 3, kv_num_heads: 1, past_sequence_length: 4}\n"
        "- {name: b, key_value: omitted, past_sequence_length: 4, presents: none}\n"
        "- {name: c, head_sink: true, past_sequence_length: 4}",
    )
    others = cases_of(tmp_path, "- {name: softcap, softcap: 1.0, past_sequence_length: 2}")
    given = ("softcap", "given")
    mqa, omitted = (("heads", "mqa"), given), (("key_value", "omitted"), given)
    sink, prompt = (given, ("sink", "head_sink")), (("phase", "prefill"), given)
    left: set[FeaturePair] = {mqa, omitted, sink, prompt}
    made = list(new_rows(rows, others, left))
    assert [({mqa, omitted, sink, prompt} & {*pairs_of(row.features)}) for row in made] == [
        {mqa},
        {omitted},
        {sink},
    ]
    assert left == {prompt}  # neither the rows nor the other case have it
    line = json.loads(line_of(made[0], ["One token on a past, MQA, softcap"]))
    assert line["title"] == "One token on a past, MQA, softcap (2)"
    assert line["name"] == "one_token_on_a_past_mqa_softcap"
    assert line["matrix"] == {"dtype": ["float32", "float16", "bfloat16"]}
    again = cases_of(tmp_path, f"- {json.dumps(line)}")
    assert [case.features | {"dtype": "float32"} for case in again] == [made[0].features] * 3
