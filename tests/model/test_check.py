"""``gqa check``: from a model to a table of layer groups and targets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
import onnx
import pytest
from as_user import Desk, Done, Gqa, has_onnxruntime, in_terminal
from attention_models import GEMMA, Layer, decoder, saved
from check_graphs import KINDS, graph_of
from goldens import check_golden
from onnx import TensorProto, helper
from tables import tables

from conformance.base.paths import data_path
from conformance.bundle.prepare import digest_of
from conformance.case.load import load_file
from conformance.cli import run as commands_run
from conformance.cli.check import NumberList
from conformance.maintain import exported
from conformance.model.answer.answers import answer, where_of
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import Group
from conformance.model.calls.stages import Lengths, NodeCall, stages_of
from conformance.model.run.short_messages import short
from conformance.results.records import ResultRecord

TABLES = tables(__file__)


FEW = ("--lengths", "3,12")

#: Runs the command on a model; it must end with the status, which is 0 unless it is given.
Check = Callable[..., Done]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the four groups of Gemma 4."""
    return saved(decoder(*GEMMA), tmp_path_factory.mktemp("models"))


@pytest.fixture
def check(gqa: Gqa) -> Check:
    def call(model: Path, *arguments: str, status: int = 0) -> Done:
        done = gqa("check", str(model), *arguments)
        assert done.status == status, done.both
        return done

    return call


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


def form(**fields: object) -> Form:
    """A form with other fields of a call."""
    return replace(FORM, fields={**FORM.fields, **fields})


#: Forms of a node, and lengths that are asked for.
STAGES = {
    "a decoder": (FORM, Lengths()),
    "a window of 8": (form(local_window_size=8), Lengths()),
    "a window of 512": (form(local_window_size=512), Lengths()),
    "a borrowed cache has the new tokens": (form(key_value="zero_length"), Lengths()),
    "rotary tables of 20 rows": (replace(FORM, table_rows=20), Lengths()),
    "one token, no batch": (replace(FORM, sequence_length=1, batch_size=1), Lengths()),
    "a batch of 3": (replace(FORM, batch_size=3), Lengths()),
    "no cache": (replace(FORM, cache="none"), Lengths()),
    "a static cache": (replace(FORM, cache="static", capacity=128), Lengths()),
    "a cache that the program keeps in a buffer": (replace(FORM, shared=True), Lengths()),
    "asked": (FORM, Lengths(tokens=(1, 17), batch_sizes=(1, 2))),
}


def test_the_stages_of_a_form() -> None:
    told = []
    for name, (of, lengths) in STAGES.items():
        told.append(f"=== {name}")
        for stage in stages_of(of, lengths):
            what = " in a buffer" if stage.buffer else ""
            told.append(f"{stage.label}: {stage.phase} of {stage.tokens}{what}, {stage.fields}")
    check_golden("stages.txt", "\n".join(told) + "\n")


# Answers


def stage(phase: str, tokens: int, *, several: bool = False, batch: bool = False) -> NodeCall:
    fields = {"sequence_length": 2 if several else 1}
    label = f"{phase}_{tokens}_{several}_{batch}"
    return NodeCall(label, f"{phase} of {tokens}", phase, tokens, fields, batch)


PROMPTS = [stage("prompt", tokens, several=True) for tokens in (6, 17, 65)]
CHUNKS = [stage("chunk", tokens, several=True) for tokens in (17, 81)]
DECODES = [stage("decode", tokens) for tokens in (2, 16, 65)]
BATCHES = [stage("prompt", 9, several=True, batch=True), stage("decode", 40, batch=True)]
LOOP = NodeCall("loop", "a loop", "loop", 11, {"loop": [6, 1, 1, 3]})
EVERY = [*PROMPTS, *CHUNKS, *DECODES, *BATCHES, LOOP]


@pytest.mark.parametrize(
    ("these", "words"),
    [
        ([s for s in EVERY if s.tokens >= 65], "from 65 tokens on (41 to 64 not tried)"),
        ([s for s in EVERY if s.phase == "prompt"], "for prompts"),
        ([s for s in EVERY if s.phase == "decode"], "for one token on a past"),
        (CHUNKS, "for several tokens on a past"),
        ([LOOP], "in a loop of calls"),
        ([PROMPTS[2]], "for prompts from 65 tokens on (41 to 64 not tried)"),
        (PROMPTS[2:], "for prompts from 65 tokens on (41 to 64 not tried)"),
        ([*CHUNKS, LOOP], "for several tokens on a past and in a loop of calls"),
        ([PROMPTS[0], DECODES[2]], "for prompt of 6 and decode of 65"),
        ([CHUNKS[1], DECODES[1]], "from 81 tokens on (66 to 80 not tried) and for decode of 16"),
        ([PROMPTS[0], PROMPTS[2], DECODES[2]], "for prompt of 6, prompt of 65 and 1 other call"),
    ],
)
def test_calls_that_differ_are_told_by_what_they_share(
    these: Sequence[NodeCall], words: str
) -> None:
    assert where_of(these, [s for s in EVERY if s not in these]) == words


def record(verdict: str, **more: object) -> ResultRecord:
    usual: dict[str, object] = {"case": "m/global[stage=a]", "target": "it@1", "outcome": "ran"}
    usual |= {
        "kind": "result",
        "unexpected": verdict != "pass",
        "reason": "because",
        "reproduce": "",
    }
    return ResultRecord.model_validate({**usual, **more, "verdict": verdict})


WRONG_OUTPUT = {"wrong_outputs": ["output"]}
WRONG_PRESENTS = {"wrong_outputs": ["presents"]}


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (record("pass"), "right"),
        (record("wrong", **WRONG_OUTPUT), "wrong"),
        (record("wrong", **WRONG_PRESENTS), "wrong"),
        (record("crash", outcome="crashed", message="It died."), "crash"),
        (record("timeout", outcome="timed_out", time_limit=9.0), "timeout"),
        (record("fallback", placement="CPUExecutionProvider"), "fallback"),
        (record("fallback", other_kernel=True), "untried"),
        (record("unsupported", outcome="rejected", stage="run", message="no"), "refused"),
        (record("pass", outcome="rejected", stage="run", message="no"), "refused"),
        (record("accepted", values_right=False), "wrong"),
        (record("accepted", values_right=True), "right"),
        (record("skip", outcome="unavailable"), "untried"),
    ],
)
def test_what_a_result_is_to_somebody_with_a_model(found: ResultRecord, kind: str) -> None:
    group = Group("global", FORM, ())
    assert answer(group, "it@1", [(PROMPTS[0], found)]).kind == kind
    assert answer(group, "it@1", []).kind == "untried"


def test_presents_that_nothing_reads_may_be_wrong() -> None:
    group = Group("global", replace(FORM, reads_presents=False), ())
    found = answer(group, "it@1", [(PROMPTS[0], record("wrong", **WRONG_PRESENTS))])
    assert found.kind == "right"


@pytest.mark.parametrize(
    ("message", "text"),
    TABLES["messages"],
)  # fmt: skip
def test_messages_are_shortened(message: str, text: str) -> None:
    assert short(message).endswith(text)
    assert "\n" not in short(message)


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
    words = " ".join(done.out.split())
    assert "in one chat silently wrong for prompts from 12 tokens on" in words
    assert f"a prompt of 12 tokens case {wanted}" in words


def test_a_target_that_computes_a_node_wrong_is_to_blame(
    check: Check, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FAULT_ON", "/"), ("WRONG", "attention.0")):
        monkeypatch.setenv(name, value)
    file, answers = saved(decoder(Layer(), Layer()), tmp_path), tmp_path / "a.json"
    options = ("--lengths", "3", "--ways", "chat", "--json", str(answers))
    done = check(file, "--ep", desk.runner("wrong_values"), *options, status=1)
    (part,) = json.loads(answers.read_text())["rows"][0]["answers"]["miniature@1.0"]["uses"][
        "one chat"
    ]
    assert (part["answer"], part["fault"]) == ("wrong", "target")
    assert "The graph is" not in done.out
    assert "✗ silently wrong for a prompt of 6 tokens in layer 0" in " ".join(done.out.split())


def with_scores(qk_output: int) -> onnx.ModelProto:
    """A decoder whose scores are an output."""
    outputs = ["attention.0", "present.0.key", "present.0.value", "scores.0"]
    model = decoder(Layer(attributes={"qk_output": qk_output}, outputs=outputs))
    dims = ["batch_size", 4, "sequence_length", "total_sequence_length"]
    model.graph.output.append(helper.make_tensor_value_info("scores.0", TensorProto.FLOAT, dims))
    return model


@has_onnxruntime
@pytest.mark.parametrize("qk_output", [1, pytest.param(2, marks=pytest.mark.push)])
def test_scores_that_are_outputs_are_judged(check: Check, tmp_path: Path, qk_output: int) -> None:
    """Those of padded sequences are not: columns of padding are between the others."""
    file = saved(with_scores(qk_output), tmp_path)
    done = check(file, "--lengths", "3", "--ways", "chat,chunks,right")
    assert "The graph is right in one chat and with chunked prompts." in done.out
    assert "right (not compared: its scores have columns of padding)" in done.out


def test_wrong_scores_are_seen(
    check: Check, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FAULT_ON", "/"), ("WRONG", "scores.0")):
        monkeypatch.setenv(name, value)
    file, options = saved(with_scores(2), tmp_path), ("--lengths", "3", "--ways", "chat")
    done = check(file, "--ep", desk.runner("wrong_values"), *options, status=1)
    assert "✗ silently wrong for a prompt of 6 tokens in layer 0" in " ".join(done.out.split())


@pytest.mark.push
@pytest.mark.parametrize("number", [1, 3])
def test_no_target_is_cut_off_in_a_terminal(desk: Desk, tiny: Path, number: int) -> None:
    """100 columns are enough for one target beside the layers, not for three."""
    runners = ("correct", "rejects", "wrong_values")[:number]
    eps = [word for name in runners for word in ("--ep", desk.runner(name))]
    _, text = in_terminal(desk, "check", str(tiny), *eps, "--lengths", "3", FAULT_ON="/")
    ways = 6 * (number - ("rejects" in runners))
    assert sum(text.count(sign) for sign in "✓○✗") == 4 * number + ways + ("rejects" in runners)
    assert ("miniature@1.0#3" in text) == (number == 3)


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
def test_targets_say_what_failed(check: Check, tmp_path: Path, layer: Layer, message: str) -> None:
    """The target says what is wrong with a node."""
    pytest.importorskip("onnxruntime")
    file = saved(decoder(Layer(), layer), tmp_path)
    done = check(file, *FEW, status=1)
    assert ": refuses to load the model." in done.out
    assert message in " ".join(done.out.split())


@pytest.mark.push
@has_onnxruntime
def test_a_pin_holds_from_a_release_until_it_is_right(check: Check, tmp_path: Path) -> None:
    """A pin of the model holds from a release on and ends where it is right."""
    model = graph_of(KINDS[0])
    model.graph.input[4].type.tensor_type.shape.dim[1].dim_value = 4
    file, pins = tmp_path / "model.onnx", tmp_path / "known.yaml"
    file.write_bytes(model.SerializeToString())
    check(file, "--write-expect", str(pins))
    assert 'versions: ">=1.' in pins.read_text()
    older = re.sub('">=[^"]*"', '">=1.0"', pins.read_text())
    pins.write_text(older)
    check(file, "--expect", str(pins), "--write-expect", str(pins))
    assert pins.read_text() == older
    file.write_bytes(graph_of(KINDS[0]).SerializeToString())
    check(file, "--expect", str(pins), "--write-expect", str(pins))
    assert re.search('versions: ">=1.0,<1[.0-9]*"', pins.read_text())


def test_a_target_that_takes_none_of_the_calls_is_an_answer(check: Check, tmp_path: Path) -> None:
    """tract cannot take bfloat16: that is the runtime's refusal, not the infrastructure's."""
    pytest.importorskip("tract")
    file = saved(decoder(Layer(), dtype=TensorProto.BFLOAT16), tmp_path)
    done = check(file, "--ep", "tract-wheel", *FEW, status=1)
    assert "cannot take bfloat16" in done.out


@pytest.mark.push
def test_the_theme_exports_is_what_its_command_writes() -> None:
    assert (data_path("cases") / "exports.yaml").read_text(encoding="utf-8") == exported.exports()


@pytest.mark.push
@pytest.mark.parametrize(
    ("some", "told"),
    [
        (3, "miniature@1.0: only 3 of 20 calls were tried; these are right."),
        (19, "miniature@1.0: only 19 of 20 calls were tried; these are right."),
    ],
)
def test_a_check_that_was_cut_off_says_so_first(
    tiny: Path, check: Check, desk: Desk, monkeypatch: pytest.MonkeyPatch, some: int, told: str
) -> None:
    whole = commands_run.run_all

    def interrupted(*arguments: Any) -> Iterator[Any]:
        yield from islice(whole(*arguments), some)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands_run, "run_all", interrupted)
    desk.runner("correct")
    ep = ("--ep", "exec:programs/correct")
    done = check(tiny, *ep, *FEW, "--json", "a.json", status=130)
    lines = [line for line in done.out.splitlines() if line]
    assert lines[1].startswith(f"Interrupted after {some} results")
    assert lines[3].startswith("The graph is right in one chat")
    assert lines[4].startswith(told)
    assert "runs the model right" not in done.both
    answers = json.loads((desk.folder / "a.json").read_text())
    assert (answers["exit_status"], answers["complete"]) == (130, False)
    assert answers["headlines"] == lines[3:5]


@pytest.mark.parametrize(("text", "numbers"), TABLES["lengths"])
def test_lengths_are_read_as_people_write_them(text: str, numbers: tuple[int, ...]) -> None:
    assert NumberList(1, 1 << 20).convert(text, None, None) == tuple(numbers)


@pytest.mark.parametrize("text", ["0", "4kk", "k", "4m", "-3", "1-", "2-1", "1-1k", "9" * 5000])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="numbers"):
        NumberList(1, 1 << 20).convert(text, None, None)
