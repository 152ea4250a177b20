"""Cases whose model is a small graph: from the file to its call, its inputs and its values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from case_files import cases_of
from graph_models import ATTENTION, graph_cases, model_of
from shipped import cases_of_theme

from conformance.base.paths import data_path
from conformance.bundle.prepare import digest_of, prepare
from conformance.bundle.script import script_of
from conformance.case.call import GraphCall
from conformance.case.features import features_of
from conformance.run.records import case_record, corpus_digest


def block(name: str) -> bytes:
    """A graph of cases/blocks."""
    return (data_path("cases") / "blocks" / f"{name}.onnx").read_bytes()


# The call


def test_the_fields_of_a_graph_are_those_of_its_first_attention(tmp_path: Path) -> None:
    fields = "sequence_length: 3\npast_sequence_length: 4"
    (case,) = graph_cases(tmp_path, block("borrowing_window_float32"), fields)
    call = case.call
    assert isinstance(call, GraphCall)
    assert case.is_graph
    assert (call.num_heads, call.kv_num_heads, call.head_size) == (4, 1, 16)
    assert (call.rotary, call.local_window_size, call.key_value) == ("half_split", 8, "new")
    found = features_of(call, case.steps)
    told = [found[name] for name in ("phase", "window", "presents")]
    assert told == ["chunked_prefill", "longer", "both"]
    assert case.title == "Several tokens on a past, MQA, rotary, window beyond all tokens"


def test_the_inputs_of_a_graph_have_the_shapes_of_the_call(tmp_path: Path) -> None:
    fields = "batch_size: 2\nsequence_length: 3\npast_sequence_length: 4"
    (case,) = graph_cases(tmp_path, block("borrowing_window_float32"), fields)
    (step,) = case.steps
    assert {tensor.name: tensor.shape for tensor in step.inputs} == {
        "query": (2, 3, 64),
        "key": (2, 3, 16),
        "value": (2, 3, 16),
        "past_key": (2, 1, 4, 16),
        "past_value": (2, 1, 4, 16),
        "seqlens_k": (2,),
        "total_sequence_length": (),
        "borrower_query": (2, 3, 64),
    }
    assert [weight.name for weight in step.weights] == ["cos_cache", "sin_cache"]


def test_a_static_cache_has_its_capacity_in_every_past(tmp_path: Path) -> None:
    fields = "past_sequence_length: 4\nmax_sequence_length: 9"
    (case,) = graph_cases(tmp_path, block("borrowing_window_float32"), fields)
    shapes = {tensor.name: tensor.shape for tensor in case.steps[0].inputs}
    assert shapes["past_key"] == (1, 1, 9, 16)
    (step,) = script_of(case.call).steps
    assert script_of(case.call).compute(step.inputs)["present_key"].value.shape == (1, 1, 9, 16)


def test_a_shared_buffer_is_that_of_each_past_with_its_present(tmp_path: Path) -> None:
    fields = "past_sequence_length: 4\nmax_sequence_length: 9\nshared_buffer: true"
    (case,) = graph_cases(tmp_path, block("borrowing_window_float32"), fields)
    (step,) = script_of(case.call).steps
    assert step.aliases == {"present_key": "past_key", "present_value": "past_value"}
    assert case_record(case).call.shared_buffer


def test_symbols_have_any_name_where_the_role_of_an_input_tells_them(tmp_path: Path) -> None:
    text = ATTENTION.replace("B,", "some,").replace("[B]", "[some]").replace("P,", "rows,")
    (case,) = graph_cases(tmp_path, model_of(text), "batch_size: 2\npast_sequence_length: 3")
    assert case.steps[0].inputs[3].shape == (2, 1, 3, 8)


def test_functions_are_expanded(tmp_path: Path) -> None:
    text = ATTENTION.replace("  output,", "  doubled = local.twice (query)\n  output,")
    text = text.replace("(query, key, value, past", "(doubled, key, value, past")
    head = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "local" : 1]>\n'
    function = '<domain: "local", opset_import: ["" : 18]>\ntwice (x) => (y) { y = Add (x, x) }'
    model = onnx.parser.parse_model(f"{head}{text}{function}")
    (case,) = graph_cases(tmp_path, model.SerializeToString())
    assert case_record(case).call.graph is not None
    assert dict(case_record(case).call.graph.nodes) == {"Add": 1, "GroupQueryAttention": 1}


# Values


def test_the_values_of_an_attention_are_those_of_a_case_of_that_node(tmp_path: Path) -> None:
    (case,) = graph_cases(tmp_path, model_of(ATTENTION), "sequence_length: 3")
    (alone,) = cases_of(
        tmp_path,
        "- {name: one, sequence_length: 3, num_heads: 2, kv_num_heads: 1, head_size: 8,"
        " cache: concatenated}",
    )
    mine, own = (script_of(each.call).steps[0].inputs for each in (case, alone))
    for name in ("query", "key", "value", "seqlens_k"):
        np.testing.assert_array_equal(mine[name], own[name])


def test_the_values_of_a_decoder(tmp_path: Path) -> None:
    fields = "batch_size: 2\nsequence_length: 5\ntotal_sequence_lengths: [5, 2]\ndtype: float16"
    (case,) = graph_cases(tmp_path, block("decoder_int4_float16"), fields)
    script = script_of(case.call)
    inputs = script.steps[0].inputs
    assert inputs["attention_mask"].tolist() == [[1] * 5, [1, 1, 0, 0, 0]]
    assert inputs["input_ids"].dtype == np.int64
    assert 0 <= inputs["input_ids"].min() < inputs["input_ids"].max() < 96
    tensors = script.model.graph.initializer
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    assert weights["q_proj.codes"].std() > 60
    norm = weights["input_layernorm.weight"]
    assert 0.5 <= norm.min() < 1 < norm.max()
    made = script.compute(inputs)["logits"]
    assert 0.5 < made.value[made.defined].std() < 5  # the magnitude of numbers is kept


def test_a_weight_is_drawn_by_the_seed_and_its_name(tmp_path: Path) -> None:
    def weight(seed: int) -> np.ndarray:
        fields = f"sequence_length: 3\nseed: {seed}"
        (case,) = graph_cases(tmp_path, block("qkv_matmul_float32"), fields)
        first = script_of(case.call).model.graph.initializer[2]
        return onnx.numpy_helper.to_array(first)

    assert np.array_equal(weight(0), weight(0))
    assert not np.array_equal(weight(0), weight(1))


# Files that cannot be a case: transcripts/mistakes_in_graphs.txt


@pytest.mark.parametrize(
    "change",
    [
        ("(float[B, S, 16] output)", "(float[B, S, 16] output, float[B, 1, T, 8] present_key)"),
        ("output, present_key, present_value =", "output, pk, pv ="),
    ],
)
def test_presents_may_be_outputs_or_not(tmp_path: Path, change: tuple[str, str]) -> None:
    assert graph_cases(tmp_path, model_of(ATTENTION.replace(*change)))


# What depends on the content


def test_the_bundle_depends_on_the_content_of_the_file(tmp_path: Path) -> None:
    (one,) = graph_cases(tmp_path, block("borrowing_window_float32"))
    (other,) = graph_cases(tmp_path, block("borrowing_float32"))
    assert digest_of(one.call) != digest_of(other.call)
    assert corpus_digest([one]) != corpus_digest([other])
    told = json.loads(prepare(one.call).files["case.json"])
    assert (told["graph"], len(told["content"])) == ("graph.onnx", 64)


# The shipped graphs


def test_a_standard_attention_computes_what_the_operator_computes() -> None:
    """microsoft/onnxruntime#28188: the mixed graph and its counterpart."""
    cases = {case.label: case for case in cases_of_theme("blocks")}
    mixed = {label: case for label, case in cases.items() if case.name == "mixed"}
    assert len(mixed) == 4
    for label, case in mixed.items():
        counterpart = cases[label.replace("mixed", "borrow_output")]
        made = []
        for each in (case, counterpart):
            script = script_of(each.call)
            made.append((script.steps[0].inputs, script.compute(script.steps[0].inputs)))
        (given, one), (others, other) = made
        assert given.keys() - others.keys() == {"position_ids"}
        for name, array in others.items():
            np.testing.assert_array_equal(given[name], array)
        for name in ("output", "borrower_output"):
            np.testing.assert_allclose(one[name].value, other[name].value, rtol=1e-12, atol=1e-12)


def test_the_record_of_a_graph_has_its_content_and_its_constants() -> None:
    case = next(case for case in cases_of_theme("blocks") if case.name == "decoder")
    graph = case_record(case).call.graph
    assert graph is not None
    assert graph.file == "blocks/decoder_float32.onnx"
    assert graph.nodes["MatMul"] == 8
    assert [weight.name for weight in graph.weights if weight.shape == (96, 64)] == [
        "embed_tokens.weight"
    ]
    assert all(weight.recipe is not None for weight in graph.weights)
