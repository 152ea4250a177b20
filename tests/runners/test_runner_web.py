"""The runner for onnxruntime-web: its own tests, with faulty packages, and with the real ones."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx import helper as oh
from spoken_runner import (
    RUNNERS,
    Bundle,
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
from tables import tables

from conformance.base.paths import CACHE_VARIABLE
from conformance.targets.tools import find_onnxruntime_web

TABLES = tables(__file__)

LAUNCH = RUNNERS / "onnxruntime_web" / "launch.py"
start = starting(LAUNCH)
WEB = Path(__file__).with_name("web")
X = {"x": np.array([[-1.5, 0.0, 2.0, 65504.0]], np.float16)}

#: Dawn's message without a Vulkan driver.
NO_ADAPTER = "Dawn finds no WebGPU adapter"


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder of the real packages."""
    return packages_in_node(find_onnxruntime_web, "webgpu")


@pytest.fixture(scope="module")
def webgpu(
    packages: Path, shared_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """The real runner on any available adapter, one for all tests."""
    with runners(LAUNCH, lambda: tmp_path_factory.mktemp("runner")) as started:
        environment = {CACHE_VARIABLE: str(shared_cache)}
        runner = started("--ep", "webgpu", "--modules", packages, **environment)
        answer = runner.ask(cmd="describe")
        if answer["outcome"] == "unavailable" and NO_ADAPTER in answer["reason"]:
            pytest.skip(f"needs an adapter: {answer['reason']}")
        assert answer["outcome"] == "described"
        yield runner
        assert runner.end() == 0


@pytest.fixture
def fake(tmp_path: Path, packages: Path) -> Path:
    """A folder of packages with a faulty onnxruntime-web."""
    modules = tmp_path / "fake" / "node_modules"
    package = modules / "onnxruntime-web"
    package.mkdir(parents=True)
    (package / "package.json").write_text(
        '{"name": "onnxruntime-web", "version": "9.8.7", "exports": {"./wasm": "./fake.mjs"}}'
    )
    shutil.copy(WEB / "fake_onnxruntime_web.mjs", package / "fake.mjs")
    for name in ("protobufjs", "@protobufjs", "long"):
        (modules / name).symlink_to(packages / "node_modules" / name)
    return modules.parent


@pytest.fixture
def faulty_dawn(tmp_path: Path, packages: Path) -> Path:
    """The real packages, except for a Dawn with a faulty device."""
    modules = tmp_path / "faulty" / "node_modules"
    (modules / "webgpu").mkdir(parents=True)
    (modules / "webgpu" / "package.json").write_text(
        '{"name": "webgpu", "version": "9.8.7", "type": "module", "main": "dawn.mjs"}'
    )
    shutil.copy(WEB / "faulty_dawn.mjs", modules / "webgpu" / "dawn.mjs")
    for each in (packages / "node_modules").iterdir():
        if each.name != "webgpu":
            (modules / each.name).symlink_to(each)
    return modules.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "bundle"
    made.mkdir()
    return made


@pytest.fixture
def identity(folder: Path) -> Bundle:
    """A bundle for the fake, and the files of its only step."""
    [files] = bundle(folder, one_node("Identity", TensorProto.FLOAT16, 2), X)
    return folder, files


def described(runner: Runner) -> Runner:
    assert runner.ask(cmd="describe")["outcome"] == "described"
    return runner


def test_its_modules_pass_their_own_tests(packages: Path) -> None:
    done = subprocess.run(
        ["node", "--test", *sorted(map(str, WEB.glob("*.test.mjs")))],
        env={**os.environ, "MODULES": str(packages)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "\n# fail 0\n" in done.stdout
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE)


# With a faulty onnxruntime-web


@pytest.fixture
def faulty(start: Start, fake: Path) -> Callable[[str], Runner]:
    """A runner whose onnxruntime-web has the named fault."""
    return lambda fault: described(start("--ep", "wasm", "--modules", fake, FAULT=fault))


def test_prints_never_mix_with_answers(faulty: Callable[[str], Runner], identity: Bundle) -> None:
    runner = faulty("prints")
    answer = runner.run(identity[0], step(identity[1]))
    for [got] in answer["arrays"]:
        assert_same(got, {"y": X["x"]})
    assert answer["placement"] == "CPUExecutionProvider"
    text = runner.stderr()
    for told in ("printed\n", "printed by wasm\n", "printed by node\n", "an error\n"):
        assert told in text
    assert "a warning" not in text
    assert "Initializing" not in text
    assert runner.end() == 0


@pytest.mark.parametrize(("fault", "stage", "code", "message"), TABLES["exceptions"])
def test_an_exception_of_onnxruntime_is_a_rejection(
    faulty: Callable[[str], Runner],
    identity: Bundle,
    fault: str,
    stage: str,
    code: str | None,
    message: str,
) -> None:
    runner = faulty(fault)
    answer = runner.run(identity[0], step(identity[1]))
    assert (answer["outcome"], answer["stage"], answer["code"]) == ("rejected", stage, code)
    assert message in answer["message"]
    assert runner.end() == 0


@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("trap", "memory access out of bounds"),
        ("breaks", "Required member is undefined (and nothing works any more)"),
    ],
)
def test_a_trap_or_an_error_that_breaks_the_runtime_ends_the_runner(
    faulty: Callable[[str], Runner], identity: Bundle, fault: str, last: str
) -> None:
    runner = faulty(fault)
    assert runner.run_to_its_end(identity[0], step(identity[1])) == -signal.SIGABRT
    assert runner.stderr() == f"{last}\n"


def test_a_release_that_does_not_log_placement_is_unusable(start: Start, fake: Path) -> None:
    runner = start("--ep", "wasm", "--modules", fake, FAULT="silent")
    assert runner.tell({"id": 1, "cmd": "describe"}) == b""
    assert runner.end() == 1
    assert "did not log where its nodes are placed" in runner.stderr()
    assert runner.stderr().count("\n") == 1


@pytest.mark.parametrize("named", [True, False])
def test_a_broken_package_is_reported_with_its_fix(start: Start, fake: Path, named: bool) -> None:
    (fake / "node_modules" / "onnxruntime-web" / "fake.mjs").unlink()
    runner = start("--ep", "wasm", "--modules", fake, *(["--named"] if named else []))
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert answer["reason"].startswith(
        f"onnxruntime-web in {fake} cannot be loaded: Cannot find module"
    )
    assert answer["reason"].endswith("fake.mjs'.")
    assert answer["fix"] == (None if named else f"rm -r {fake} && gqa setup webgpu")
    assert runner.end() == 0


def test_a_release_without_the_kernels_is_unavailable(start: Start, fake: Path) -> None:
    manifest = fake / "node_modules" / "onnxruntime-web" / "package.json"
    manifest.write_text('{"version": "9.8.7", "exports": {"./other": "./fake.mjs"}}')
    answer = start("--ep", "wasm", "--modules", fake).ask(cmd="describe")
    assert answer["reason"] == "onnxruntime-web 9.8.7 has no entry ./wasm."
    assert answer["fix"] is None


# On the real packages


def of_constants() -> bytes:
    """``y = a + b`` of two constants; the input ``x`` is not used."""
    nodes = [
        oh.make_node("Constant", [], [name], value_floats=values)
        for name, values in (("a", [1.0, 2.0]), ("b", [3.0, 4.0]))
    ]
    ends = [value(name, TensorProto.FLOAT, 1) for name in ("x", "y")]
    return model([*nodes, oh.make_node("Add", ["a", "b"], ["y"])], ends[:1], ends[1:])


def test_describe_reports_the_adapter(start: Start, packages: Path, webgpu: Runner) -> None:
    answer = start("--ep", "webgpu", "--modules", packages).ask(cmd="describe")
    assert answer["execution_provider"] == "WebGpuExecutionProvider"
    assert answer["adapter"]
    versions = answer["versions"]
    assert versions["onnxruntime-web"] == answer["version"]
    for name in ("node", "dawn", "adapter vendor", "adapter description", "subgroups", "limits"):
        assert versions[name], name
    assert ("float16" in answer["dtypes"]) == ("shader-f16" in versions["features"].split())


def test_a_supported_node_ran_on_the_adapter(webgpu: Runner, folder: Path) -> None:
    [files] = bundle(folder, gqa_model(), gqa_inputs(past=3, total=4))
    answer = webgpu.run(folder, step(files))
    assert answer["placement"] == "WebGpuExecutionProvider"
    [first], [second] = answer["arrays"]
    assert_same(first, second)


def test_an_unsupported_node_ran_on_the_cpu(webgpu: Runner, folder: Path) -> None:
    """The test fails if the node runs elsewhere: the WebGPU kernels have no NonZero."""
    model = one_node("NonZero", TensorProto.FLOAT, 2, TensorProto.INT64)
    [files] = bundle(folder, model, {"x": np.eye(3, dtype=np.float32)})
    answer = webgpu.run(folder, step(files))
    assert answer["placement"] == "CPUExecutionProvider"
    for [got] in answer["arrays"]:
        np.testing.assert_array_equal(got["y"], [[0, 1, 2], [0, 1, 2]])


def test_a_model_computed_while_loading_ran_on_the_cpu(webgpu: Runner, folder: Path) -> None:
    """No node remains that could fall back, which does not prove that the adapter computed it."""
    [files] = bundle(folder, of_constants(), {"x": np.zeros(2, np.float32)})
    answer = webgpu.run(folder, step(files))
    assert answer["placement"] == "CPUExecutionProvider"
    for [got] in answer["arrays"]:
        np.testing.assert_array_equal(got["y"], [4, 6])


def test_only_the_operator_counts_if_others_ran_on_the_cpu(webgpu: Runner, folder: Path) -> None:
    content = onnx.load_model_from_string(gqa_model())
    content.graph.node.append(oh.make_node("NonZero", ["query"], ["places"]))
    content.graph.output.append(value("places", TensorProto.INT64, 2))
    [files] = bundle(folder, content.SerializeToString(), gqa_inputs(past=3, total=4))
    answer = webgpu.run(folder, step(files))
    assert answer["placement"] == "WebGpuExecutionProvider"
    assert "fallback to CPU EP has been explicitly disabled" in webgpu.stderr()


def test_a_tensor_without_elements_is_rejected_and_no_crash(webgpu: Runner, folder: Path) -> None:
    """Dawn in Node ends the process where a browser throws; the next case is not affected."""
    inputs = gqa_inputs(past=0, total=1)
    del inputs["past_key"], inputs["past_value"]
    inputs["key"] = inputs["value"] = np.zeros((1, 0, 8), np.float32)
    past = {name: np.zeros((1, 1, 0, 8), np.float32) for name in ("past_key", "past_value")}
    [files] = bundle(folder, gqa_model(), {**inputs, **past})
    answer = webgpu.run(folder, step(files))
    assert (answer["outcome"], answer["stage"]) == ("rejected", "run")
    assert "is undefined" in answer["message"]
    whole = folder / "whole"
    whole.mkdir()
    [files] = bundle(whole, gqa_model(), gqa_inputs(past=3, total=4))
    assert webgpu.run(whole, step(files))["outcome"] == "ran"


@pytest.mark.night
def test_no_shader_is_reused(start: Start, webgpu: Runner, packages: Path, tmp_path: Path) -> None:
    """The older kernels reuse the shader of an MHA model for a GQA model."""
    (tmp_path / "gqa").mkdir()
    (tmp_path / "mha").mkdir()
    inputs = gqa_inputs(past=3, total=4)
    [gqa] = bundle(tmp_path / "gqa", gqa_model(), inputs)
    for name in ("key", "value"):
        inputs[name] = np.concatenate([inputs[name]] * 2, axis=2)
        inputs[f"past_{name}"] = np.concatenate([inputs[f"past_{name}"]] * 2, axis=1)
    [mha] = bundle(tmp_path / "mha", gqa_model(kv_num_heads=2), inputs)
    runner = described(start("--ep", "webgpu-jsep", "--modules", packages))
    answer = runner.run(tmp_path / "mha", step(mha))
    assert answer["placement"] == "JsExecutionProvider"
    [want], _ = answer["arrays"]
    [got], _ = runner.run(tmp_path / "gqa", step(gqa))["arrays"]
    np.testing.assert_array_equal(got["output"], want["output"])


@pytest.mark.night
@pytest.mark.parametrize("fault", ["lost", "lost while read"])
def test_a_device_that_is_lost_ends_the_process_at_once(
    start: Start, webgpu: Runner, packages: Path, faulty_dawn: Path, folder: Path, fault: str
) -> None:
    environment = {"DAWN": str(packages), "FAULT": fault}
    runner = described(start("--ep", "webgpu", "--modules", faulty_dawn, **environment))
    [files] = bundle(folder, gqa_model(), gqa_inputs(past=8, total=4))
    share = {"present_key": "past_key", "present_value": "past_value"}
    request = {"id": 9, "cmd": "run", "bundle": str(folder), "out": str(folder), "repeat": 1}
    line = runner.tell({**request, "steps": [step(files, share=share)]})
    assert line == b"" or b"compiling" in line
    assert runner.process.wait(60) == -signal.SIGABRT
    assert "the device was lost: destroyed" in runner.stderr()


@pytest.mark.push
def test_an_error_outside_of_any_call_is_reported_with_its_case(
    start: Start, webgpu: Runner, packages: Path, faulty_dawn: Path, folder: Path
) -> None:
    environment = {"DAWN": str(packages), "FAULT": "error"}
    runner = described(start("--ep", "webgpu", "--modules", faulty_dawn, **environment))
    [files] = bundle(folder, gqa_model(), gqa_inputs(past=3, total=4))
    assert runner.run(folder, step(files))["outcome"] == "ran"
    assert "GPUValidationError outside of any call: " in runner.stderr()
