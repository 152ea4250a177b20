"""What a runtime's operator has and no case calls: it is noticed, kept, and told in every view."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from as_user import desk as desk
from synthetic_runs import target

from conformance.base.signature import ATTRIBUTES, INPUTS, OUTPUTS, TYPES
from conformance.harness.protocol import DescribedAnswer, DescribeRequest, parse_answer
from conformance.results.records import TargetRecord, UncalledParts
from conformance.results.uncalled import uncalled_sentences
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

#: What `future_schema` of tests/faulty has.
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
    assert isinstance(answer, DescribedAnswer)
    return uncalled_sentences([DescribedTarget(target_for("cpu"), answer, None, None).record()])


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ({"inputs": {"x": ["int32"]}}, "the input x"),
        ({"outputs": {"x": ["int32"], "y": ["int32"]}}, "the outputs x and y"),
        ({"attributes": {"z": "int", "a": "ints"}}, "the attributes z and a"),
        (
            {"inputs": {"x": ["int32"]}, "attributes": {"y": "int"}},
            "the input x and the attribute y",
        ),
        ({"inputs": {"query": ["float32", "float64"]}}, "the type float64 of query"),
        (
            {"inputs": {"past_key": ["int4"]}, "outputs": {"present_key": ["uint4", "int4"]}},
            "the types int4 and uint4 of past_key and present_key",
        ),
        ({"attributes": {"scale": "floats"}}, "the type floats of scale"),
        # An input and an attribute may have one name.
        ({"inputs": {"scale": ["float32"]}}, "the input scale"),
    ],
)
def test_what_the_signature_lacks_is_told(more: dict[str, Any], parts: str) -> None:
    assert told(**more) == [f"r 2 has {parts}, which no case calls."]


def test_what_the_signature_has_is_no_news() -> None:
    """Nor is what an older release lacks."""
    assert told() == []
    assert told(inputs={"query": ["float32"]}) == []
    nothing = TargetRecord(name="cpu", ep="cpu", unavailable="There is no onnxruntime.")
    assert uncalled_sentences([nothing, target()]) == []


def described(uncalled: UncalledParts, name: str = "cpu@2") -> TargetRecord:
    record = target(name)
    assert record.describe is not None
    return record.model_copy(
        update={"describe": record.describe.model_copy(update={"uncalled": uncalled})}
    )


def test_two_targets_of_one_runtime_are_told_once() -> None:
    parts = [UncalledParts(declared_by=f"r {n}", inputs=("x",)) for n in (2, 2, 3)]
    sentences = uncalled_sentences(map(described, parts))
    assert sentences == [f"r {n} has the input x, which no case calls." for n in (2, 3)]


def test_a_sentence_is_short_and_printable_whatever_a_runner_says() -> None:
    names = tuple(f"\x1b[2J\n\u202e{n}{'x' * 200}" for n in range(10_000))
    parts = UncalledParts(
        declared_by=names[0],
        inputs=names,
        outputs=names,
        attributes=names,
        types={name: (name,) for name in names},
    )
    (sentence,) = uncalled_sentences([described(parts)])
    assert len(sentence) < 4_000
    assert sentence.isprintable()
    assert sentence.count("9,992 more") == 5
