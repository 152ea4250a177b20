"""Other forms of a report: JUnit, CSV and JSON agree with the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import case, of_results, result, target

from conformance.base.paths import ROOT
from conformance.case.contract import Contract, Demands
from conformance.cli.report import FORMS
from conformance.report.junit import junit
from conformance.report.repro.program import program_of
from conformance.report.terminal import tell
from conformance.results.records import ResultRecord
from conformance.results.table import Table, tabulate

SVG = "{http://www.w3.org/2000/svg}"


def joined(folder: Path, results: Sequence[ResultRecord], **fields: Any) -> Table:
    """A run with these results."""
    return tabulate([of_results(folder / "r.jsonl", results, **fields)])


# JUnit


@pytest.mark.parametrize(
    ("demands", "terms"), [("rejects", "rejects (established)"), ("either", "either")]
)
def test_a_contract_says_a_basis_of_what_it_demands_alone(
    tmp_path: Path, demands: Demands, terms: str
) -> None:
    one = result(verdict="wrong")
    about = case(contract=Contract(demands=demands, basis="established", source="x"))
    assert f"  contract  {terms}" in list(tell(about, one))
    assert f"  contract  {terms}\n" in junit(joined(tmp_path, [one], cases=[about]))
    assert f"contract: {terms}, x" in program_of(about, one, target()).text


def test_junit_of_an_incomplete_run_has_an_error(tmp_path: Path) -> None:
    text = junit(joined(tmp_path, [result()], complete=False))
    assert 'message="The run was stopped before its end."' in text


# Badges


def test_every_form_is_documented() -> None:
    options = {form.option for form in FORMS}
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    missing = [option for option in options if f"`--{option} " not in text]
    assert not missing, f"docs/report.md does not list the forms {missing}"
