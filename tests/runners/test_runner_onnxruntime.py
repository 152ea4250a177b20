"""The runner for ONNX Runtime, driven like the harness drives it: as a process with messages.

Small models of one or two nodes; each answer is checked with the protocol's JSON Schema, each value
with a plain ONNX Runtime session.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto, numpy_helper
from spoken_runner import (
    ANSWERS,
    GQA_OUTPUTS,
    REQUESTS,
    RUNNERS,
    Message,
    Modules,
    Runner,
    Start,
    assert_same,
    bundle,
    fake_package,
    gqa_inputs,
    gqa_model,
    importing,
    load,
    model,
    one_node,
    starting,
    step,
    value,
)

from conformance.harness.protocol import DescribeRequest, parse_answer
from conformance.operator.signature import OP_TYPE
from conformance.results.uncalled import uncalled_sentences
from conformance.run.target import DescribedTarget
from conformance.targets.registry import target_for

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

FOLDER = RUNNERS / "onnxruntime"
RUNNER = FOLDER / "runner.py"
CPU = "CPUExecutionProvider"
README = (RUNNERS / "README.md").read_text()

start = starting(RUNNER, "--ep", "cpu", scope="module")
module = importing("onnxruntime")


@pytest.fixture(scope="module")
def cpu(start: Start) -> Runner:
    """The runner that most tests share."""
    return start()


def plain_session(content: bytes) -> Any:
    return onnxruntime.InferenceSession(content, providers=[CPU])


# describe


def test_describe_reports_the_operator_and_a_case_can_call_all_of_it(cpu: Runner) -> None:
    """If this fails with a new release, CONTRIBUTING.md has the steps."""
    answer = parse_answer(json.dumps({"id": 1, **cpu.ask(cmd="describe")}), DescribeRequest(id=1))
    operator = answer.operator
    state = onnxruntime.capi.onnxruntime_pybind11_state
    (schema,) = (one for one in state.get_all_operator_schema() if one.name == OP_TYPE)
    assert operator.declared_by == f"onnxruntime {onnxruntime.__version__}"
    assert list(operator.inputs) == [one.name for one in schema.inputs]
    assert list(operator.outputs) == [one.name for one in schema.outputs]
    assert list(operator.attributes) == sorted(schema.attributes)
    assert operator.inputs["query"] == {"float32", "float16", "bfloat16"}
    kinds = {name: operator.attributes[name] for name in ("scale", "num_heads", "k_quant_type")}
    assert kinds == {"scale": "float", "num_heads": "int", "k_quant_type": "string"}
    record = DescribedTarget(target_for("cpu"), answer, None, None).record()
    assert uncalled_sentences([record]) == []


def test_a_build_that_cannot_say_reports_no_operator(module: Modules) -> None:
    def schema_of(**state: Any) -> Any:
        capi = SimpleNamespace(onnxruntime_pybind11_state=SimpleNamespace(**state))
        there = SimpleNamespace(capi=capi, __version__="1.40.0")
        return module("ort_availability").operator_schema(there)

    assert schema_of() is None
    assert schema_of(get_all_operator_schema=list) is None
    other = SimpleNamespace(domain="com.microsoft", name=OP_TYPE, since_version=1)
    assert schema_of(get_all_operator_schema=lambda: [other]) is None


def test_a_call_has_the_threads_that_it_was_told(start: Start) -> None:
    assert start("--ep", "cpu", "--threads", "4").ask(cmd="describe")["threads"] == 4


# ran


# Loops and shared buffers


def test_a_shared_buffer_is_reused_in_the_steps_of_a_repeat(cpu: Runner, tmp_path: Path) -> None:
    """``present = past + 1`` in place. The result is read from the input's memory."""
    floats = TensorProto.FLOAT
    content = model(
        [oh.make_node("Add", ["past", "one"], ["present"])],
        [value("past", floats, 2), value("one", floats, 0)],
        [value("present", floats, 2)],
    )
    one = np.array(1, np.float32)
    past = np.arange(6, dtype=np.float32).reshape(2, 3)
    files = bundle(tmp_path, content, {"past": past, "one": one}, {"one": one}, {"one": one})
    carry, share = {"past": "present"}, {"present": "past"}
    answer = cpu.run(
        tmp_path,
        step(files[0], share=share),
        step(files[1], carry, share),
        step(files[2], carry),  # the buffer as a plain input
    )
    for run in answer["arrays"]:
        assert_same(run[0], {"present": past + 1})
        assert_same(run[1], {"present": past + 2})
        assert_same(run[2], {"present": past + 3})


def test_attention_with_a_shared_static_cache(cpu: Runner, tmp_path: Path) -> None:
    content = gqa_model()
    arrays = gqa_inputs(past=8, total=5)
    [files] = bundle(tmp_path, content, arrays)
    share = {"present_key": "past_key", "present_value": "past_value"}
    answer = cpu.run(tmp_path, step(files, share=share))
    want = dict(zip(GQA_OUTPUTS, plain_session(content).run(None, arrays), strict=True))
    for [got] in answer["arrays"]:
        assert got["present_key"].shape == (1, 1, 8, 8)
        np.testing.assert_array_equal(got["output"], want["output"])
        for name, past in share.items():
            np.testing.assert_array_equal(got[name][:, :, :5], want[name][:, :, :5])
            # Only a shared cache keeps the past's rows after the last row in use.
            np.testing.assert_array_equal(got[name][:, :, 5:], arrays[past][:, :, 5:])


def test_a_present_that_does_not_fit_into_its_past_is_rejected(cpu: Runner, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    answer = cpu.run(tmp_path, step(files, share={"present_key": "past_key"}))
    assert (answer["outcome"], answer["stage"]) == ("rejected", "run")


class WritingSession:
    """A session whose kernel adds 1 to its input and outputs a copy of it."""

    outputs_meta = (SimpleNamespace(name="y"),)

    def run_with_ort_values(self, feeds: Message, names: list[str], options: None) -> list[Any]:
        pointer = ctypes.cast(feeds["x"].data_ptr(), ctypes.POINTER(ctypes.c_float))
        pointer[0] += 1
        array = np.array([pointer[0]], np.float32)
        return [onnxruntime.OrtValue.ortvalue_from_numpy(array)._ortvalue]


def test_changed_input(module: Modules, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An input that a kernel changed is restored and reported."""
    execution = module("ort_execution")
    runtime = execution.Runtime(onnxruntime, module("ort_providers").BuiltIn(onnxruntime, CPU))
    tensor = execution.Tensor("x", 1, (1,), np.array([5], np.float32).tobytes())
    case = execution.Case(runtime, WritingSession(), [step({})], [{"x": tensor}], str(tmp_path))
    for repeat in range(2):
        [files], _ = case.run(repeat)
        assert load(tmp_path / files["y"], "y") == 6
    assert "changed its input 'x' (step 0, repeat 1)" in capsys.readouterr().err


class WritingAndRefusingSession(WritingSession):
    """A session that has written to its buffer when it refuses the call."""

    def run_with_iobinding(self, binding: Any, options: None) -> None:
        pointer = ctypes.cast(self.buffer.data_ptr(), ctypes.POINTER(ctypes.c_float))
        pointer[0] += 1
        raise RuntimeError("too late")


def test_replaced_buffer(module: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejection after which a shared buffer is another says so."""
    execution = module("ort_execution")
    runtime = execution.Runtime(onnxruntime, module("ort_providers").BuiltIn(onnxruntime, CPU))
    tensors = {
        name: execution.Tensor(name, 1, (1,), np.array([5], np.float32).tobytes())
        for name in ("past", "read")
    }
    session = WritingAndRefusingSession()

    def bound(case: Any, feeds: Message, shared: Message) -> None:
        session.buffer = shared["y"]
        session.run_with_iobinding(None, None)

    monkeypatch.setattr(execution.Case, "run_bound", bound)
    shares = {**step({}), "share": {"y": "past"}}
    case = execution.Case(runtime, session, [shares], [tensors], str(tmp_path))
    with pytest.raises(execution.Rejected, match="too late") as refusal:
        case.run(0)
    assert refusal.value.changed == ["past"]


# rejected


def test_rejected_at_load(cpu: Runner, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, one_node("NoSuchOperator", 1, 1), {"x": np.ones(1, np.float32)})
    answer = cpu.run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 0)
    assert answer["code"] in ("FAIL", "INVALID_GRAPH")
    assert "NoSuchOperator" in answer["message"]


def test_rejected_at_run_names_the_step(cpu: Runner, tmp_path: Path) -> None:
    good, bad = gqa_inputs(past=4, total=5), gqa_inputs(past=4, total=5)
    bad["key"] = np.ones((1, 1, 24), np.float32)
    files = bundle(tmp_path, gqa_model(), good, bad)
    answer = cpu.run(tmp_path, step(files[0]), step(files[1]))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "run", 1)
    assert answer["code"] == "INVALID_ARGUMENT"
    with pytest.raises(Exception, match="kv_hidden_size") as plain:
        plain_session(gqa_model()).run(None, bad)
    assert answer["message"] == str(plain.value)
    assert answer["changed"] == []


def test_errors_that_count_as_rejections(module: Modules) -> None:
    execution = module("ort_execution")
    state = onnxruntime.capi.onnxruntime_pybind11_state
    for refusal in (state.Fail("no"), RuntimeError("no"), MemoryError("std::bad_alloc")):
        assert execution.is_refusal(refusal)
    for fault in (TypeError(), AttributeError(), KeyError(), OSError()):
        assert not execution.is_refusal(fault)
    assert execution.Rejected("run", 0, state.EPFail("no")).code == "EP_FAIL"
    assert execution.Rejected("run", 0, state.NotImplemented("no")).code == "NOT_IMPLEMENTED"
    memory = execution.Rejected("run", 0, MemoryError("std::bad_alloc"))
    assert (memory.code, memory.message) == (None, "std::bad_alloc")
    assert len(execution.Rejected("run", 0, RuntimeError("x" * 10**7)).message) < 2**17


# Placement


def test_a_profile_proves_the_placement_too(start: Start, tmp_path: Path) -> None:
    """As required before 1.24; its file is removed afterwards, also when the case was rejected."""
    runner = start("--ep", "cpu", "--placement", "profile")
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    arrays = gqa_inputs(past=4, total=5)
    [files] = bundle(good, gqa_model(), arrays)
    assert runner.run(good, step(files))["placement"] == CPU
    [files] = bundle(bad, gqa_model(), {**arrays, "key": np.ones((1, 1, 24), np.float32)})
    assert runner.run(bad, step(files))["outcome"] == "rejected"
    assert list(tmp_path.glob("*/out*/profile*")) == []
    assert runner.end() == 0


def test_placement_is_where_the_operator_ran(module: Modules) -> None:
    placement_of = module("ort_execution").placement_of
    cuda, gqa = "CUDAExecutionProvider", "GroupQueryAttention"
    assert placement_of([(gqa, cuda)], cuda) == cuda
    assert placement_of([("Cast", CPU), (gqa, cuda)], cuda) == cuda
    assert placement_of([("Cast", cuda), (gqa, CPU)], cuda) == CPU
    assert placement_of([(gqa, cuda), (gqa, CPU)], cuda) == CPU
    assert placement_of([("Cast", cuda), ("Add", CPU)], cuda) == CPU
    assert placement_of([], cuda) == CPU


def test_the_nodes_of_a_profile(module: Modules) -> None:
    events = [
        {"cat": "Session", "name": "session_initialization", "args": {}},
        {"cat": "Node", "name": "a_fence_before", "args": {"op_name": "GroupQueryAttention"}},
        {
            "cat": "Node",
            "name": "a_kernel_time",
            "args": {"op_name": "GroupQueryAttention", "provider": "CUDAExecutionProvider"},
        },
    ]
    nodes = module("ort_execution").profiled_nodes(json.dumps(events))
    assert nodes == [("GroupQueryAttention", "CUDAExecutionProvider")]


def test_a_graph_folded_at_load_ran_on_the_cpu(cpu: Runner, tmp_path: Path) -> None:
    constant = numpy_helper.from_array(np.ones(2, np.float32), "one")
    node = oh.make_node("Add", ["one", "one"], ["y"])
    graph = oh.make_graph([node], "test", [], [value("y", 1, 1)], [constant])
    content = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 19)], ir_version=9)
    bundle(tmp_path, content.SerializeToString())
    answer = cpu.run(tmp_path, step({}))
    assert answer["placement"] == CPU
    assert_same(answer["arrays"][0][0], {"y": np.full(2, 2, np.float32)})


# Errors that end the runner: defects of a bundle or a request never look like a rejection


def test_outputs_that_cannot_be_written_end_it_with_1(start: Start, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, one_node("Identity", 1, 1), {"x": np.ones(2, np.float32)})
    runner = start()
    request = {"id": 1, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path / "gone")}
    assert runner.tell({**request, "repeat": 2, "steps": [step(files)]}) == b""
    assert runner.end() == 1
    assert "No such file" in runner.stderr()


@pytest.mark.parametrize("request_", [{"id": 1, "cmd": "dance"}, {"cmd": "describe"}], ids=str)
def test_a_request_it_does_not_know_ends_it_with_1(start: Start, request_: Message) -> None:
    runner = start()
    assert runner.tell(request_) == b""
    assert runner.end() == 1
    assert re.match(r"runner\.py: \w+: .*\(serving\.py:\d+\)\n$", runner.stderr())


# A faulty onnxruntime: a fake package of that name that is found first


def test_an_interpreter_without_site_packages(start: Start) -> None:
    answer = start(python=("-S",), PYTHONPATH="").ask(cmd="describe")
    assert answer["reason"] == f"onnxruntime is not installed in {sys.executable}."


NOISY = """
import os
def noise():
    os.write(1, b'{"id": 1, "outcome": "unavailable", "reason": "noise"}\\n')  # as C would
    print("noise")
noise()
__path__ = [REAL]
__file__ = REAL + "/__init__.py"
exec(compile(open(__file__).read(), __file__, "exec"))
class InferenceSession(InferenceSession):
    def __init__(self, *arguments, **options):
        noise()
        super().__init__(*arguments, **options)
"""


def test_output_of_a_library_never_mixes_with_an_answer(start: Start, tmp_path: Path) -> None:
    real = os.path.dirname(onnxruntime.__file__)
    runner = start(**fake_package(tmp_path, "onnxruntime", NOISY.replace("REAL", repr(real))))
    assert runner.ask(cmd="describe")["outcome"] == "described"
    [files] = bundle(tmp_path, one_node("Identity", 1, 1), {"x": np.ones(2, np.float32)})
    assert runner.run(tmp_path, step(files))["outcome"] == "ran"
    assert runner.end() == 0
    assert runner.stderr().count("\nnoise\n") == 2


# Dependencies


def test_it_imports_neither_the_package_nor_onnx(start: Start, tmp_path: Path) -> None:
    runner = start(python=("-I", "-X", "importtime"))
    runner.ask(cmd="describe")
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    assert runner.run(tmp_path, step(files))["outcome"] == "ran"
    assert runner.end() == 0
    lines = re.findall(r"^import time:.*\|\s*([\w.]+)$", runner.stderr(), re.MULTILINE)
    imported = {name.split(".")[0] for name in lines}
    assert {"numpy", "onnxruntime", "tensor_file"} <= imported
    assert imported.isdisjoint({"conformance", "onnx", "ml_dtypes", "google"})


# Tensor files


def test_a_tensor_file_larger_than_one_read(module: Modules, tmp_path: Path) -> None:
    files = module("tensor_file")
    path = str(tmp_path / "tensor.pb")
    for count in (files.SMALL // 4 - 5, files.SMALL // 4, files.SMALL):
        raw = np.arange(count, dtype=np.int32).tobytes()
        files.write_tensor(path, files.Tensor("x", TensorProto.INT32, (count,), raw))
        assert files.read_tensor(path).raw == raw


BAD_TENSORS = {
    "field 4": oh.make_tensor("x", TensorProto.FLOAT, [2], [1.0, 2.0]).SerializeToString(),
    "data_type is 8": oh.make_tensor("x", TensorProto.STRING, [0], []).SerializeToString(),
    "need 8": b"\x08\x02\x10\x01\x4a\x04\x00\x00\x00\x00",
    "middle of a field": b"\x08\x02\x10\x01\x4a\x08\x00",
    "middle": b"\x08",
    "wire type 5": b"\x25\x00\x00\x00\x00",
    "64 bits": b"\x08" + b"\xff" * 11,
}


@pytest.mark.parametrize("text", BAD_TENSORS)
def test_a_file_that_is_no_tensor_is_reported(module: Modules, tmp_path: Path, text: str) -> None:
    files = module("tensor_file")
    path = tmp_path / "tensor.pb"
    path.write_bytes(BAD_TENSORS[text])
    with pytest.raises(files.BadFile, match=text):
        files.read_tensor(str(path))


# The protocol page


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", fenced("json"))
def test_the_examples_of_the_page_are_valid(text: str) -> None:
    message = json.loads(text)
    (REQUESTS if "cmd" in message else ANSWERS).validate(message)


def test_the_runner_in_the_page_is_complete(tmp_path: Path) -> None:
    [source] = fenced("python")
    program = tmp_path / "my-runner"
    program.write_text(source)
    runner = Runner([sys.executable, str(program)], tmp_path / "stderr")
    assert runner.ask(cmd="describe")["outcome"] == "described"
    content = gqa_model()
    later = gqa_inputs(past=5, total=6)
    del later["past_key"]
    files = bundle(tmp_path, content, gqa_inputs(past=4, total=5), later)
    answer = runner.run(tmp_path, step(files[0]), step(files[1], {"past_key": "present_key"}))
    assert answer["outcome"] == "ran", answer
    want = plain_session(content).run(["output"], gqa_inputs(past=4, total=5))
    np.testing.assert_array_equal(answer["arrays"][0][0]["output"], want[0])
    bad = step({name: file for name, file in files[0].items() if name != "query"})
    assert runner.run(tmp_path, bad)["outcome"] == "rejected"
    assert runner.end() == 0
