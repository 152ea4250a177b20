"""``gqa check``: from a model to a table of layer groups and targets."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from as_user import Desk
from attention_models import GEMMA, Layer, decoder, saved, weight
from onnx import TensorProto, helper
from test_check_pins import FEW, Check
from test_check_pins import check as check
from test_check_pins import refusing as refusing
from test_check_pins import tiny as tiny

from conformance.base.paths import data_path
from conformance.bundle.prepare import digest_of
from conformance.case.load import load_file
from conformance.model import exports
from conformance.model.answers import Answer, answer, short, where_of, workaround
from conformance.model.configuration import Configuration
from conformance.model.cut import cuts_of, possible_stages
from conformance.model.forms import Form
from conformance.model.groups import Group, groups_of
from conformance.model.headline import Column, headline
from conformance.model.known import KnownTarget
from conformance.model.nodes import nodes_of
from conformance.model.reading import read_model
from conformance.model.stages import Lengths, Stage, graph_stages, stages_of
from conformance.report.findings import page_of
from conformance.results.records import ResultRecord

needs_onnxruntime = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is None, reason="needs onnxruntime"
)

FORM = Form(
    fields={"dtype": "float32", "num_heads": 4, "kv_num_heads": 2, "head_size": 16},
    cache="growing",
    capacity=None,
    shared=False,
    batch_size=None,
    sequence_length=None,
    table_rows=None,
    reads_presents=True,
)


def labels(form: Form, **asked: tuple[int, ...]) -> list[str]:
    return [stage.label for stage in stages_of(form, Lengths(**asked))]


# Stages


def test_a_decoder_does_prompts_parts_single_tokens_batches_and_loops() -> None:
    assert labels(FORM) == [
        "prompt_6", "prompt_17", "prompt_65", "chunk_5_on_12", "chunk_17_on_64", "decode_on_1",
        "decode_on_15", "decode_on_16", "decode_on_63", "decode_on_64", "decode_on_600",
        "ragged_prompt_9_5", "ragged_decode_40_17", "loop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("window", "added"),
    [
        (8, {"prompt_9", "prompt_25", "chunk_17_on_8", "decode_on_7", "decode_on_8",
             "ragged_decode_13_4"}),
        (512, {"prompt_529", "chunk_17_on_512", "decode_on_511", "decode_on_512",
               "ragged_decode_517_256"}),
    ],
)  # fmt: skip
def test_a_window_is_tried_at_its_end(window: int, added: set[str]) -> None:
    windowed = replace(FORM, fields={**FORM.fields, "local_window_size": window})
    assert set(labels(windowed)) - set(labels(FORM)) == added


def test_a_borrowed_cache_has_the_new_tokens_already() -> None:
    borrowing = replace(FORM, fields={**FORM.fields, "key_value": "zero_length"})
    found = {stage.label: stage.fields for stage in stages_of(borrowing, Lengths())}
    assert found["prompt_17"] == {"past_sequence_length": 17, "sequence_length": 17}
    assert found["decode_on_64"] == {"past_sequence_length": 65, "sequence_length": 1}
    assert "loop" not in found


def test_the_graphs_limits_are_kept() -> None:
    assert max(stage.tokens for stage in stages_of(replace(FORM, table_rows=20), Lengths())) <= 20
    assert labels(replace(FORM, sequence_length=1, batch_size=1))[:2] == ["prompt_1", "decode_on_1"]
    assert not [name for name in labels(replace(FORM, batch_size=1)) if "ragged" in name]
    no_cache = labels(replace(FORM, cache="none"))
    assert no_cache == ["prompt_6", "prompt_17", "prompt_65", "ragged_prompt_9_5"]
    fixed = stages_of(replace(FORM, batch_size=3), Lengths())
    assert {stage.fields["batch_size"] for stage in fixed} == {3}


def test_a_static_cache_and_one_that_the_program_keeps_in_a_buffer() -> None:
    static = stages_of(replace(FORM, cache="static", capacity=128), Lengths())
    assert {stage.fields["max_sequence_length"] for stage in static} == {128}
    assert max(stage.tokens for stage in static) == 128
    kept = [stage for stage in stages_of(replace(FORM, shared=True), Lengths()) if stage.buffer]
    assert [stage.phase for stage in kept] == ["prompt", "chunk", "decode"]
    assert all(stage.fields["shared_buffer"] for stage in kept)


def test_lengths_and_batches_can_be_asked_for() -> None:
    assert labels(FORM, tokens=(1, 17), batch_sizes=(1, 2)) == [
        "prompt_1", "prompt_17", "chunk_9_on_8", "decode_on_16",
        "prompt_1_batch_2", "prompt_17_batch_2", "chunk_9_on_8_batch_2", "decode_on_16_batch_2",
    ]  # fmt: skip


# Answers


def stage(phase: str, tokens: int, *, several: bool = False, batch: bool = False) -> Stage:
    fields = {"sequence_length": 2 if several else 1}
    label = f"{phase}_{tokens}_{several}_{batch}"
    return Stage(label, f"{phase} of {tokens}", phase, tokens, fields, batch)


PROMPTS = [stage("prompt", tokens, several=True) for tokens in (6, 17, 65)]
CHUNKS = [stage("chunk", tokens, several=True) for tokens in (17, 81)]
DECODES = [stage("decode", tokens) for tokens in (2, 16, 65)]
BATCHES = [stage("prompt", 9, several=True, batch=True), stage("decode", 40, batch=True)]
LOOP = Stage("loop", "a loop", "loop", 11, {"loop": [6, 1, 1, 3]})
EVERY = [*PROMPTS, *CHUNKS, *DECODES, *BATCHES, LOOP]


@pytest.mark.parametrize(
    ("these", "words"),
    [
        ([s for s in EVERY if s.tokens >= 65], "from 65 tokens on"),
        ([s for s in EVERY if s.phase == "prompt"], "for prompts"),
        ([s for s in EVERY if s.phase == "decode"], "for one token on a past"),
        (CHUNKS, "for several tokens on a past"),
        ([LOOP], "in a loop of calls"),
        ([PROMPTS[2]], "for prompts from 65 tokens on"),
        (PROMPTS[2:], "for prompts from 65 tokens on"),
        ([*CHUNKS, LOOP], "for several tokens on a past and in a loop of calls"),
        ([PROMPTS[0], DECODES[2]], "for prompt of 6 and decode of 65"),
        ([CHUNKS[1], DECODES[1]], "from 81 tokens on and for decode of 16"),
        ([PROMPTS[0], PROMPTS[2], DECODES[2]], "for prompt of 6, prompt of 65 and 1 other call"),
    ],
)
def test_the_calls_that_differ_are_told_by_what_they_share(
    these: Sequence[Stage], words: str
) -> None:
    assert where_of(these, [s for s in EVERY if s not in these]) == words


def record(verdict: str, **more: object) -> ResultRecord:
    usual: dict[str, object] = {"case": "m/global[stage=a]", "target": "it@1", "outcome": "ran"}
    usual |= {"unexpected": verdict != "pass", "reason": "because", "reproduce": ""}
    return ResultRecord.model_validate({**usual, **more, "verdict": verdict})


def sentence(*answers: Answer, faults: int = 0) -> str:
    """The headline of one target in one release."""
    target = KnownTarget("it@1", "1", None, [], "it")
    return headline([Column((target,), answers)], faults)


WRONG_OUTPUT = {"wrong_outputs": ["output"]}
WRONG_PRESENTS = {"wrong_outputs": ["presents"]}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (record("pass"), "right"),
        (record("wrong", **WRONG_OUTPUT), "wrong"),
        (record("wrong", **WRONG_PRESENTS), "wrong"),
        (record("crash", outcome="crashed"), "crash"),
        (record("timeout", outcome="timed_out"), "timeout"),
        (record("fallback", placement="CPUExecutionProvider"), "fallback"),
        (record("fallback", other_kernel=True), "untried"),
        (record("unsupported", outcome="rejected", message="no"), "refused"),
        (record("pass", outcome="rejected", message="no"), "refused"),
        (record("accepted", values_right=False), "wrong"),
        (record("accepted", values_right=True), "right"),
        (record("skip", outcome="unavailable"), "untried"),
    ],
)
def test_what_a_result_is_to_somebody_with_a_model(found: ResultRecord, kind: str) -> None:
    group = Group("global", FORM, ())
    assert answer(group, "it@1", [(PROMPTS[0], found)]).kind == kind


def test_presents_that_nothing_reads_may_be_wrong() -> None:
    group = Group("global", replace(FORM, reads_presents=False), ())
    found = answer(group, "it@1", [(PROMPTS[0], record("wrong", **WRONG_PRESENTS))])
    assert found.kind == "right"


def test_a_group_that_was_not_tried_is_not_right() -> None:
    skip = record("skip", outcome="unavailable", reason="there is no GPU")
    group = Group("global", FORM, ())
    nothing = answer(group, "it@1", [(stage, skip) for stage in PROMPTS])
    assert nothing.kind == "untried"
    assert sentence(nothing) == "it@1: not tried: there is no GPU."
    some = answer(group, "it@1", [(PROMPTS[0], record("pass")), (PROMPTS[1], skip)])
    assert some.sentence.startswith("right (1 call); not tried")
    assert sentence(some) == (
        "it@1 runs the attention of every layer right, as far as it was tried: 1 call not tried"
        " (there is no GPU)."
    )
    untried = answer(group, "it@1", [])
    assert untried.kind == "untried"
    right = answer(group, "it@1", [(PROMPTS[0], record("pass"))])
    assert "every layer right" not in sentence(right, untried)


def test_all_parts_are_told_the_worst_first() -> None:
    results = [(stage, record("pass")) for stage in PROMPTS]
    results += [(s, record("unsupported", outcome="rejected", message="no")) for s in CHUNKS]
    results += [(stage, record("wrong", **WRONG_OUTPUT)) for stage in DECODES]
    group = Group("global", FORM, ())
    found = answer(group, "it@1", results)
    assert found.sentence == "silently wrong for one token on a past; refused"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running"
         " GroupQueryAttention node. Name:'gqa' Status Message: bad rank", "bad rank"),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization:"
         " /a/b.cc:60 void foo(int) bar was false. ", "bar was false."),
        ('Error at stage "type"\n\nCaused by:\n    0: Translating node\n    1: No softcap',
         "No softcap"),
        ("plain", "plain"),
    ],
)  # fmt: skip
def test_messages_are_shortened(message: str, text: str) -> None:
    assert short(message).endswith(text)
    assert "\n" not in short(message)


def test_the_workaround_of_a_finding_is_quoted() -> None:
    link = "docs/findings/webgpu-borrowed-window.md"
    assert "attention_bias" in workaround(link)
    page = " ".join((page_of(link) or "").split())
    assert all(sentence in page for sentence in workaround(link).split(". "))
    assert "below" not in workaround(link)  # there is nothing below in an answer
    assert workaround("https://example.org/") == ""


# Parts of a model as one graph


def test_a_layer_and_one_that_borrows_from_it_are_cut_out_together(tmp_path: Path) -> None:
    cuts = cut_out(decoder(*GEMMA), tmp_path)
    assert [cut.name for cut in cuts] == ["sharing_window_8", "sharing_global"]
    assert [[node.layer for node in cut.nodes] for cut in cuts] == [[0, 2], [1, 3]]
    graph = onnx.load_model_from_string(cuts[0].graph).graph
    first, second = graph.node
    assert second.input[3:5] == first.output[1:3] == ["present_key", "present_value"]
    assert [o.name for o in graph.output] == [
        "output", "present_key", "present_value", "borrower_output",
    ]  # fmt: skip
    for cut in cuts:
        wanted = graph_stages(stages_of(cut.form, Lengths()), cut.form)
        assert possible_stages(cut, wanted) == (wanted, "")


def cut_out(model: onnx.ModelProto, folder: Path) -> list[Group]:
    """The parts of a model that are run as one graph."""
    read_back = read_model(saved(model, folder))
    groups, _ = groups_of(nodes_of(read_back).nodes, Configuration())
    return [*cuts_of(read_back, groups)]


def behind(model: onnx.ModelProto, layer: int, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    """The model with ``nodes`` before a layer, whose past they make: ``past.key`` from
    ``present.0.key``."""
    at = next(i for i, node in enumerate(model.graph.node) if f"layers.{layer}/" in node.name)
    model.graph.node[at].input[3:5] = ["past.key", "past.value"]
    rest = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*rest[:at], *nodes, *rest[at:]])
    return model


def moves(op: str, *given: str, **attributes: int) -> list[onnx.NodeProto]:
    """A node for the keys and one for the values."""
    return [
        helper.make_node(op, [f"present.0.{part}", *given], [f"past.{part}"], **attributes)
        for part in ("key", "value")
    ]


@pytest.mark.parametrize(
    ("op", "given", "attributes"),
    [
        ("Identity", [], {}),
        ("Cast", [], {"to": TensorProto.FLOAT}),
        ("Slice", ["start", "end", "axis"], {}),
        ("Reshape", ["shape"], {}),
    ],
)
def test_nodes_between_a_present_and_a_past_are_cut_out_too(
    tmp_path: Path, op: str, given: list[str], attributes: dict[str, int]
) -> None:
    model = decoder(Layer(), Layer(borrows=0))
    numbers = {"start": [0], "end": [1 << 30], "axis": [2], "shape": [0, 2, -1, 16]}
    model.graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [len(of)], of) for name, of in numbers.items()
    )
    (cut,) = cut_out(behind(model, 1, *moves(op, *given, **attributes)), tmp_path)
    assert [node.layer for node in cut.nodes] == [0, 1]
    graph = onnx.load_model_from_string(cut.graph).graph
    assert [node.op_type for node in graph.node][1:3] == [op, op]
    assert graph.node[1].input[0] == "present_key"
    assert {each.name for each in graph.initializer} == set(given)  # with their numbers
    wanted = graph_stages(stages_of(cut.form, Lengths()), cut.form)
    assert possible_stages(cut, wanted) == (wanted, "")


def test_a_past_that_another_input_decides_is_not_cut_out(tmp_path: Path) -> None:
    model = decoder(Layer(), Layer(borrows=0))
    for name in ("start", "end"):
        typed = helper.make_tensor_value_info(name, TensorProto.INT64, [1])
        model.graph.input.append(typed)
    assert cut_out(behind(model, 1, *moves("Slice", "start", "end")), tmp_path) == []


def test_operators_between_that_the_oracle_does_not_know_are_told(tmp_path: Path) -> None:
    model = decoder(Layer(), Layer(borrows=0))
    (cut,) = cut_out(behind(model, 1, *moves("Celu")), tmp_path)
    stages, why = possible_stages(cut, stages_of(cut.form, Lengths()))
    assert stages == []
    assert "Celu" in why


@needs_onnxruntime
def test_a_past_behind_other_nodes_is_run_as_one_graph(check: Check, tmp_path: Path) -> None:
    file = saved(behind(decoder(Layer(), Layer(borrows=0)), 1, *moves("Identity")), tmp_path)
    done = check(file, *FEW)
    assert "one graph: layer 1 borrows the cache of layer 0" in done.out


def test_packed_projections_are_cut_out_with_their_layer(tmp_path: Path) -> None:
    model = decoder(Layer(packed=True))
    sizes = {"K": 64, "N": 128, "bits": 4, "block_size": 32}
    names = ["hidden", "codes", "scales"], ["layers.0.q"]
    product = helper.make_node("MatMulNBits", *names, domain="com.microsoft", **sizes)
    model.graph.node[0].CopyFrom(product)
    model.graph.initializer.extend(
        [weight("codes", TensorProto.UINT8, [128, 2, 16]), weight("scales", 1, [128, 2])]
    )
    (cut,) = cut_out(model, tmp_path)
    graph = onnx.load_model_from_string(cut.graph).graph
    assert [node.op_type for node in graph.node] == ["MatMulNBits", "GroupQueryAttention"]
    assert "activation_0" in [each.name for each in graph.input]
    wanted = graph_stages(stages_of(cut.form, Lengths()), cut.form)
    assert possible_stages(cut, wanted) == (wanted, "")


# The command


def test_a_target_that_is_silently_wrong(
    check: Check, desk: Desk, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call is wrong: its layer, its lengths and its case are named."""
    kept = tmp_path / "tiny.yaml"
    check(tiny, "--ep", desk.runner("correct"), *FEW, "--save-cases", str(kept))
    wanted = "tiny/borrowing_window_8[stage=prompt_12]"
    (case,) = [case for case in load_file(kept) if case.id == wanted]
    monkeypatch.setenv("FAULT_ON", digest_of(case.call))
    done = check(tiny, "--ep", desk.runner("wrong_alone"), *FEW, status=1)
    assert (
        "@1.0: in one chat silently wrong for prompts from 12 tokens on in layer 2; with chunked"
        " prompts right in every layer." in done.out
    )
    assert "one chat          ✗ silently wrong for prompts from 12 tokens on" in done.out
    assert "for example  layer 2, a prompt of 12 tokens" in done.out
    assert f"case         {wanted}" in done.out


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(attributes={"windw": 8}), "windw"),
        (Layer(attributes={"softcap": 30}), "softcap"),
        (Layer(inputs={0: "gone"}), "gone"),
        (Layer(inputs={17: "hidden"}), "input size 18 not in range"),
    ],
    ids=["attribute", "kind", "input", "many"],
)
def test_the_target_says_what_is_wrong_with_a_node(
    check: Check, tmp_path: Path, layer: Layer, message: str
) -> None:
    pytest.importorskip("onnxruntime")
    file = saved(decoder(Layer(), layer), tmp_path)
    done = check(file, *FEW, status=1)
    assert ": refused to load the model." in done.out
    assert message in " ".join(done.out.split())


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"local_window_size": 0}, "local_window_size must be -1 (no window) or at least 1"),
        ({"scale": float("nan")}, "attribute scale is nan"),
    ],
)
def test_a_node_without_a_meaning_is_named(
    check: Check, desk: Desk, tmp_path: Path, attributes: dict[str, float], why: str
) -> None:
    file = saved(decoder(Layer(), Layer(attributes=attributes)), tmp_path)
    done = check(file, "--ep", desk.runner("correct"), *FEW, status=1)
    assert f"/model/layers.1/attn/GroupQueryAttention was not checked: {why}" in done.out
    assert "✓ right (5 calls)" in done.out
    assert "@1.0: right in every other layer; 1 node not checked." in done.out


def test_calls_that_the_oracle_cannot_compute_are_left_out(
    check: Check, desk: Desk, tmp_path: Path
) -> None:
    file = saved(decoder(Layer(heads=32, kv_heads=8), rows=8192), tmp_path)
    done = check(file, "--ep", desk.runner("correct"), "--lengths", "3,5000")
    assert "Note: Of layer 0 some calls are left out: 2500 tokens on a past of 2500: " in done.out
    assert "✓ right (3 calls; 2 long calls not tried)" in done.out  # a prompt, single tokens


def test_a_batch_that_the_graph_does_not_allow(check: Check, tmp_path: Path) -> None:
    file = saved(decoder(Layer(past=(1, "past")), batch=1), tmp_path)
    done = check(file, "--batch", "2", status=2)
    assert done.err.endswith("GroupQueryAttention: the graph leaves no call to try\n")


def test_an_answer_blames_the_layer_that_is_wrong(tmp_path: Path) -> None:
    cut, _ = cut_out(decoder(*GEMMA), tmp_path)
    fault = {"kind": "shape", "output": "borrower_output", "got": [1], "want": [2]}
    second = record("wrong", wrong_outputs=["output"], faults=[fault])
    owner = answer(Group("window_8", FORM, ()), "it@1", [(PROMPTS[0], record("pass"))])
    one = answer(cut, "it@1", [(PROMPTS[0], second)])
    said = "it@1: right in each layer alone, silently wrong in {} as one graph."
    assert sentence(owner, one) == said.format("layer 2")
    both = record("wrong", faults=[fault, {**fault, "output": "output"}], wrong_outputs=["output"])
    one = answer(cut, "it@1", [(PROMPTS[0], both)])
    assert sentence(owner, one) == said.format("layers 0 and 2")


def test_no_node_can_be_checked(check: Check, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = saved(decoder(Layer(attributes={"num_heads": 0, "windw": 8})), tmp_path)
    done = check(file, status=2)
    assert done.out == ""
    first, second, third = done.err.splitlines()
    assert first == f"{file}: no node can be checked."
    assert second.endswith("GroupQueryAttention: num_heads and kv_num_heads must be at least 1")
    assert third.startswith("cpu@")
    assert "does not load the model: " in third


def test_the_theme_exports_is_what_its_command_writes() -> None:
    assert (data_path("cases") / "exports.yaml").read_text(encoding="utf-8") == exports.text()
