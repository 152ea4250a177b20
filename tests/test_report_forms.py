"""Other forms of a report: JUnit, CSV, JSON, badges and support data agree with the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from jsonschema import Draft202012Validator
from synthetic_runs import case, of_results, result, target

from conformance.base.paths import ROOT, data_path
from conformance.case.contract import Contract, Demands
from conformance.cli.report import FORMS
from conformance.report.badges import badges, verdict_colours
from conformance.report.junit import junit
from conformance.report.repro.program import program_of
from conformance.report.support import support
from conformance.report.terminal import tell
from conformance.results.records import CaseRecord, ResultRecord
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


# Support


def validate(document: Any) -> None:
    schema = json.loads((data_path("reports") / "support.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(document)


UNTRIED = "['In {} only 1 of 2 cases were tried; they pass.']"
NOTHING = "False ['1.3: 1 wrong, 1 unsupported of 2 cases.']"
HALF = "True ['1.2: 1 wrong, 1 pass of 2 cases.']"


@pytest.mark.parametrize(
    ("verdicts", "supported"),
    [
        ("1.2 pass pass", ["≤1.2"]),
        ("1.2 pass pass, 1.3 pass pass", ["≤1.2"]),
        ("1.2 wrong unsupported, 1.3 pass pass, 1.4 pass pass", ["1.3"]),
        ("1.10 pass pass, 1.9 wrong unsupported", ["1.10"]),
        ("1.2 wrong unsupported, 1.3 wrong unsupported", [NOTHING]),
        ("1.2 pass wrong, 1.3 pass pass", ["1.3", f"≤1.2 1.3 {HALF}"]),
        ("1.2 pass pass, 1.3 wrong unsupported, 1.4 pass pass", ["1.4", "≤1.2 1.3"]),
        ("1.2 pass pass, 1.3 wrong unsupported", [NOTHING, "≤1.2 1.3"]),
        # What was not tried is not claimed.
        ("1.2 pass skip", [f"None {UNTRIED.format('1.2')}"]),
        ("1.2 pass -", [f"None {UNTRIED.format('1.2')}"]),
        ("1.2 skip -", ["None ['Not tried.']"]),
        ("1.2 pass -, 1.3 pass pass", [f"1.3 {UNTRIED.format('1.2')}"]),
        ("1.2 pass wrong, 1.3 pass -", [f"None {UNTRIED.format('1.3')}", f"≤1.2 {HALF}"]),
    ],
)
def test_support_by_version(tmp_path: Path, verdicts: str, supported: list[str]) -> None:
    """The verdicts of an entry's two cases in each version, where - is no result."""
    runs = []
    cases = [case("t/c[n=0]"), case("t/c[n=1]")]
    for one in verdicts.split(", "):
        version, *words = one.split()
        name = f"cpu@{version}"
        pairs = [(each.id, word) for each, word in zip(cases, words, strict=True) if word != "-"]
        found = [result(id, name, word) for id, word in pairs]
        runs.append(of_results(tmp_path / version, found, cases, targets=[target(name)]))
    document = support(tabulate(runs))
    validate(document)
    told = document["t"]["c"]["__compat"]["support"]["cpu"]
    statements = told if isinstance(told, list) else [told]
    assert [" ".join(map(str, each.values())) for each in statements] == supported


def test_adapters_are_targets_of_their_own(tmp_path: Path) -> None:
    names = ["webgpu@1.30.0+lavapipe", "webgpu@1.30.0+swiftshader"]
    document = support(joined(tmp_path, [result("t/c", name) for name in names]))
    assert list(document["__meta"]["targets"]) == ["webgpu+lavapipe", "webgpu+swiftshader"]


def test_names_of_the_format_cannot_be_overwritten(tmp_path: Path) -> None:
    record = CaseRecord(**case("t/c").model_dump() | {"theme": "__meta", "name": "__compat"})
    document = support(joined(tmp_path, [result("t/c")], cases=[record]))
    validate(document)
    assert "__compat" in document["·__meta"]["·__compat"]


def test_every_form_is_documented() -> None:
    options = {form.option for form in FORMS}
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    missing = [option for option in options if f"`--{option} " not in text]
    assert not missing, f"docs/report.md does not list the forms {missing}"
