"""Which outputs of a result are wrong: from faults and figures, as data and in every view."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from reported import Parsed
from synthetic_runs import case, error, expected, result, write

from conformance.report.cells import csv_text, json_text
from conformance.report.html import render
from conformance.report.junit import junit
from conformance.report.markdown import summary_markdown
from conformance.report.repro.standalone import Program, issue
from conformance.report.terminal import tell
from conformance.results.join import Joined, join
from conformance.results.reader import read
from conformance.results.records import (
    RECORD_LINE,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import VERDICTS, severity, worst
from conformance.results.wrong_outputs import WrongOutput, wrong_outputs
from conformance.results.wrong_outputs import wrong_in as words

SHAPE = WrongShape(output="present_key", got=(1,), want=(2,))
DTYPE = WrongDtype(output="output_qk", got="float16", want="float32")
DIFFER = RunsDiffer(output="present_value", step=3)
APART = RelationBroken(
    output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.0, share=math.inf
)


@pytest.mark.parametrize(
    ("faults", "errors", "wrong"),
    [
        ((), (), ()),
        ((), (error(share=1.0),), ()),
        ((), (error(share=1.01),), ("output",)),
        ((), (error(share=math.nan),), ("output",)),
        ((), (error(output="present_key", index=None, share=None),), ("presents",)),
        ((), (error(output="present_value"), error(output="present_key")), ("presents",)),
        ((), (error(output="output_qk"), error(), error(output="present_key", share=0.5)),
         ("output", "output_qk")),
        ((), (error(step=0, share=0.1), error(step=6)), ("output",)),
        ((SHAPE,), (error(share=0.5),), ("presents",)),
        ((DTYPE, DIFFER), (), ("presents", "output_qk")),
        ((APART,), (error(share=0.5),), ("output",)),
        ((), (error(output="of another operator"),), ("output",)),
        ((), (error(output="present.0.key"), error(output="Present_3")), ("presents",)),
        ((), (error(output="logits"), error(output="borrower_present_key")),
         ("output", "presents")),
        ((), (error(output="representation"),), ("output",)),
    ],
)  # fmt: skip
def test_faults_and_figures_say_which_outputs_are_wrong(
    faults: Any, errors: Any, wrong: tuple[WrongOutput, ...]
) -> None:
    assert wrong_outputs(faults, errors) == wrong


def test_the_outputs_of_a_graph_are_told_by_their_names() -> None:
    of_graph = wrong_in("logits", "present.0.key")
    assert words(of_graph) == "logits and present.0.key"
    assert words(of_graph, str.upper) == "LOGITS and PRESENT.0.KEY"
    assert words(BOTH, str.upper) == "output and presents"
    (line,) = (line for line in tell(case("t/c"), of_graph) if "wrong in" in line)
    assert line.split() == ["wrong", "in", "logits", "and", "present.0.key"]


def wrong_in(*names: str, id: str = "t/c", verdict: str = "wrong", **fields: Any) -> ResultRecord:
    return result(id, verdict=verdict, errors=tuple(error(output=name) for name in names), **fields)


OUTPUT, PRESENTS = wrong_in("output"), wrong_in("present_key", "present_value")
BOTH, SCORES = wrong_in("output", "present_key"), wrong_in("output_qk")


def test_a_record_has_them_as_data() -> None:
    assert json.loads(BOTH.model_dump_json())["wrong_outputs"] == ["output", "presents"]
    assert RECORD_LINE.validate_json(BOTH.model_dump_json()) == BOTH


def test_wrong_presents_are_less_severe_than_a_wrong_output_and_worse_than_all_below() -> None:
    accepted = wrong_in("present_key", verdict="accepted", values_right=False)
    assert worst([PRESENTS, SCORES]) is SCORES
    assert worst([PRESENTS, BOTH]) is BOTH
    assert severity(accepted) == severity(PRESENTS)
    assert severity(result(verdict="timeout")) < severity(OUTPUT) < severity(PRESENTS)
    below = VERDICTS[VERDICTS.index("wrong") + 1 :]
    others = [result(verdict=verdict, values_right=None, errors=()) for verdict in below]
    assert all(severity(PRESENTS) < severity(each) for each in others)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Joined:
    results = [
        wrong_in("output", id="t/output"),
        wrong_in("present_key", id="t/presents", unexpected=False, expectation=expected()),
        wrong_in("present_value", id="t/unexpected"),
        wrong_in("output", "output_qk", id="t/both"),
        wrong_in("present_key", id="t/silent", verdict="accepted", values_right=False),
        result("t/right"),
    ]
    path = tmp_path_factory.mktemp("wrong") / "r.jsonl"
    return join([read(write(path, [case(each.case) for each in results], results))])


def of(joined: Joined, id: str) -> ResultRecord:
    return joined.results[id, "cpu@1.31.1"]


def test_a_result_s_lines_say_it(joined: Joined) -> None:
    head, _, where, *_ = tell(case("t/presents"), of(joined, "t/presents"))
    assert head.endswith(": wrong (only in presents)")
    assert where == "  wrong in  presents"
    head, _, where, *_ = tell(case("t/both"), of(joined, "t/both"))
    assert head.endswith(": wrong")
    assert where == "  wrong in  output and output_qk"
    head, *_ = tell(case("t/silent"), of(joined, "t/silent"))
    assert head.endswith(": accepted (wrong values, only in presents)")
    assert not any("wrong in" in line for line in tell(case("t/right"), of(joined, "t/right")))


def test_the_forms_for_programs_have_a_field(joined: Joined) -> None:
    there = {cell["case"]: cell["wrong_outputs"] for cell in json.loads(json_text(joined))["cells"]}
    assert there == {
        "t/output": "output",
        "t/presents": "presents",
        "t/unexpected": "presents",
        "t/both": "output output_qk",
        "t/silent": "presents",
        "t/right": "",
    }
    head, first, *_ = csv_text(joined).splitlines()
    assert first.split(",")[head.split(",").index("wrong_outputs")] == "output"


def test_junit_says_it(joined: Joined) -> None:
    document = fromstring(junit(joined))
    messages = {
        one.get("name"): failure.get("message", "").partition(":")[0]
        for one in document.iter("testcase")
        for failure in one.iter("failure")
    }
    assert messages == {
        "t/output": "wrong",
        "t/unexpected": "wrong (only in presents)",
        "t/both": "wrong",
    }
    assert "\nwrong in: output and output_qk\n" in "".join(document.itertext())
    counts = {one.get("name"): one.get("value") for one in document.iter("property")}
    assert (counts["verdict.wrong"], counts["wrong_only_in_presents"]) == ("4", "3")


def test_the_markdown_counts_them_apart(joined: Joined) -> None:
    text = summary_markdown(joined)
    assert "## Silently wrong results: 5 (3 only in presents)" in text
    assert "- `t`: 5 on `cpu@1.31.1` (3 only in presents); the first is `t/output`" in text
    assert "- **wrong** (only in presents): `t/unexpected` on" in text
    assert "1 wrong only in presents on `cpu@1.31.1`: `Reads past the end of the cache.`" in text


def test_a_bug_report_says_it(joined: Joined) -> None:
    def text(id: str) -> str:
        return issue(case(id), of(joined, id), joined.columns[0].target, Program("pass"))

    assert "\nWrong in presents. The output is right.\n" in text("t/presents")
    assert "\nWrong in output and output_qk.\n" in text("t/both")
    assert "\nWrong in" not in text("t/right")


def test_the_page_says_it(joined: Joined) -> None:
    parsed = Parsed(render(joined.runs))
    cells = {one["id"]: one["results"][0] for one in parsed.cells["cases"]}
    assert cells["t/presents"]["wrong_outputs"] == ["presents"]
    assert cells["t/presents"]["note"] == "only in presents"
    assert cells["t/silent"]["note"] == "wrong values, only in presents"
    assert "note" not in cells["t/both"]
    assert "wrong_outputs" not in cells["t/right"]
    assert {"output", "presents", "output_qk", "only:presents"} <= {
        one.get("value") for one in parsed.attributes("option")
    }


def test_a_page_without_wrong_results_does_not_filter_by_them(tmp_path: Path) -> None:
    run = read(write(tmp_path / "r.jsonl", [case("t/c")], [result("t/c")]))
    lists = {one.get("data-list") for one in Parsed(render([run])).attributes("select")}
    assert "wrong" not in lists
