"""What a runtime's operator has and no case calls: it is noticed, kept, and told in every view."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from as_user import Desk, Gqa
from synthetic_runs import target
from tables import tables

from conformance.harness.protocol import DescribeRequest, parse_answer
from conformance.operator.signature import ATTRIBUTES, INPUTS, OUTPUTS, TYPES
from conformance.report.repro.escaping import prose
from conformance.results.records import TargetRecord
from conformance.results.uncalled import uncalled_sentences
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

TABLES = tables(__file__)

#: What `future_schema` of tests/support/faulty has.
SENTENCE = (
    "miniature 2.0 has the input query_future, the output output_future, the attributes one_future "
    "and two_future and the type float64 of query, which no case calls."
)


# Compared with the signature

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "inputs": {one.name: TYPES[one.type] for one in INPUTS},
    "outputs": {one.name: TYPES[one.type] for one in OUTPUTS},
    "attributes": {one.name: one.kind for one in ATTRIBUTES},
}


def told(**more: Mapping[str, Any]) -> list[str]:
    """The sentences on a runtime with the known operator, and ``more`` of its sides."""
    operator = {side: {**known, **more.get(side, {})} for side, known in KNOWN.items()}
    about = {"id": 1, "outcome": "described", "runtime": "r", "version": "2", "device": "d"}
    about |= {"execution_provider": None, "dtypes": ["float32"]}
    about["operator"] = {"declared_by": "r 2", **operator}
    answer = parse_answer(json.dumps(about), DescribeRequest(id=1))
    return uncalled_sentences([DescribedTarget(target_for("cpu"), answer, None, None).record()])


@pytest.mark.parametrize(("more", "parts"), TABLES["lacking"])
def test_what_the_signature_lacks_is_told(more: dict[str, Any], parts: str) -> None:
    assert told(**more) == [f"r 2 has {parts}, which no case calls."]


def test_what_the_signature_has_is_no_news() -> None:
    """Nor is what an older release lacks."""
    assert told() == []
    assert told(inputs={"query": ["float32"]}) == []
    nothing = TargetRecord(name="cpu", ep="cpu", unavailable="There is no onnxruntime.")
    assert uncalled_sentences([nothing, target()]) == []


def test_every_form_with_room_for_it_says_so(desk: Desk, gqa: Gqa) -> None:
    recorded = desk.folder / "future.jsonl"
    runners = ("--ep", desk.runner("future_schema"), "--ep", desk.runner("correct"))
    assert gqa("run", "three.yaml", *runners, "--results", str(recorded)).status == 0
    forms = {form: desk.folder / f"page.{form}" for form in ("markdown", "junit", "json", "html")}
    options = (word for form, file in forms.items() for word in (f"--{form}", str(file)))
    assert gqa("report", str(recorded), *options).status == 0
    texts = {form: file.read_text() for form, file in forms.items()}
    assert f"\n- {prose(SENTENCE)}\n" in texts["markdown"].partition("## Score")[0]
    page = texts["html"]
    assert page.index('id="uncalled"') < page.index(SENTENCE) < page.index('id="matrix"')
    assert texts["junit"].count(f'<property name="uncalled" value="{SENTENCE}" />') == 1
    parts, none = (one["describe"]["uncalled"] for one in json.loads(texts["json"])["targets"])
    assert (parts["inputs"], none) == (["query_future"], None)
    assert json.loads(texts["json"])["uncalled"] == [SENTENCE]
