"""Which outputs of a result are wrong: from faults and figures, as data and in every view."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest
from synthetic_runs import case, error, result, target
from tables import tables

from conformance.report.repro.issue import issue
from conformance.report.repro.reproduction import ReproductionProgram
from conformance.report.terminal import tell
from conformance.results.records import (
    RECORD_LINE,
    RelationBroken,
    ResultRecord,
    RunsDiffer,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import VERDICTS, severity, worst
from conformance.results.wrong_outputs import wrong_in as words
from conformance.results.wrong_outputs import wrong_outputs

FAULTS = {
    "shape": WrongShape(output="present_key", got=(1,), want=(2,)),
    "dtype": WrongDtype(output="output_qk", got="float16", want="float32"),
    "differ": RunsDiffer(output="present_value", step=3),
    "apart": RelationBroken(
        output="output", name="packed_qkv", index=(0,), got=1.0, other=2.0, budget=0.0, share=inf
    ),
}


@pytest.mark.parametrize(("faults", "errors", "wrong"), tables(__file__)["wrong"])
def test_which_outputs_are_wrong(faults: list[str], errors: list[Any], wrong: list[str]) -> None:
    """Faults and figures say which outputs are wrong."""
    figures = [error(**fields) for fields in errors]
    assert [*wrong_outputs([FAULTS[name] for name in faults], figures)] == wrong


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


def test_a_bug_report_says_it() -> None:
    def text(judged: ResultRecord) -> str:
        return issue(case("t/c"), judged, target(), ReproductionProgram("onnxruntime.py", ()))

    assert "\nWrong in presents. The output is right.\n" in text(PRESENTS)
    assert "\nWrong in output and output_qk.\n" in text(wrong_in("output", "output_qk"))
    assert "\nWrong in" not in text(result("t/c"))
