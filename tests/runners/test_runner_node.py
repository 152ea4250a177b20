"""The runner for onnxruntime-node: with the real package, and with faulty ones."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto
from spoken_runner import (
    GQA_OUTPUTS,
    RUNNERS,
    Runner,
    Start,
    assert_same,
    bundle,
    gqa_inputs,
    gqa_model,
    model,
    one_node,
    packages_in_node,
    runners,
    starting,
    step,
    value,
)

from conformance.targets.tools import ONNXRUNTIME_NODE_VERSION, find_onnxruntime_node

LAUNCH = RUNNERS / "onnxruntime_web" / "launch.py"
start = starting(LAUNCH)
X = {"x": np.array([1.0, 2.0], np.float32)}
TYPES = {"float32", "float16", "int8", "uint8", "int32", "int64"}
SHARE = {"present_key": "past_key", "present_value": "past_value"}


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of the real packages."""
    return packages_in_node(find_onnxruntime_node, "node")


@pytest.fixture(scope="module")
def node(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The real runner, one for most tests."""
    with runners(LAUNCH, lambda: tmp_path_factory.mktemp("runner")) as started:
        runner = started("--ep", "node", "--modules", packages)
        assert runner.ask(cmd="describe")["version"] == ONNXRUNTIME_NODE_VERSION
        yield runner
        assert runner.end() == 0


# ran


def test_a_shared_buffer_is_reused_in_the_steps_of_a_repeat(node: Runner, tmp_path: Path) -> None:
    """``present = past + 1`` in place; each repeat starts from the values in the files."""
    floats = TensorProto.FLOAT
    content = model(
        [oh.make_node("Add", ["past", "one"], ["present"])],
        [value("past", floats, 2), value("one", floats, 0)],
        [value("present", floats, 2)],
    )
    one, past = np.array(1, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    files = bundle(tmp_path, content, {"past": past, "one": one}, {"one": one}, {"one": one})
    carry, share = {"past": "present"}, {"present": "past"}
    plan = [step(files[0], share=share), step(files[1], carry, share), step(files[2], carry)]
    for run in node.run(tmp_path, *plan)["arrays"]:
        for added, got in enumerate(run, start=1):
            assert_same(got, {"present": past + added})


def test_attention_with_a_shared_static_cache(node: Runner, tmp_path: Path) -> None:
    """Only in shared memory the rows after the last one in use stay."""
    arrays = gqa_inputs(past=8, total=5)
    [files] = bundle(tmp_path, gqa_model(), arrays)
    for [got] in node.run(tmp_path, step(files, share=SHARE))["arrays"]:
        for name, past in SHARE.items():
            new = arrays[past.removeprefix("past_")].reshape(1, 1, 1, 8)
            rows = [arrays[past][:, :, :4], new, arrays[past][:, :, 5:]]
            np.testing.assert_array_equal(got[name], np.concatenate(rows, axis=2))


def test_a_present_that_does_not_fit_into_its_past_is_rejected(
    node: Runner, tmp_path: Path
) -> None:
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    answer = node.run(tmp_path, step(files, share=SHARE))
    assert (answer["outcome"], answer["stage"]) == ("rejected", "run")


# On WebGPU


WEBGPU = "WebGpuExecutionProvider"


@pytest.fixture(scope="module")
def webgpu(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The real runner on any available adapter, one for most tests."""
    with runners(LAUNCH, lambda: tmp_path_factory.mktemp("runner")) as started:
        runner = on_adapter(started, packages)
        yield runner
        assert runner.end() == 0


def on_adapter(start: Start, folder: Path, *options: str, **environment: str) -> Runner:
    """A runner on WebGPU that has described itself; skips without an adapter."""
    runner = start("--ep", "node-webgpu", "--modules", folder, *options, **environment)
    answer = runner.ask(cmd="describe")
    if answer["outcome"] == "unavailable":
        pytest.skip(f"needs an adapter: {answer['reason']}")
    assert (answer["execution_provider"], answer["version"]) == (WEBGPU, ONNXRUNTIME_NODE_VERSION)
    return runner


def test_the_library_computes_on_the_adapter_that_is_described(
    start: Start, packages: Path, tmp_path: Path
) -> None:
    """Only libraries of its driver are in the memory of the process."""
    libraries = {"lavapipe": "libvulkan_lvp", "swiftshader": "libvk_swiftshader"}
    for adapter, library in libraries.items():
        runner = on_adapter(start, packages, "--adapter", adapter)
        answer = runner.ask(cmd="describe")
        assert answer["adapter"] == adapter
        assert ("float16" in answer["dtypes"]) == ("float16" not in answer["lacks"])
        maps = Path(f"/proc/{runner.process.pid}/maps").read_text()
        assert [each for each in libraries.values() if each in maps] == [library]


def test_a_cache_in_a_shared_buffer_stays_on_the_device(webgpu: Runner, tmp_path: Path) -> None:
    """Only in shared memory the rows after the last one in use stay, here over two steps; a third
    one has three rows of it as its past."""
    first, second = gqa_inputs(past=8, total=5), gqa_inputs(past=8, total=6, seed=1)
    last = gqa_inputs(past=3, total=4, seed=2)
    for arrays in (second, last):
        del arrays["past_key"], arrays["past_value"]
    files = bundle(tmp_path, gqa_model(), first, second, last)
    carry = {past: present for present, past in SHARE.items()}
    shared = (step(files[0], share=SHARE), step(files[1], carry, SHARE))
    answer = webgpu.run(tmp_path, *shared, step(files[2], carry, keep=3))
    assert answer["placement"] == WEBGPU
    for run in answer["arrays"]:
        for present, past in SHARE.items():
            want = first[past].copy()
            word = past.removeprefix("past_")
            for at, arrays, got in ((4, first, run[0]), (5, second, run[1])):
                want[:, :, at] = arrays[word].reshape(1, 1, 8)
                np.testing.assert_array_equal(got[present], want)
            new = last[word].reshape(1, 1, 1, 8)
            want = np.concatenate([want[:, :, :3], new], axis=2)
            np.testing.assert_array_equal(run[2][present], want)


def test_nodes_that_ran_on_the_cpu_are_seen_in_a_profile(webgpu: Runner, tmp_path: Path) -> None:
    """The WebGPU kernels have no NonZero, which counts only in a graph without the operator."""
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    alone.mkdir()
    beside.mkdir()
    content = one_node("NonZero", TensorProto.FLOAT, 2, TensorProto.INT64)
    [files] = bundle(alone, content, {"x": np.eye(3, dtype=np.float32)})
    answer = webgpu.run(alone, step(files))
    assert answer["placement"] == "CPUExecutionProvider"
    graph = onnx.load_model_from_string(gqa_model())
    graph.graph.node.append(oh.make_node("NonZero", ["query"], ["places"]))
    graph.graph.output.append(value("places", TensorProto.INT64, 2))
    [files] = bundle(beside, graph.SerializeToString(), gqa_inputs(past=3, total=4))
    assert webgpu.run(beside, step(files))["placement"] == WEBGPU


def test_a_case_compiles_when_it_runs_for_the_first_time(webgpu: Runner, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=5, total=6, seed=7))
    before = webgpu.compiled
    for _ in range(2):
        assert webgpu.run(tmp_path, step(files))["outcome"] == "ran"
    assert webgpu.compiled == before + 1


LOSING = """
const real = require(process.env.REAL);
const { create } = real.InferenceSession;
let calls = 0;
real.InferenceSession.create = async (...given) => {
  calls += 1;
  if (process.env.FAULT === "none") throw new Error("no available backend found");
  if (calls < 3) return create.apply(real.InferenceSession, given);
  return { outputNames: [], async run() { throw new Error("lost"); }, async release() {} };
};
const { run } = real.InferenceSession.prototype;
real.InferenceSession.prototype.run = function (...given) {
  if (calls > 2) throw new Error("lost");
  return run.apply(this, given);
};
module.exports = real;
"""


def test_a_device_that_computes_nothing_any_more_ends_the_process(
    start: Start, packages: Path, webgpu: Runner, tmp_path: Path
) -> None:
    folder, real = faulty(tmp_path, packages, LOSING), packages / "node_modules/onnxruntime-node"
    runner = start("--ep", "node-webgpu", "--modules", folder, REAL=str(real))
    assert runner.ask(cmd="describe")["outcome"] == "described"
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    request = {"id": 9, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path), "repeat": 1}
    assert b"compiling" in runner.tell({**request, "steps": [step(files)]})
    assert runner.process.wait(60) == -signal.SIGABRT
    assert "lost (and nothing works any more)" in runner.stderr()


def test_a_package_without_the_provider_is_unavailable(
    start: Start, packages: Path, webgpu: Runner, tmp_path: Path
) -> None:
    folder, real = faulty(tmp_path, packages, LOSING), packages / "node_modules/onnxruntime-node"
    runner = start("--ep", "node-webgpu", "--modules", folder, REAL=str(real), FAULT="none")
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert answer["reason"] == "onnxruntime-node: no available backend found."


# not ran


def test_rejected_while_loading(node: Runner, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, one_node("NoSuchOperator", TensorProto.FLOAT, 1), X)
    answer = node.run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 0)
    assert "NoSuchOperator" in answer["message"]


def test_rejected_at_run_names_the_step(node: Runner, tmp_path: Path) -> None:
    good, bad = gqa_inputs(past=4, total=5), gqa_inputs(past=4, total=5)
    bad["key"] = np.ones((1, 1, 24), np.float32)
    files = bundle(tmp_path, gqa_model(), good, bad)
    answer = node.run(tmp_path, *map(step, files))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "run", 1)
    assert answer["message"].startswith("Non-zero status code returned while running GroupQuery")


def test_a_dtype_that_the_interface_lacks_is_unavailable(node: Runner, tmp_path: Path) -> None:
    kind = oh.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    arrays = {"x": np.ones(2, kind)}
    [files] = bundle(tmp_path, one_node("Identity", TensorProto.BFLOAT16, 1), arrays)
    answer = node.run(tmp_path, step(files))
    assert answer["outcome"] == "unavailable"
    assert "takes no TensorProto type 16 (x)" in answer["reason"]


def test_a_crash_of_the_library_kills_the_process(
    start: Start, packages: Path, tmp_path: Path
) -> None:
    """The harness counts it as a crash: docs/findings/ort-cpu-borrowed-without-presents.md."""
    content = onnx.load_model_from_string(gqa_model())
    del content.graph.node[0].output[1:], content.graph.output[1:]
    arrays = gqa_inputs(past=8, total=8)
    arrays["key"] = arrays["value"] = np.zeros((1, 0, 8), np.float32)
    [files] = bundle(tmp_path, content.SerializeToString(), arrays)
    runner = start("--ep", "node", "--modules", packages)
    assert runner.ask(cmd="describe")["outcome"] == "described"
    assert runner.run_to_its_end(tmp_path, step(files)) == -signal.SIGSEGV


# With a faulty onnxruntime-node


NOISY = """
const real = require(process.env.REAL);
const { create } = real.InferenceSession;
const noise = () => require("fs").writeSync(1, "noise\\n"); // as C would
real.InferenceSession.create = (model, options) => {
  noise();
  console.log(JSON.stringify(options));
  return create(model, options);
};
module.exports = real;
"""


def faulty(folder: Path, packages: Path, source: str | None) -> Path:
    """A folder of packages with an onnxruntime-node of this source, or without one."""
    modules = folder / "faulty" / "node_modules"
    package = modules / "onnxruntime-node"
    package.mkdir(parents=True)
    (package / "package.json").write_text(
        '{"name": "onnxruntime-node", "version": "9.8.7", "main": "main.js"}'
    )
    if source is not None:
        (package / "main.js").write_text(source)
    for name in ("protobufjs", "@protobufjs", "long", "webgpu"):
        (modules / name).symlink_to(packages / "node_modules" / name)
    return modules.parent


def test_prints_never_mix_with_answers_and_there_is_one_thread(
    start: Start, packages: Path, tmp_path: Path
) -> None:
    folder, real = faulty(tmp_path, packages, NOISY), packages / "node_modules/onnxruntime-node"
    runner = start("--ep", "node", "--modules", folder, REAL=str(real))
    assert runner.ask(cmd="describe")["version"] == "9.8.7"
    arrays = gqa_inputs(past=4, total=5)
    [files] = bundle(tmp_path, gqa_model(), arrays)
    [[got], _] = runner.run(tmp_path, step(files))["arrays"]
    assert [*got] == [*GQA_OUTPUTS]
    assert runner.end() == 0
    *_, printed, options = runner.stderr().splitlines()
    assert printed == "noise"
    told = json.loads(options)
    assert told["executionProviders"] == ["cpu"]
    assert (told["intraOpNumThreads"], told["interOpNumThreads"]) == (1, 1)


REFUSING = """
const real = require(process.env.REAL);
const run = async () => { throw new Error("not enough space: expected 2, got 0"); };
real.InferenceSession.create = async () => ({ outputNames: ["sum"], run, async release() {} });
module.exports = real;
"""


def test_float16_is_no_dtype_where_the_package_refuses_it(
    start: Start, packages: Path, tmp_path: Path
) -> None:
    folder, real = faulty(tmp_path, packages, REFUSING), packages / "node_modules/onnxruntime-node"
    runner = start("--ep", "node", "--modules", folder, REAL=str(real))
    assert sorted(runner.ask(cmd="describe")["dtypes"]) == sorted(TYPES - {"float16"})


@pytest.mark.parametrize("named", [True, False])
def test_a_broken_package_is_reported_with_its_fix(
    start: Start, packages: Path, tmp_path: Path, named: bool
) -> None:
    folder = faulty(tmp_path, packages, None)
    runner = start("--ep", "node", "--modules", folder, *(["--named"] if named else []))
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert answer["reason"].startswith(f"onnxruntime-node in {folder} cannot be loaded: Cannot")
    assert answer["fix"] == (None if named else f"rm -r {folder} && gqa setup node")
    assert runner.end() == 0


def test_an_error_of_its_own_ends_it_with_1(start: Start, packages: Path, tmp_path: Path) -> None:
    folder = faulty(tmp_path, packages, "module.exports = {};")
    runner = start("--ep", "node", "--modules", folder)
    assert runner.tell({"id": 1, "cmd": "describe"}) == b""
    assert runner.end() == 1
    assert re.match(r"node_runner\.mjs: TypeError: .*\(node_runner\.mjs:\d+\)\n$", runner.stderr())


# The same code as in the Python package


@pytest.mark.night
def test_every_bit_is_that_of_the_python_package(packages: Path, tmp_path: Path) -> None:
    """Of the same release, on the whole corpus."""
    file = tmp_path / "both.jsonl"
    eps = ("--ep", "node", "--ep", f"cpu@{ONNXRUNTIME_NODE_VERSION}")
    command = (sys.executable, "-P", "-m", "conformance", "run", *eps, "--results", str(file))
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for line in file.read_text().splitlines():
        one = json.loads(line)
        if one["kind"] == "result" and one["verdict"] != "skip":
            # What is read from memory that no call wrote differs from process to process.
            bits = one.get("bits", "") if one["verdict"] == "pass" else ""
            found.setdefault(one["target"], {})[one["case"]] = (one["verdict"], bits)
    node, cpu = (found[f"{name}@{ONNXRUNTIME_NODE_VERSION}"] for name in ("node", "cpu"))
    assert node == {case: cpu[case] for case in node}
    assert sum(bits != "" for _, bits in node.values()) > 5000
