"""The relations: a call and its variant agree, and a difference is noticed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from as_user import Desk, Gqa
from case_files import cases_of, complaints, entries, write
from judged import right_by
from onnx.reference import ReferenceEvaluator
from shipped import shipped_cases

from conformance.base.array_types import NUMPY
from conformance.bundle.prepare import Prepared, digest_of, prepare
from conformance.bundle.variants import Outputs, comparisons, variant_script
from conformance.case.case import Case
from conformance.case.load import load
from conformance.case.relations import CANNOT_SHARE, RELATIONS, RelationName
from conformance.graph.nodes import is_attention
from conformance.judge.verdict import relate
from conformance.operator.call import CALL_FIELDS, Call
from conformance.operator.signature import ATTRIBUTES, Attribute
from conformance.oracle.tolerance import CONSTANTS, shares
from conformance.results.records import RelationRecord

SHIPPED = [case for case in shipped_cases() if case.relation]


def both(case: Case) -> tuple[Prepared, Prepared]:
    return prepare(case.call), prepare(case.call, relation=case.relation)


def related(case: Case, own: Outputs, other: Outputs, target_class: Any = "cpu") -> RelationRecord:
    mine, theirs = both(case)
    values = (own, mine.expected), (other, theirs.expected)
    return relate(case.call, case.relation, *values, target_class)[0]


def shipped(relation: RelationName, dtype: str = "float32") -> Case:
    return next(c for c in SHIPPED if c.relation == relation and c.call.dtype == dtype)


def test_every_relation_has_a_case_and_a_rule() -> None:
    assert {case.relation for case in SHIPPED} == set(RELATIONS) == set(get_args(RelationName))


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_call_and_its_variant_agree_in_the_oracle(relation: RelationName) -> None:
    """In the oracle, which computes each from its own inputs and does not use relations."""
    exact = RELATIONS[relation].closeness != "storage"
    for case in SHIPPED:
        if case.relation != relation:
            continue
        own, other = both(case)
        assert own.unjudged is other.unjudged is None
        values = [[{n: e.value for n, e in s.items()} for s in b.expected] for b in (own, other)]
        units = [[{n: e.unit for n, e in s.items()} for s in b.expected] for b in (own, other)]
        compared = 0
        for pair in comparisons(case.call, relation):
            unit = pair.own(units[0]) + pair.other(units[1])
            defined = ~np.isnan(unit)
            difference = np.abs(pair.own(values[0]) * pair.factor - pair.other(values[1]))[defined]
            # In a loop in a coarse dtype, the second step has the rounded present of the first.
            carried = case.call.dtype != "float32" and len(other.steps) > 1
            bound = unit[defined] if carried or not exact else 1e-6 * np.maximum(unit[defined], 1)
            assert np.all(difference <= bound), case.id
            compared += int(np.count_nonzero(defined))
        assert compared > 0, case.id


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_standard_operators_agree_with_the_oracle(dtype: str) -> None:
    """With onnx.reference, which runs the same graph that a runtime gets."""
    for case in SHIPPED:
        if case.relation != "standard_attention" or case.call.dtype != dtype:
            continue
        script = variant_script(case.call, "standard_attention")
        onnx.checker.check_model(script.model, full_check=True)
        inputs = script.steps[0].inputs
        outputs = ReferenceEvaluator(script.model).run(None, inputs)
        wanted = both(case)[1].expected[0]
        for name, got in zip(script.outputs, outputs, strict=True):
            share = shares(got.astype(np.float64), wanted[name].value, wanted[name].unit, "cpu")
            assert share.max() < 2, f"{case.id}: {name}"  # it rounds scores to storage as well


def test_equal_answers_agree_to_the_bit() -> None:
    case = shipped("scale_in_query")
    found = related(case, right_by(both(case)[0]), right_by(both(case)[1]))
    assert (found.share, found.identical) == (0.0, True)


@pytest.mark.parametrize("target_class", ["cpu", "gpu"])
def test_where_a_relation_is_exact_one_bit_is_too_much(target_class: str) -> None:
    case = shipped("scale_in_query")
    own, other = (right_by(bundle) for bundle in both(case))
    value = other[0]["output"][1, 2, 3]
    other[0]["output"][1, 2, 3] = np.nextafter(value, np.float32(9))
    found = related(case, own, other, target_class)
    assert found.share == np.inf
    assert not found.identical
    assert found.sentence.startswith("output is ")
    assert found.sentence.endswith("at [1, 2, 3] (they must be equal)")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_otherwise_each_variant_may_differ_by_its_rounding_errors(dtype: str) -> None:
    """A float16 kernel's internal errors are larger: two kernels of the CPU do not have them."""
    case = shipped("token_by_token", dtype)
    mine, theirs = both(case)
    own, other = right_by(mine), right_by(theirs)
    unit = theirs.expected[3]["output"].arithmetic
    allowed = 2 * CONSTANTS["cpu"] * unit[0, 0, 5]
    step = other[3]["output"]
    value = float(own[0]["output"][0, 3, 5])
    for factor in (0.9, 1.6):
        step[0, 0, 5] = np.array(value + factor * allowed).astype(NUMPY[dtype])
        difference = abs(float(step[0, 0, 5]) - value)
        found = related(case, own, other)
        assert found.share == pytest.approx(difference / allowed, rel=0.05)
        assert (found.share <= 1) == (factor < 1)
    whole = theirs.expected[3]["output"].unit[0, 0, 5]
    assert unit[0, 0, 5] < (0.6 if dtype == "float16" else 1.0001) * whole
    assert related(case, own, other, "gpu").share <= found.share


def test_doubling_is_exact_but_for_subnormal_numbers() -> None:
    case = shipped("doubled_values", "float16")
    own, other = (right_by(bundle) for bundle in both(case))
    own[0]["output"][0, 0, 0], other[0]["output"][0, 0, 0] = 3 * 2.0**-24, 7 * 2.0**-24
    assert related(case, own, other).share == 0.0
    other[0]["output"][0, 0, 1] *= np.float16(1.001)
    assert related(case, own, other).share == np.inf


def test_signalling_nan_is_compared_without_a_warning() -> None:
    """As in memory that no kernel has written; NumPy warns of it, on the user's terminal."""
    case = shipped("doubled_values", "float16")
    own, other = (right_by(bundle) for bundle in both(case))
    own[0]["output"].view(np.uint16)[0, 0, 0] = 0x7D00
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert related(case, own, other).share == np.inf


def test_elements_undefined_in_either_variant_are_not_compared() -> None:
    case = next(c for c in SHIPPED if c.id.endswith("alone[dtype=float32,how=prompt_ragged]"))
    own, other = (right_by(bundle) for bundle in both(case))
    own[0]["output"][1, 4:] = np.nan
    own[0]["present_key"][2, :, 1:] = np.inf
    assert related(case, own, other).share == 0.0
    own[0]["output"][1, 3, 0] = np.nan
    assert related(case, own, other).share == np.inf


# User interface

EXACT = entries("- {name: faulty, relation: scale_in_query, batch_size: 2, scale: 0.25}")


@pytest.fixture
def run_exact(desk: Desk, gqa: Gqa, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a run says whose runner has its fault in the variant."""

    def run(runner: str, status: int) -> str:
        (case,) = load([write(desk.folder, EXACT, "exact.yaml")])
        monkeypatch.setenv("FAULT_ON", digest_of(case.call, "scale_in_query"))
        done = gqa("run", "exact.yaml", "--ep", desk.runner(runner))
        assert done.status == status, done.both
        return " ".join(done.both.split())

    return run


CHANGED = "the same call with the query multiplied by four and the scale divided by four"


@pytest.mark.parametrize(
    ("runner", "status", "parts"),
    [
        (
            "last_bit",
            1,
            [
                ": wrong",
                f"the variant ({CHANGED})",
                "(they must be equal); multiplication by a power of two does not round.",
            ],
        ),
        ("correct", 0, ["the scale divided by four) agrees bit for bit."]),
        ("dies", 1, [": crash", f"The variant ({CHANGED}): "]),
    ],
)
def test_a_fault_in_the_variant_is_one_of_the_case(
    run_exact: Callable[..., str], runner: str, status: int, parts: list[str]
) -> None:
    said = run_exact(runner, status)
    assert [part for part in parts if part not in said] == []


# Case files


@pytest.mark.parametrize(
    "attribute",
    [a for a in ATTRIBUTES if not a.required and a.name in CALL_FIELDS],
    ids=lambda attribute: attribute.name,
)
def test_the_standard_operator_has_no_attribute_but_the_heads(attribute: Attribute) -> None:
    """An attribute that it ignored would make the two calls differ."""
    misfit = RELATIONS["standard_attention"].misfit
    value = {"int": 3, "float": 0.25, "string": "PER_TENSOR"}[attribute.kind]
    plain = Call(sequence_length=3)
    assert misfit(plain) is None
    assert misfit(replace(plain, **{attribute.name: attribute.default})) is None
    assert misfit(replace(plain, **{attribute.name: value})) is not None


def test_a_static_cache_has_room_for_padded_chunks() -> None:
    misfit = RELATIONS["in_padded_chunks"].misfit
    for call in (
        Call(sequence_length=5),
        Call(sequence_length=5, max_sequence_length=9),
        Call(sequence_length=2, past_sequence_length=6, max_sequence_length=12),
        Call(batch_size=2, sequence_length=5, total_sequence_lengths=(5, 3), max_sequence_length=9),
    ):
        assert misfit(call) is None
        if call.max_sequence_length is not None:
            short = replace(call, max_sequence_length=call.max_sequence_length - 1)
            assert misfit(short) == "a static cache must have four spare rows"


def test_the_total_of_a_padded_chunk_is_at_least_its_rows() -> None:
    """Those of a prompt of three tokens are four, padding included; runtimes demand it."""
    call = Call(sequence_length=3, max_sequence_length=11)
    (step,) = variant_script(call, "in_padded_chunks").steps
    assert step.inputs["total_sequence_length"] == step.inputs["query"].shape[1] == 4


def test_a_variant_with_query_seqlens_needs_a_written_contract(tmp_path: Path) -> None:
    """A runtime that takes none computes the call, and must not be blamed for its variant."""
    text = entries("- {name: a, sequence_length: 5, relation: in_padded_chunks}")
    (said,) = complaints(
        tmp_path, text.replace("defaults:\n  contract: {source: a document}\n", "")
    )
    assert said.endswith(" no contract follows from the features of this call; write one")


def test_a_relation_can_be_an_axis(tmp_path: Path) -> None:
    forms = "{packed: {relation: packed_qkv}, window: {relation: long_window}}"
    body = f"- {{name: a, sequence_length: 4, matrix: {{form: {forms}}}}}"
    cases = cases_of(tmp_path, body)
    assert [case.relation for case in cases] == ["packed_qkv", "long_window"]


def test_a_graph_in_standard_operators_has_no_other_node() -> None:
    case = shipped("standard_operators")
    own, other = (bundle.script.model.graph for bundle in both(case))
    assert any(map(is_attention, own.node))
    assert not any(map(is_attention, other.node))


def test_only_a_graph_that_can_be_rewritten_has_it_in_standard_operators() -> None:
    misfit, case = RELATIONS["standard_operators"].misfit, shipped("standard_operators")
    assert misfit(case.call) is None
    assert misfit(Call(sequence_length=3)) == "the call must have a graph"
    assert misfit(replace(case.call, shared_buffer=True)) == CANNOT_SHARE
    model = onnx.load_model_from_string(case.call.content)
    model.opset_import[0].version = 12
    old = misfit(replace(case.call, content=model.SerializeToString()))
    assert old == "the graph has no such form: It has operator set 12, and 13 is the lowest known"
    model = onnx.load_model_from_string(case.call.content)
    for node in model.graph.node:
        node.attribute.append(onnx.helper.make_attribute("causal", 0))
    content = model.SerializeToString()
    why = misfit(replace(case.call, content=content))
    assert why is not None
    assert why.endswith("has no such form: a window without a causal mask has no meaning")
