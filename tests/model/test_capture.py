"""``gqa check --prompt-ids`` and ``--capture``: each node is judged with what it really gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from as_user import Desk, Done, Gqa
from decoders import Decoder
from onnx import TensorProto, helper

from conformance.bundle.prepare import digest_of, prepare
from conformance.case.load import load_file
from conformance.graph.nodes import nodes_of
from conformance.graph.reading import ReadModel, read_model
from conformance.model.capture import Captured, PromptTokens, capture
from conformance.model.configuration import Configuration
from conformance.model.feeds import Feeder, Interface, ProgramCall, interface_of
from conformance.model.groups import Group, groups_of

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
CPU = ["CPUExecutionProvider"]

#: Runs the command on a model; it must end with the status, which is 0 unless it is given.
Check = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the prompt."""
    (tmp_path / "ids.txt").write_text(", ".join(map(str, PROMPT)))
    return tmp_path


@pytest.fixture
def borrowing(folder: Path) -> Path:
    """Two layers, one of them windowed, and two that borrow from them."""
    return Decoder(4, borrow={2: 0, 3: 1}, window=8).save(folder, external=True)


@pytest.fixture
def check(gqa: Gqa, folder: Path) -> Check:
    """Runs the command on a model and the prompt."""

    def call(model: Path, *arguments: str, steps: int = 2, status: int = 0) -> Done:
        prompt = "--prompt-ids", str(folder / "ids.txt"), "--steps", str(steps)
        done = gqa("check", str(model), *prompt, *arguments)
        assert done.status == status, done.both
        return done

    return call


def kept(folder: Path, case: str) -> dict[str, np.ndarray]:
    return dict(np.load(folder / "kept.values" / f"{case}.npz"))


def own_run(model: Path, values: list[str], steps: int) -> tuple[list[dict[str, Any]], list[int]]:
    """What a plain session passes on in each call, and the tokens that it chooses."""
    proto = onnx.load(model)
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=v) for v in values if v not in known)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=CPU)
    feeds: dict[str, Any] = {"input_ids": np.array([PROMPT])}
    for each in session.get_inputs():
        if each.name.startswith("past"):
            rows = each.shape[2] if isinstance(each.shape[2], int) else 0
            feeds[each.name] = np.zeros((1, each.shape[1], rows, each.shape[3]), np.float32)
    calls, ids = [], []
    names = [output.name for output in session.get_outputs()]
    for step in range(steps + 1):
        feeds["attention_mask"] = np.ones((1, len(PROMPT) + step), np.int64)
        found = dict(zip(names, session.run(names, feeds), strict=True))
        calls.append({**feeds, **found})
        ids.append(int(np.argmax(found["logits"][0, -1])))
        feeds["input_ids"] = np.array([ids[-1:]])
        for name in feeds:
            if name.startswith("past"):
                feeds[name] = found[name.replace("past_key_values", "present")]
    return calls, ids[:-1]


def interface(model: Path) -> tuple[ReadModel, list[Group], Interface]:
    """A model, its groups, and what a program feeds to it."""
    read = read_model(model)
    groups, _ = groups_of(nodes_of(read).nodes, Configuration())
    return read, groups, interface_of(read, groups, Configuration())


def captured_of(model: Path, ids: tuple[int, ...], steps: int, folder: Path) -> Captured:
    """What the first group gets of these tokens, with the files in a folder."""
    read, groups, own = interface(model)
    return capture(read, groups[0].nodes, own, PromptTokens(ids, steps), folder)


def test_layers_are_judged_with_what_they_get(check: Check, borrowing: Path, folder: Path) -> None:
    """The values of the cases are those of a plain session, layer by layer and call by call."""
    done = check(borrowing, "--save-cases", str(folder / "kept.yaml"))
    assert "12 tokens and 2 decode steps, " in done.out
    graph = onnx.load(borrowing).graph
    nodes = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    wanted, _ = own_run(borrowing, [n for node in nodes for n in node.input if n], 2)
    parameters = ["query", "key", "value", "past_key", "past_value", "seqlens_k"]
    for layer, node in enumerate(nodes):
        for step, label in enumerate(("prompt", "decode_1", "decode_2")):
            values = kept(folder, f"layer_{layer}.{label}")
            for parameter, name in zip(parameters, node.input, strict=False):
                assert values[parameter].shape == wanted[step][name].shape
                assert np.allclose(values[parameter], wanted[step][name], atol=1e-6)
            assert values["total_sequence_length"] == len(PROMPT) + step
            assert len(values["cos_cache"]) == len(PROMPT) + step  # the other rows are not needed
    assert kept(folder, "layer_2.prompt")["past_key"].shape == (1, 2, 12, 16)


def test_the_next_token_is_the_one_with_the_largest_logit(folder: Path) -> None:
    model = Decoder().save(folder)
    _, ids = own_run(model, [], 4)
    found = captured_of(model, tuple(PROMPT), 4, folder)
    assert [*found.ids] == ids
    assert len(set(ids)) > 1  # else the test would show nothing


@pytest.mark.push
def test_the_users_files_are_left_alone(check: Check, borrowing: Path, folder: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir()}

    before = state()
    check(borrowing)
    assert state() == before


def test_the_first_layer_that_goes_wrong_is_named(
    check: Check, borrowing: Path, folder: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_file = folder / "kept.yaml"
    check(borrowing, "--ep", desk.runner("correct"), "--save-cases", str(kept_file))
    wanted = "kept/layer_2[stage=decode_1]"
    (case,) = [case for case in load_file(kept_file) if case.id == wanted]
    monkeypatch.setenv("FAULT_ON", digest_of(case.call))
    arguments = "--ep", desk.runner("wrong_alone"), "--save-cases", str(kept_file)
    done = check(borrowing, *arguments, status=1)
    assert "goes wrong is layer 2, decode step 1, " in done.out
    (row,) = [line for line in done.out.splitlines() if "✗" in line]
    assert row.startswith("2 ")
    assert "wrong in 1 of 2 steps: " in done.out
    assert "(" in row  # the error of the prompt, which is right


@pytest.mark.push
@pytest.mark.parametrize("packed", [False, True])
def test_a_norm_unknown_to_the_run(check: Check, folder: Path, desk: Desk, packed: bool) -> None:
    """The CPU provider has no norm of queries and keys, so the run has it as nodes of its own.

    The past of the decode step is what the oracle expects the prompt to leave there, and the query
    of the second layer follows from what it expects of the first.
    """
    model = Decoder(norm=True, packed=packed).save(folder)
    arguments = "--ep", desk.runner("correct"), "--save-cases", str(folder / "kept.yaml")
    done = check(model, *arguments)
    assert "QK norm" in done.out
    case = load_file(folder / "kept.yaml")[0]
    expected = prepare(case.call).expected[0]
    past = kept(folder, "layer_0.decode_1")["past_key"]
    assert np.allclose(past, expected["present_key"].value, atol=1e-5)
    constants = onnx.load(model).graph.initializer
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in constants}
    attended = expected["output"].value @ weights["model.layers.0.o"]
    query = (weights["embedding"][PROMPT] + attended) @ weights["model.layers.1.q"]
    assert np.allclose(kept(folder, "layer_1.prompt")["query"][..., :64], query, atol=1e-4)


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": 32},
        {"dtype": np.float16},
        {"inside": "function"},
        pytest.param({"window": 4, "table": 4096}, marks=pytest.mark.night),
        pytest.param({"heads": 6, "kv_heads": 1, "size": 32}, marks=pytest.mark.night),
    ],
    ids=str,
)
def test_other_forms_of_models(check: Check, folder: Path, fields: dict[str, Any]) -> None:
    """A static cache, float16, nodes in a function, weights inside the file and beside it."""
    for external in (False, True):
        model = Decoder(**fields).save(folder, external=external)
        done = check(model, "--save-cases", str(folder / "kept.yaml"))
        assert "✗" not in done.out
        assert len(list((folder / "kept.values").iterdir())) == 6
    if "rows" in fields:
        assert kept(folder, "layer_1.decode_2")["past_key"].shape == (1, 2, 32, 16)


@pytest.mark.push
def test_a_node_in_a_subgraph_is_told_and_the_others_run(check: Check, folder: Path) -> None:
    done = check(Decoder(inside="If").save(folder), status=1)
    assert "not checked: it is in a subgraph, " in done.out
    assert "✓ prompt 0." in done.out
    done = check(Decoder(1, inside="If").save(folder), status=2)
    assert "every node is in a subgraph; " in done.err


def test_infinite_values_are_judged_as_the_oracle_does(check: Check, folder: Path) -> None:
    """A weight that overflows float16 makes infinities and NaN; nothing is said about those."""
    model = Decoder(3, dtype=np.float16, factor=3e4).save(folder)
    check(model, "--save-cases", str(folder / "kept.yaml"))
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(kept(folder, "layer_2.prompt")["query"]).all()


@pytest.mark.push
def test_only_some_layers(check: Check, gqa: Gqa, borrowing: Path) -> None:
    lines = check(borrowing, "--only-layer", "0,2-3").out.splitlines()
    assert [line[0] for line in lines if "✓" in line] == ["0", "2", "3"]
    done = gqa("check", str(borrowing), "--only-layer", "1", "--lengths", "3")
    assert "1 attention node, all the same call" in done.out


# The inputs of one call


def inputs(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
    return folder / "inputs.npz"


IDS = np.array([PROMPT, PROMPT[::-1]])
MASK = np.ones((2, 12), np.int64)


@pytest.mark.push
def test_the_models_own_inputs_of_one_call(gqa: Gqa, folder: Path) -> None:
    """A ragged batch; the empty pasts need not be given, and others can be."""
    model = Decoder().save(folder)
    ragged = MASK.copy()
    ragged[1, 7:] = 0
    file = inputs(folder, input_ids=np.asfortranarray(IDS), attention_mask=ragged)
    arguments = "--capture", str(file), "--save-cases", str(folder / "kept.yaml")
    done = gqa("check", str(model), *arguments)
    assert done.status == 0, done.both
    assert f"with the inputs in {file}" in done.out
    (case, _) = load_file(folder / "kept.yaml")
    assert case.call.total_sequence_lengths == (12, 7)
    assert kept(folder, "layer_0.inputs")["seqlens_k"].tolist() == [11, 6]
    names = [f"past_key_values.{layer}.{part}" for layer in (0, 1) for part in ("key", "value")]
    pasts = dict.fromkeys(names, np.full((2, 2, 11, 16), 0.5, np.float32))
    file = inputs(folder, input_ids=IDS[:, :1], attention_mask=MASK, **pasts)
    done = gqa("check", str(model), *arguments)
    assert done.status == 0, done.both
    assert (kept(folder, "layer_0.inputs")["past_key"] == 0.5).all()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"input_ids": IDS}, "input attention_mask (int64 [batch, total"),
        ({"input_ids": IDS, "ids": IDS}, "the model has no input ids; its inputs are input_ids, "),
        ({"input_ids": IDS.astype(np.float32)}, "input_ids is float32; the model takes int64."),
        ({"input_ids": IDS[0], "attention_mask": MASK}, "ONNX Runtime fails in its call 1: Inv"),
        ({"input_ids": IDS + 99, "attention_mask": MASK}, "ONNX Runtime fails in its call 1: ind"),
    ],
    ids=[str(number) for number in range(5)],
)
def test_unfit_inputs(gqa: Gqa, folder: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    said = refused(gqa, folder, inputs(folder, **arrays))
    assert message in said
    assert len(said.splitlines()) == 1


def refused(gqa: Gqa, folder: Path, file: Path) -> str:
    """What is said of a file of inputs that cannot be used."""
    done = gqa("check", str(Decoder().save(folder)), "--capture", str(file))
    assert (done.status, done.out) == (2, "")
    return done.err


# What a decoder feeds


@pytest.mark.push
def test_the_usual_inputs_of_decoders(check: Check, folder: Path) -> None:
    """Each has the values that programs give it; the last two change from the second call on."""
    more = [
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch", "new"]),
        helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["new"]),
        helper.make_tensor_value_info("num_logits_to_keep", TensorProto.INT64, []),
        helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, []),
        helper.make_tensor_value_info("past_sequence_length", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]),
    ]
    model = Decoder(inputs=more).save(folder)
    check(model)
    feeder = fed(model, ProgramCall("", 3, (8,)))
    found = {name: feeder.array(name) for name in feeder.inputs}
    first = fed(model, ProgramCall("", 5, (5,)))
    assert first.array("use_cache_branch").tolist() == [False]
    assert {name: found[name].tolist() for name in found if "past_key" not in name} == {
        "input_ids": [[6, 7, 1]],
        "attention_mask": [[1] * 8],
        "position_ids": [[5, 6, 7]],
        "cache_position": [5, 6, 7],
        "num_logits_to_keep": 1,
        "total_sequence_length": 8,
        "past_sequence_length": [5],
        "use_cache_branch": [True],
    }
    past = first.array("past_key_values.1.value")
    assert past.shape == (1, 2, 0, 16)


@pytest.mark.push
def test_names_of_genai_and_sizes_that_the_graph_leaves_open(check: Check, folder: Path) -> None:
    """onnxruntime-genai names the head size `kv_cache_dim` in the graph's pasts."""
    proto = Decoder().model()
    names = {"input_ids": "words", "logits": "scores"}
    for layer in (0, 1):
        for part in ("key", "value"):
            names[f"past_key_values.{layer}.{part}"] = f"cache.{layer}.{part}"
            names[f"present.{layer}.{part}"] = f"kept.{layer}.{part}"
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = names.get(value.name, value.name)
        if value.name.startswith(("cache", "kept")):
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    model = folder / "model.onnx"
    model.write_bytes(proto.SerializeToString())
    assert "input words (int64 [batch, new]) is" in check(model, status=2).err
    parts = ("key", "value")
    given = {f"past_{part}_names": f"cache.%d.{part}" for part in parts}
    given |= {"input_ids": "words", "attention_mask": "attention_mask"}
    made = {f"present_{part}_names": f"kept.%d.{part}" for part in parts} | {"logits": "scores"}
    sides = {"inputs": given, "outputs": made}
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": sides}}))
    check(model)


def fed(model: Path, call: ProgramCall) -> Feeder:
    *_, own = interface(model)
    return Feeder(own, own.inputs, 64, call)


# Models that cannot be run


def strange(model: onnx.ModelProto) -> None:
    info = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 3])
    model.graph.input.append(info)


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def without_weights(model: onnx.ModelProto) -> None:
    onnx.external_data_helper.convert_model_to_external_data(model, True, "none.data", 64)
    for tensor in model.graph.initializer:
        if tensor.external_data:
            tensor.ClearField("raw_data")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (strange, "what its input pixels (float32 [batch, 3]) is; "),
        (unknown, "NoSuchOperator"),
        (without_weights, "none.data"),
    ],
)
def test_a_model_that_cannot_be_run(
    check: Check, folder: Path, change: Callable[[onnx.ModelProto], None], says: str
) -> None:
    model, file = Decoder().model(), folder / "model.onnx"
    change(model)
    file.write_bytes(model.SerializeToString())
    assert says in check(file, status=2).err


def test_weights_that_are_cut(check: Check, borrowing: Path, folder: Path) -> None:
    weights = folder / "model.onnx.data"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "ONNX Runtime cannot load it: Des" in check(borrowing, status=2).err


def test_an_interpreter_for_the_run_alone(check: Check, folder: Path, desk: Desk) -> None:
    """No target needs to take the option."""
    arguments = "--ep", desk.runner("correct"), "--ort-python", sys.executable
    check(Decoder().save(folder), *arguments)


def test_too_much_to_keep(check: Check, folder: Path) -> None:
    model = Decoder().save(folder)
    assert "are 2002 cases, and at most 2000 fit" in check(model, steps=1000, status=2).err
    (folder / "ids.txt").write_text("1 " * 20_000)
    assert "20000 query tokens" in check(model, status=2).err


# What is kept


@pytest.mark.push
def test_kept_cases_need_no_model(check: Check, gqa: Gqa, borrowing: Path, folder: Path) -> None:
    file, results = folder / "kept.yaml", folder / "r.jsonl"
    check(borrowing, "--save-cases", str(file))
    borrowing.unlink()
    done = gqa("run", str(file), "--ep", "cpu", "--results", str(results))
    assert done.status == 0, done.both
    assert "12 results, 0 unexpected" in done.out
    assert "insensitive" not in done.out  # values of a model are as they are
    case = json.loads(results.read_text().splitlines()[1])
    assert "kept.values/layer_0.prompt" in case["call"]["inputs"][0]["values"]
    done = gqa("export", f"{file}::layer_2[stage=prompt]", str(folder / "out"), "--ep", "cpu")
    assert done.status == 0, done.both
    program = [sys.executable, str(folder / "out/repro.py")]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1] == "verdict: pass", ran
    tensor = onnx.load_tensor(folder / "out/bundle/test_data_set_0/input_0.pb")
    assert (onnx.numpy_helper.to_array(tensor) == kept(folder, "layer_2.prompt")["query"]).all()


def test_names_that_cannot_be_shown_still_feed_the_model(gqa: Gqa, folder: Path) -> None:
    name, model = "input_ids\n  fix: evil", onnx.load(Decoder().save(folder))
    for part in (*model.graph.input, *model.graph.node):
        if isinstance(part, onnx.NodeProto):
            part.input[:] = [name if each == "input_ids" else each for each in part.input]
        elif part.name == "input_ids":
            part.name = name
    onnx.save(model, folder / "renamed.onnx")
    file = inputs(folder, attention_mask=MASK, **{name: IDS})
    done = gqa("check", str(folder / "renamed.onnx"), "--capture", str(file))
    assert done.status == 0, done.both
    assert done.out.count("✓ prompt") == 2
