"""Other forms of a report: JUnit, CSV and JSON agree with the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, of_results, result, target

from conformance.base.paths import ROOT
from conformance.case.contract import Contract
from conformance.cli.report import FORMS
from conformance.operator.part import Demands
from conformance.report.junit import junit
from conformance.report.repro.reproduction import program_of
from conformance.report.terminal import tell
from conformance.results.records import ResultRecord
from conformance.results.table import Table, tabulate


def joined(folder: Path, results: Sequence[ResultRecord], **fields: Any) -> Table:
    """A run with these results."""
    return tabulate([of_results(folder / "r.jsonl", results, **fields)])


# JUnit


@pytest.mark.parametrize(
    ("demands", "terms"), [("rejects", "rejects (established)"), ("either", "either")]
)
def test_only_demands_have_a_basis(tmp_path: Path, demands: Demands, terms: str) -> None:
    """A contract says a basis of what it demands alone."""
    one = result(verdict="wrong")
    about = case(contract=Contract(demands=demands, basis="established", source="x"))
    assert f"  contract  {terms}" in list(tell(about, one))
    assert f"  contract  {terms}\n" in junit(joined(tmp_path, [one], cases=[about]))
    assert f"contract: {terms}, x" in program_of(about, one, target()).text


def test_junit_of_an_incomplete_run_has_an_error(tmp_path: Path) -> None:
    text = junit(joined(tmp_path, [result()], complete=False))
    assert 'message="The run was stopped."' in text


def test_a_profile_opens_the_score(tmp_path: Path) -> None:
    cases = [case("t/c"), case("gemma_4_e2b/a", tags=("profiles",))]
    table = joined(tmp_path, [result(each.id) for each in cases], cases=cases)
    assert [*table.scores(["cpu@1.31.1"]).themes] == ["gemma_4_e2b", "t"]


def test_every_form_is_documented() -> None:
    options = {form.option for form in FORMS}
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    missing = [option for option in options if f"`--{option} " not in text]
    assert not missing, f"docs/report.md does not list the forms {missing}"
