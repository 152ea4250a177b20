"""Standard Attention nodes of a mixed model: read as the operator, and called alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from as_user import Desk, Done, Gqa
from attention_models import Layer, decoder, saved
from judged import ran
from onnx import TensorProto, helper
from tables import tables

from conformance.base.paths import ROOT
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.load import load_file
from conformance.graph.describe import Unclear
from conformance.graph.shapes import ValueType
from conformance.graph.standard_attention import as_operator
from conformance.judge.verdict import judge
from conformance.model.calls.stages import Lengths
from conformance.model.calls.subject import subject_of

onnxruntime = pytest.importorskip("onnxruntime")
TABLES = tables(__file__)

#: The runner whose standard Attention with a past is wrong.
WRONG = ROOT / "tests" / "support" / "wrong_attention.py"
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
FEW = ("--lengths", "3,12", "--ways", "chat")


def mixed(opset: int = 24, **attributes: Any) -> onnx.ModelProto:
    """Three layers, the last two of which are a standard Attention."""
    model = decoder(Layer(), Layer(), Layer())
    model.opset_import[0].version = opset
    kinds = {**HEADS, "is_causal": 1, **attributes}
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention" and "layers.0" not in node.name:
            given, outputs = [*node.input[:3], "", *node.input[3:5]], [*node.output]
            name = node.name.replace("GroupQueryAttention", "Attention")
            node.CopyFrom(helper.make_node("Attention", given, outputs, name, **kinds))
    return model


def check(gqa: Gqa, model: onnx.ModelProto, folder: Path, *options: str) -> Done:
    return gqa("check", str(saved(model, folder)), *FEW, *options)


def rows(done: Done) -> dict[str, str]:
    """The rows of the table, by the numbers of their layers."""
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    return {line.partition(" ")[0]: line for line in lines if re.match(r"\d(–\d)? ", line)}


@pytest.fixture
def wrong(desk: Desk) -> str:
    """A target whose standard Attention with a past is wrong."""
    runner = ROOT / "runners" / "onnxruntime" / "runner.py"
    return f"exec:{desk.program('wrong', sys.executable, str(WRONG), str(runner), '--ep', 'cpu')}"


def test_a_wrong_node_has_a_red_row(gqa: Gqa, wrong: str, tmp_path: Path) -> None:
    """The graph is not blamed, although all nodes of the operator are right."""
    done = check(gqa, mixed(), tmp_path, "--ep", wrong)
    assert done.status == 1
    found = rows(done)
    assert found["0"].endswith("✓ right (5 calls)")
    assert (
        found["1–2"] == "1–2 standard Attention, global, 4:2 heads of 16, float32 ✗ silently wrong"
    )
    assert "in one chat silently wrong in layers 1–2." in done.out
    assert "case         tiny/standard_global[stage=prompt_3]" in done.out
    assert "The graph is wrong" not in done.out


def test_a_right_node_is_right_and_its_cases_are_kept(gqa: Gqa, wrong: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept" / "cases.yaml"
    kept.parent.mkdir()
    done = check(gqa, mixed(), tmp_path, "--save-cases", str(kept))
    assert done.status == 0, done.both
    assert rows(done)["1–2"].endswith("4:2 heads of 16, float32 ✓ right (5 calls)")
    (tmp_path / "tiny.onnx").unlink()
    again = gqa("run", str(kept), "-k", "standard_global", "--ep", wrong)
    assert (again.status, "5 wrong" in again.out) == (1, True), again.both


def test_a_node_that_is_no_call_is_part_of_the_model(gqa: Gqa, tmp_path: Path) -> None:
    done = check(gqa, mixed(is_causal=0, softcap=-1.0), tmp_path)
    why = "its negative softcap means something else there"
    told = f"Not called alone: /model/layers.1/attn/Attention (Attention): {why}."
    assert told in " ".join(done.out.split())
    assert rows(done)["1–2"].startswith("1–2 Attention ")
    assert rows(done)["1–2"].endswith(", as part of the model")


@pytest.mark.parametrize(
    ("slots", "dims", "why"),
    [
        ("q,k,v,bias", {"bias": [1] * 5}, "the shape of its attention_bias is not in the graph"),
        ("q,k,v,,,,lengths", {"q": [1, 4, 65, 16]}, "the graph leaves no call to try"),
    ],
)
def test_a_node_that_cannot_be_called_is_no_fault(
    slots: str, dims: dict[str, Any], why: str, tmp_path: Path
) -> None:
    sizes = {n: [1, heads, 64, 16] for n, heads in (("q", 4), ("k", 2), ("v", 2))}
    more = {"bias": [64, 64], "lengths": [1]}
    subject = subject_of(saved(beside({}, slots, {**sizes, **more, **dims}), tmp_path), Lengths())
    assert f"Not called alone: Attention (Attention): {why}." in subject.notes
    assert not subject.faults
    assert not [*subject.graphs]


# The node's forms


def beside(
    attributes: dict[str, Any], slots: str, dims: dict[str, Any], opset: int = 25
) -> onnx.ModelProto:
    """A model with a node that reads inputs of the graph, of float32 unless a name says more."""
    model = decoder(Layer())
    model.opset_import[0].version = opset
    kinds = {"mask": TensorProto.BOOL, "lengths": TensorProto.INT64}
    names = slots.split(",")
    info = helper.make_tensor_value_info
    for name, sizes in dims.items():
        model.graph.input.append(info(name, kinds.get(name, TensorProto.FLOAT), sizes))
    outputs = ["y", "present.1.key", "present.1.value"] if "pk" in names else ["y"]
    model.graph.node.append(helper.make_node("Attention", names, outputs, **attributes))
    model.graph.output.append(info("y", TensorProto.FLOAT, None))
    return model


def runs_right(case: Case) -> bool:
    """Whether ONNX Runtime computes a case as the operator."""
    made = prepare(case.call)
    (step,) = made.script.steps
    session = onnxruntime.InferenceSession(made.script.model.SerializeToString())
    got = dict(zip(made.script.outputs, session.run(made.script.outputs, step.inputs), strict=True))
    found = judge(case, made, ran([got]), execution_provider=None, target_class="cpu")
    assert any(want.defined_count for want in made.expected[0].values())
    return found.verdict == "pass"


@pytest.mark.parametrize("name", TABLES["forms"])
def test_a_form_of_the_node(name: str, tmp_path: Path) -> None:
    """It is what its row says, and ONNX Runtime computes its calls as the operator's."""
    form = TABLES["forms"][name]
    model = beside(form["attributes"], form["slots"], form["dims"])
    subject = subject_of(saved(model, tmp_path), Lengths(tokens=tuple(form.get("tokens", (3, 12)))))
    assert [note for note in subject.notes if "alone" in note] == []
    group = subject.groups[-1]
    assert group.what == form["says"]
    assert [stage.label for stage in subject.stages[group.name]] == form["calls"]
    for file, content in subject.graphs:
        (tmp_path / file).write_bytes(content)
        onnx.checker.check_model(content, full_check=True)
    (tmp_path / "cases.yaml").write_text(subject.cases)
    cases = [case for case in load_file(tmp_path / "cases.yaml") if case.name == group.name]
    assert len(cases) == len(form["calls"])
    assert [case.id for case in cases if not runs_right(case)] == []


@pytest.mark.parametrize(("attributes", "slots", "changed", "why"), TABLES["no calls"])
def test_a_node_that_is_no_call(
    attributes: dict[str, Any], slots: str, changed: dict[str, Any], why: str
) -> None:
    dims = {"q": ["b", 4, "s", 16], **{n: ["b", 2, "s", 16] for n in ("k", "v")}, **changed}
    types = {name: ValueType("float32", each and tuple(each)) for name, each in dims.items()}
    outputs = ["y", "pk", "pv", "qk"] if "scores" in why else ["y", "pk"][: 1 + ("presents" in why)]
    with pytest.raises(Unclear) as told:
        as_operator(helper.make_node("Attention", slots.split(","), outputs, **attributes), types)
    assert str(told.value) == why


def test_a_case_of_such_a_node(gqa: Gqa, tmp_path: Path) -> None:
    """A graph needs no node of the operator, but one that is a call of it."""
    text = """<ir_version: 10, opset_import: ["" : 24]> g (float[batch_size, sequence_length, 64] q,
        float[batch_size, sequence_length, 32] k, float[batch_size, sequence_length, 32] v)
        => (float[a, b, 64] y) {
            y = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (q, k, v) }"""
    body = """format: gqa-cases/2
question: Is it right?
cases:
  - name: node
    title: A standard Attention
    why: It is one.
    contract: {basis: established, source: a document}
    graph: graph.onnx
    sequence_length: 3
"""
    (tmp_path / "own.yaml").write_text(body)
    for attribute, status, told in (("", 0, "1 pass"), (", softcap = -1.0", 2, "is no call of")):
        content = text.replace("is_causal = 1", f"is_causal = 1{attribute}")
        (tmp_path / "graph.onnx").write_bytes(onnx.parser.parse_model(content).SerializeToString())
        done = gqa("run", str(tmp_path / "own.yaml"), "--ep", "cpu")
        assert done.status == status, done.both
        assert told in " ".join(done.both.split())
