"""The messages and their JSON Schemas; transcripts have more wrong answers (lies_*.txt)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from tables import tables

from conformance.harness.protocol import (
    DescribeRequest,
    ProtocolError,
    RunRequest,
    StepFiles,
    parse_answer,
    schemas,
    to_line,
)


def query_of(step: int) -> str:
    return f"test_data_set_{step}/input_0.pb"


DESCRIBE = DescribeRequest(id=1)
RUN = RunRequest(
    id=8,
    bundle="/cache/abc",
    out="/tmp/out/8",
    steps=(
        StepFiles(files={"query": query_of(0)}),
        StepFiles(files={"query": query_of(1)}, carry={"past_key": "present_key"}, keep=3),
    ),
)
TABLES = tables(__file__)
DESCRIBED, OPERATOR, RAN, REJECTED, UNAVAILABLE, COMPILING = TABLES["answers"].values()


def parse(answer: object, request: Any = RUN) -> Any:
    return parse_answer(json.dumps(answer).encode(), request)


def refusal(answer: object, request: Any = RUN) -> str:
    with pytest.raises(ProtocolError) as caught:
        parse(answer, request)
    return str(caught.value)


def with_operator(**fields: Any) -> dict[str, Any]:
    """A description with an operator, and other ``fields`` of it."""
    return {**DESCRIBED, "operator": {**OPERATOR, **fields}}


def without(answer: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != field}


def test_a_request_is_one_complete_line_of_ascii() -> None:
    request = RUN.model_copy(update={"bundle": "/cache/\u2028\nä"})
    line = to_line(request)
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    assert json.loads(line) == {
        "id": 8,
        "cmd": "run",
        "bundle": "/cache/\u2028\nä",
        "out": "/tmp/out/8",
        "repeat": 2,
        "steps": [
            {
                "files": {"query": query_of(0)},
                "carry": {},
                "keep": None,
                "share": {},
                "may_be_rejected": False,
            },
            {
                "files": {"query": query_of(1)},
                "carry": {"past_key": "present_key"},
                "keep": 3,
                "share": {},
                "may_be_rejected": False,
            },
        ],
    }
    assert json.loads(to_line(DESCRIBE)) == {"id": 1, "cmd": "describe"}


def test_good_answers() -> None:
    described = parse(DESCRIBED, DESCRIBE)
    assert described.dtypes == ("float32", "float16")
    assert (described.adapter, described.name, described.threads) == (None, None, None)
    assert described.operator is None
    ran = parse(RAN)
    may = RUN.steps[1].model_copy(update={"may_be_rejected": True})
    goes_on = {**RAN, "runs": [[{"output": name}, "no"] for name in ("a", "b")]}
    parsed = parse(goes_on, RUN.model_copy(update={"steps": (RUN.steps[0], may)}))
    assert parsed.runs[1] == ({"output": "b"}, "no")
    assert ran.runs[1][0] == {"output": "c"}
    assert (ran.ms.load, ran.ms.run, ran.kernels) == (0.3, 1.0, None)
    assert parse({**RAN, "kernels": ["flash", "cudnn_9-x"]}).kernels == ("flash", "cudnn_9-x")
    for short in (REJECTED, UNAVAILABLE, without(RAN, "placement")):
        assert parse(short)
    assert parse({**UNAVAILABLE, "id": 1, "fix": "pip install x"}, DESCRIBE)
    assert parse({**DESCRIBED, "execution_provider": None}, DESCRIBE)
    more = {"adapter": "nvidia-blackwell_2.0", "name": "openvino-int8", "threads": "default"}
    named = parse({**DESCRIBED, **more}, DESCRIBE)
    assert {field: getattr(named, field) for field in more} == more
    other_order = parse(with_operator(inputs={"query": ["float16", "float32"]}), DESCRIBE)
    assert parse(with_operator(), DESCRIBE) == other_order


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (8, "an object: 8"),
        (without(RAN, "id"), "lacks id"),
        (without(RAN, "outcome"), "'outcome'"),
        ({**DESCRIBED, "id": 8}, "'described' found using 'outcome'"),
        (without(RAN, "ms"), "lacks ms"),
        ({**RAN, "runs": [[{"output": "a"}, "no"]] * 2}, "it ran, but refuses step 1"),
        ({**RAN, "kernels": ["Flash attention"]}, "kernels.0 is "),
        ({**RAN, "kernels": ["x"] * 21}, "kernels is "),
        ({**RAN, "ms": {"load": 1}}, "lacks ms.run"),
        ({**RAN, "extra\x1b": 1}, "unknown field extra⟨U+001B⟩"),
        ({**RAN, "runs": [RAN["runs"][0], [{"output": "x"}]]}, "run 1 of the answer holds 1 steps"),
        ({**RAN, "runs": [[{}, {"output": "b"}]] * 2}, "runs.0.0 is {}"),
        *(
            ({**RAN, "runs": [[{"output": name}, {"output": "b"}]] * 2}, "runs.0.0.output is ")
            for name in ("/etc/passwd", "a/b", ".a", "", "a\nb")
        ),
        ({**REJECTED, "step": 2}, "refuses step 2 of a case with 2"),
        ({**REJECTED, "stage": "compile"}, 'stage is "compile"'),
        ({**UNAVAILABLE, "reason": ""}, "reason"),
        (COMPILING, "it says more than once that it is compiling"),
        ({**COMPILING, "seconds": 60}, "unknown field seconds"),
    ],
)
def test_wrong_answers_to_run(answer: object, words: str) -> None:
    assert words in refusal(answer)


def test_schemas_agree_with_the_models() -> None:
    request = jsonschema.Draft202012Validator(schemas()["request.json"])
    answer = jsonschema.Draft202012Validator(schemas()["answer.json"])
    for made in (DESCRIBE, RUN):
        request.validate(json.loads(to_line(made)))
    assert not request.is_valid({"id": 1})
    assert not request.is_valid({**json.loads(to_line(RUN)), "out": "relative"})
    on_adapter = {**DESCRIBED, "adapter": "lavapipe"}
    named = {**DESCRIBED, "name": "nxrt", "threads": 4}
    described = (DESCRIBED, on_adapter, named, with_operator())
    for good in (*described, RAN, REJECTED, UNAVAILABLE, COMPILING):
        answer.validate(good)
    for bad in (
        {**RAN, "extra": 1},
        without(RAN, "ms"),
        {**RAN, "runs": [[{"output": "../a"}]]},
        {**DESCRIBED, "name": "OpenVINO"},
        {**DESCRIBED, "version": "1\n2"},
        with_operator(attributes={f"x{n}": "int" for n in range(201)}),
    ):
        assert not answer.is_valid(bad)
