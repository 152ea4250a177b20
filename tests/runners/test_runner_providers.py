"""The ONNX Runtime runner on other providers: plugins, placement, memory of a device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from spoken_runner import (
    RUNNERS,
    Modules,
    Runner,
    Start,
    bundle,
    gqa_inputs,
    gqa_model,
    importing,
    load,
    one_node,
    starting,
    step,
)
from tables import tables

from conformance.run.engine import PlanRun
from conformance.run.target import Plan
from conformance.targets.catalogue import OptionValues, TargetError
from conformance.targets.registry import target_for

TABLES = tables(__file__)

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

RUNNER = RUNNERS / "onnxruntime" / "runner.py"
start = starting(RUNNER, scope="module")
module = importing("onnxruntime")
CPU = "CPUExecutionProvider"
# Plugins


@pytest.fixture(scope="module")
def plugin(start: Start) -> Runner:
    pytest.importorskip("nxrt_ep_cpu", reason="needs nxrt-ep-cpu: pip install nxrt-ep-cpu")
    return start("--plugin", "nxrt_ep_cpu")


def test_a_plugin_describes_itself(plugin: Runner) -> None:
    answer = plugin.ask(cmd="describe")
    assert answer["outcome"] == "described"
    assert answer["runtime"] == answer["name"] == "nxrt_ep_cpu"
    assert answer["execution_provider"] == "cpu_ep"
    assert answer["versions"]["onnxruntime"] == onnxruntime.__version__
    assert answer["versions"]["plugin"].endswith(".so")


def test_a_plugin_runs_a_case_and_its_placement_is_proven(plugin: Runner, tmp_path: Path) -> None:
    arrays = gqa_inputs(past=4, total=5)
    [files] = bundle(tmp_path, gqa_model(), arrays)
    answer = plugin.run(tmp_path, step(files))
    assert answer["outcome"] == "ran"
    assert answer["placement"] == "cpu_ep"
    session = onnxruntime.InferenceSession(gqa_model(), providers=[CPU])
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(None, arrays), strict=True))
    for name, array in answer["arrays"][0][0].items():
        np.testing.assert_allclose(array, wanted[name], atol=1e-5)


def test_a_node_that_the_plugin_does_not_take_is_rejected(plugin: Runner, tmp_path: Path) -> None:
    # Without enable_fallback=0 Python would run it on the CPU.
    [files] = bundle(
        tmp_path, one_node("Det", TensorProto.FLOAT, 2, 1), {"x": np.eye(2, dtype="f")}
    )
    answer = plugin.run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"]) == ("rejected", "load")


@pytest.mark.parametrize(("word", "reason"), TABLES["plugins"])
def test_a_plugin_that_is_not_there(start: Start, word: str, reason: str) -> None:
    answer = start("--plugin", word).ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert reason in answer["reason"]
    assert answer["fix"] is None  # a word is not the name of a package


def test_a_library_that_is_no_plugin(start: Start, tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"no library")
    answer = start("--plugin", str(tmp_path / "lib.so")).ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert f"cannot load the plugin {tmp_path}/lib.so: " in answer["reason"]


def test_a_device_that_the_plugin_does_not_have(start: Start) -> None:
    pytest.importorskip("nxrt_ep_cpu", reason="needs nxrt-ep-cpu: pip install nxrt-ep-cpu")
    answer = start("--plugin", "nxrt_ep_cpu", "--device", "7").ask(cmd="describe")
    assert re.search(r"finds 1 device on this machine; there is no number 7", answer["reason"])


@pytest.mark.parametrize(
    ("word", "name"),
    [("nxrt_ep_cpu", "nxrt_ep_cpu"), ("/opt/lib/libMy EP.so.1", "my-ep"), ("./9.dll", "ep-9")],
)
def test_what_results_call_a_plugin(module: Modules, word: str, name: str) -> None:
    assert module("ort_providers").plain_name(word) == name


def test_the_library_of_a_module_without_a_function(module: Modules, tmp_path: Path) -> None:
    providers = module("ort_providers")
    for name in ("libone.so", "notes.txt"):
        (tmp_path / name).touch()
    package = SimpleNamespace(__path__=[str(tmp_path)])
    assert providers.library_of("mine", package) == str(tmp_path / "libone.so")
    (tmp_path / "libtwo.so").touch()
    with pytest.raises(providers.Unavailable, match="has 2 libraries and no get_library_path"):
        providers.library_of("mine", package)


def test_the_target_of_a_plugin() -> None:
    target = target_for("ort-plugin:./lib.so", OptionValues(device="1"))
    assert target.command.argv[-4:] == ("--plugin", os.path.abspath("lib.so"), "--device", "1")
    assert target.arguments == ("--ep", "ort-plugin:./lib.so", "--device", "1")
    assert not target.expectations
    with pytest.raises(TargetError, match="ort-plugin: needs a plugin's library"):
        target_for("ort-plugin:")
    with pytest.raises(TargetError, match="--device 'one' is not the number of a device"):
        target_for("cuda", OptionValues(device="one"))


def test_a_target_gets_every_provider_option() -> None:
    options = ["backend_type=htp", "soc_model=69", "path=a=b"]
    target = target_for("ort-plugin:./lib.so", OptionValues(provider_option=options))
    passed = tuple(word for option in options for word in ("--provider-option", option))
    assert target.command.argv[-6:] == passed
    assert target.arguments == ("--ep", "ort-plugin:./lib.so", *passed)


def test_a_plugin_gets_its_options(module: Modules, tmp_path: Path) -> None:
    (tmp_path / "lib.so").touch()
    device = SimpleNamespace(ep_name="Mine", ep_metadata={"library_path": str(tmp_path / "lib.so")})
    library = SimpleNamespace(
        __version__="1.32.0",
        get_available_providers=list,
        get_ep_devices=lambda: [device],
        register_execution_provider_library=lambda name, path: None,
    )
    given: list[Any] = []
    plugin = module("ort_providers").Plugin(library, str(tmp_path / "lib.so"), 0, {"a": "b"})
    plugin.add_to(SimpleNamespace(add_provider_for_devices=lambda *both: given.extend(both)))
    assert given == [[device], {"a": "b"}]


def test_provider_options_are_described_and_exported(tmp_path: Path) -> None:
    built_in = ["--ep", "ort-plugin:CPUExecutionProvider", "--provider-option", "a=b"]
    export = [sys.executable, "-P", "-m", "conformance", "export", "smoke/decode[dtype=float32]"]
    subprocess.run([*export, str(tmp_path / "out"), *built_in], check=True, capture_output=True)
    program = (tmp_path / "out" / "repro.py").read_text()
    assert '  "provider_options": {"a": "b"},\n' in program
    assert "add_provider_for_devices(devices[:1], provider_options())" in program


def test_a_plugin_gets_its_name_from_its_runner() -> None:
    pytest.importorskip("nxrt_ep_cpu", reason="needs nxrt-ep-cpu: pip install nxrt-ep-cpu")
    with PlanRun(Plan(target_for("ort-plugin:nxrt_ep_cpu"), (), ())) as run:
        assert run.ready.name.startswith("nxrt_ep_cpu@")
        assert run.ready.execution_provider == "cpu_ep"


@pytest.mark.push
@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("causal/prompt[dtype=float32,batch_size=1]", "wrong"),
        ("smoke/static[dtype=float16]", "unsupported"),  # past and present share a buffer
    ],
)
def test_the_program_of_a_result_loads_the_plugin(tmp_path: Path, case: str, verdict: str) -> None:
    pytest.importorskip("nxrt_ep_cpu", reason="needs nxrt-ep-cpu: pip install nxrt-ep-cpu")
    export = [sys.executable, "-P", "-m", "conformance", "export", case, str(tmp_path / "out")]
    subprocess.run([*export, "--ep", "ort-plugin:nxrt_ep_cpu"], check=True, capture_output=True)
    program = tmp_path / "out" / "repro.py"
    packages = r"numpy onnxruntime==[\d.]+ nxrt_ep_cpu==0\.1\.0\.dev6"
    assert re.search(rf"env/bin/pip install {packages}\n", program.read_text())
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"verdict: {verdict}", done.stderr


# Placement


class Placed:
    """A session whose nodes were assigned to providers."""

    def __init__(self, nodes: dict[str, str]) -> None:
        self.nodes = nodes

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(
                ep_name=provider, get_nodes=lambda one=one: [SimpleNamespace(op_type=one)]
            )
            for one, provider in self.nodes.items()
        ]


@pytest.mark.parametrize(
    ("nodes", "loads"),
    [
        ({"Shape": CPU, "GroupQueryAttention": "Other"}, True),
        ({"Shape": "Other", "GroupQueryAttention": CPU}, False),
        ({"Shape": CPU, "Det": "Other"}, False),
    ],
)
@pytest.mark.parametrize("reports", [True, False])
def test_nodes_on_cpu(module: Modules, nodes: dict[str, str], loads: bool, reports: bool) -> None:
    """Only if the session proves before it runs that the operator's own do not."""
    execution = module("ort_execution")
    session = Placed(nodes)

    def make(model: bytes, options: str) -> Any:
        if options == "alone":
            raise RuntimeError("… but fallback to CPU EP has been explicitly disabled by …")
        return SimpleNamespace(_sess=session)

    runtime = SimpleNamespace(
        provider=SimpleNamespace(name="Other", session=make),
        options="alone",
        make_options=lambda alone: "alone" if alone else "beside",
        by_assignment=reports,
    )
    if loads and reports:
        assert execution.load(runtime, b"") is session
        return
    with pytest.raises(execution.Rejected, match="explicitly disabled"):
        execution.load(runtime, b"")


# Memory of a device


@pytest.fixture
def on_a_device(module: Modules, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A runtime that takes the processor's memory for that of a device."""
    execution, memory = module("ort_execution"), module("ort_memory")
    providers = module("ort_providers")
    monkeypatch.setattr(memory, "HOST", ())

    def make() -> Any:
        runtime = execution.Runtime(onnxruntime, providers.BuiltIn(onnxruntime, CPU))
        runtime.memory = memory.DeviceMemory(runtime.state, runtime.host, runtime.copier)
        return runtime

    return make


@pytest.mark.parametrize("shared", [False, True])
def test_a_case_in_the_memory_of_a_device(
    on_a_device: Callable[[], Any], module: Modules, tmp_path: Path, shared: bool
) -> None:
    arrays = gqa_inputs(past=8, total=8) if shared else gqa_inputs(past=4, total=5)
    [files] = bundle(tmp_path, gqa_model(), arrays)
    (tmp_path / "out").mkdir()
    share = {"present_key": "past_key", "present_value": "past_value"} if shared else {}
    request = {
        "bundle": str(tmp_path),
        "out": str(tmp_path / "out"),
        "repeat": 2,
        "steps": [{"files": files, "carry": {}, "share": share}],
    }
    answer = module("ort_execution").run_case(on_a_device(), request)
    session = onnxruntime.InferenceSession(gqa_model(), providers=[CPU])
    wanted = session.run(None, arrays)
    for [files] in answer["runs"]:
        for (name, file), want in zip(files.items(), wanted, strict=True):
            assert load(tmp_path / "out" / file, name).tobytes() == want.tobytes()


@pytest.mark.parametrize("data_type", [1, 10, 16, 3, 2, 17, 6, 7])
def test_copies_keep_bits(on_a_device: Callable[[], Any], module: Modules, data_type: int) -> None:
    """Copies keep the bits of every dtype."""
    runtime, execution = on_a_device(), module("ort_execution")
    carrier = execution.CARRIERS[data_type]
    raw = np.arange(6).astype(carrier).tobytes()
    for dims, content in (((2, 3), raw), ((2, 0), b"")):
        tensor = execution.Tensor("x", data_type, dims, content)
        kept = bytearray(content)
        there = runtime.memory.to_device(runtime.value(tensor, kept))
        back = module("ort_memory").content_of("x", runtime.memory.to_host(there))
        assert back == tensor


@pytest.mark.push
def test_an_output_without_a_value_is_an_empty_tensor(module: Modules) -> None:
    nothing = SimpleNamespace(has_value=lambda: False)
    assert module("ort_memory").content_of("y", nothing).dims == (0,)
