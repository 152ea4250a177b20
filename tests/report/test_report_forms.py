"""Other forms of a report: JUnit, CSV, JSON and badges agree with the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from synthetic_runs import case, of_results, result, target

from conformance.base.paths import ROOT
from conformance.case.contract import Contract
from conformance.cli.report import FORMS
from conformance.operator.part import Demands
from conformance.report.badges import badges, verdict_colours
from conformance.report.junit import junit
from conformance.report.repro.reproduction import program_of
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


# Badges


@pytest.mark.parametrize(
    ("results", "fields", "verdict", "says"),
    [
        ([result("t/a")], {}, "pass", "1 of 1 calls right, 0 unexpected"),
        ([result("t/a", verdict="wrong", unexpected=False)], {}, "pass", "0 of 1 calls"),
        ([result("t/a"), result("t/b", verdict="wrong")], {}, "wrong", "1 of 2 calls"),
        ([result("t/a", verdict="crash"), result("t/b", verdict="wrong")], {}, "crash", "0 of 2"),
        ([result("t/a", verdict="skip")], {}, "skip", "not tried"),
        ([result("t/a")], {"complete": False}, "skip", "0 unexpected, run incomplete"),
    ],
)
def test_a_badge_has_the_colour_of_the_worst_unexpected_verdict(
    tmp_path: Path, results: list[ResultRecord], fields: dict[str, Any], verdict: str, says: str
) -> None:
    (badge,) = badges(joined(tmp_path, results, **fields))
    root = fromstring(badge.svg)
    second = list(root.iter(f"{SVG}rect"))[1]
    assert second.get("fill") == verdict_colours()[verdict]  # type: ignore[index]
    assert says in (root.findtext(f"{SVG}title") or "")


def test_a_profile_has_a_badge_of_its_own_and_opens_the_score(tmp_path: Path) -> None:
    ids = {"gemma_4_e2b/a": "pass", "gemma_4_e2b/b": "wrong", "t/c": "pass"}
    results = [result(id, verdict=verdict) for id, verdict in ids.items()]
    cases = [case(id, tags=("profiles",) if "gemma" in id else ()) for id in reversed(ids)]
    table = joined(tmp_path, results, cases=cases)
    every, one = badges(table)
    assert (every.file, one.file) == ("cpu@1.31.1.svg", "cpu@1.31.1.gemma_4_e2b.svg")
    assert "cpu@1.31.1: 2 of 3 calls right, 1 unexpected" in every.svg
    assert "cpu@1.31.1.gemma_4_e2b: 1 of 2 calls right, 1 unexpected" in one.svg
    assert [*table.scores(["cpu@1.31.1"]).themes] == ["gemma_4_e2b", "t"]  # the score opens with it


def test_every_form_is_documented() -> None:
    options = {form.option for form in FORMS}
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    missing = [option for option in options if f"`--{option} " not in text]
    assert not missing, f"docs/report.md does not list the forms {missing}"
