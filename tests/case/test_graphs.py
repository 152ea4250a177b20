"""Cases whose model is a small graph: from the file to its call, its inputs and its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from case_files import cases_of
from goldens import check_golden
from graph_models import ATTENTION, graph_cases, model_of
from shipped import cases_of_theme

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.bundle.prepare import digest_of, prepare
from conformance.bundle.script import script_of
from conformance.operator.call import GraphCall
from conformance.operator.features import features_of
from conformance.results.descriptions import case_record
from conformance.run.recording import corpus_digest


def block(name: str) -> bytes:
    """A graph of cases/blocks."""
    return (data_path("cases") / "blocks" / f"{name}.onnx").read_bytes()


# The call

#: Fields of a graph's main node.
MAIN = {"num_heads", "kv_num_heads", "head_size", "rotary", "local_window_size", "key_value"}


SYMBOLS = ATTENTION.replace("B,", "some,").replace("[B]", "[some]").replace("P,", "rows,")
CALLING = ATTENTION.replace("  output,", "  doubled = local.twice (query)\n  output,")
FUNCTION = f"""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "local" : 1]>
{CALLING.replace("(query, key, value, past", "(doubled, key, value, past")}
<domain: "local", opset_import: ["" : 18]> twice (x) => (y) {{ y = Add (x, x) }}"""
WINDOW = block("borrowing_window_float32")
#: Graphs, and the fields of their cases.
CALLS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "the first attention counts": (WINDOW, {"sequence_length": 3, "past_sequence_length": 4}),
    "a batch": (WINDOW, {"batch_size": 2, "sequence_length": 3, "past_sequence_length": 4}),
    "a static cache": (WINDOW, {"past_sequence_length": 4, "max_sequence_length": 9}),
    "a shared buffer": (
        WINDOW,
        {"past_sequence_length": 4, "max_sequence_length": 9, "shared_buffer": "true"},
    ),
    "other symbols": (model_of(SYMBOLS), {"batch_size": 2, "past_sequence_length": 3}),
    "a function": (onnx.parser.parse_model(FUNCTION).SerializeToString(), {"sequence_length": 3}),
}


def test_the_calls_of_graphs(tmp_path: Path) -> None:
    told = []
    for name, (content, given) in CALLS.items():
        fields = "\n".join(f"{name}: {value}" for name, value in given.items())
        (case,) = graph_cases(tmp_path, content, fields)
        assert isinstance(case.call, GraphCall)
        assert case.is_graph
        script, record = script_of(case.call), case_record(case).call
        (step,), (tensors,) = script.steps, case.steps
        found, made = features_of(case.call, case.steps), script.compute(step.inputs)
        told += [
            f"=== {name}: {case.title}",
            f"fields: { {name: v for name, v in vars(case.call).items() if name in MAIN} }",
            f"features: { {name: value for name, value in found.items() if value != 'none'} }",
            f"nodes: {dict(record.graph.nodes)}, weights: {[w.name for w in tensors.weights]}",
            f"buffers: {step.aliases}, shared: {record.shared_buffer}",
            *(f"{tensor.name}: {tensor.shape}" for tensor in tensors.inputs),
            *(f"→ {output}: {each.value.shape}" for output, each in made.items()),
        ]
    check_golden("graphs.txt", "\n".join(told) + "\n")


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


def test_functions_that_would_make_a_huge_graph_are_refused(tmp_path: Path) -> None:
    head = '<domain: "local", opset_import: ["" : 18, "local" : 1]>'
    calls = [
        f"{head} f{at} (x) => (z) {{ y = local.f{at + 1} (x)\n z = local.f{at + 1} (y) }}"
        for at in range(40)
    ]
    graph = FUNCTION.partition("<domain")[0].replace("local.twice", "local.f0")
    text = "\n".join((graph, *calls, f"{head} f40 (x) => (y) {{ y = Add (x, x) }}"))
    content = onnx.parser.parse_model(text).SerializeToString()
    with pytest.raises(InputError, match=r"its functions cannot be expanded: they would make "):
        graph_cases(tmp_path, content, "sequence_length: 3")
