"""The runner for OpenVINO, driven like the harness drives it: as a process.

`test_every_runner` has what is asked of all runners alike.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.helper as oh
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
    input_with_a_default,
    model,
    one_node,
    starting,
    step,
    value,
)

FLOAT = TensorProto.FLOAT

start = starting(RUNNERS / "openvino" / "openvino_runner.py", scope="module")
module = importing("openvino")


@pytest.fixture(scope="module")
def openvino(start: Start) -> Runner:
    """The runner that most tests share."""
    runner = start()
    answer = runner.ask(cmd="describe")
    if answer["outcome"] == "unavailable":
        pytest.skip(answer["reason"])
    return runner


def test_it_describes_threads_and_precision(openvino: Runner, start: Start) -> None:
    versions = openvino.ask(cmd="describe")["versions"]
    assert versions["precision"] == "f32"
    assert "FP32" in versions["capabilities"].split()
    assert versions["openvino"].startswith(openvino.ask(cmd="describe")["version"])
    assert start("--threads", "1").ask(cmd="describe")["threads"] == 1


@pytest.mark.usefixtures("openvino")
def test_models_are_compiled_with_the_precision_and_threads_of_the_description(
    module: Modules, tmp_path: Path
) -> None:
    """As bfloat16 is the default where the processor has it, no value shows it everywhere."""
    (tmp_path / "model.onnx").write_bytes(gqa_model())
    for threads, wanted in ((0, None), (1, 1)):
        runtime = module("openvino_runner").Target(threads).runtime
        compiled = runtime.compiled(f"{tmp_path}/model.onnx")
        assert compiled.get_property("INFERENCE_PRECISION_HINT").to_string() == "f32"
        assert wanted in (None, compiled.get_property("INFERENCE_NUM_THREADS"))


def test_rejected_at_load_with_the_whole_message(openvino: Runner, tmp_path: Path) -> None:
    arrays = gqa_inputs(past=4, total=5)
    [files] = bundle(tmp_path, gqa_model().replace(b"kv_num_heads", b"xx_num_heads"), arrays)
    answer = openvino.run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 0)
    assert answer["code"] is None
    assert answer["message"].startswith("Exception from ")
    assert answer["message"].endswith("failed for: com.microsoft.GroupQueryAttention")


def test_rejected_at_run_names_the_step(openvino: Runner, tmp_path: Path) -> None:
    good, bad = gqa_inputs(past=4, total=5), gqa_inputs(past=4, total=5)
    bad["key"] = np.ones((1, 1, 24), np.float32)
    files = bundle(tmp_path, gqa_model(), good, bad)
    answer = openvino.run(tmp_path, step(files[0]), step(files[1]))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "run", 1)
    assert openvino.run(tmp_path, step(files[0]))["outcome"] == "ran"


def test_an_input_that_became_a_constant_is_unavailable(openvino: Runner, tmp_path: Path) -> None:
    """The computation would use its default, not the case's value."""
    answer = openvino.run(tmp_path, step(input_with_a_default(tmp_path)))
    assert answer["outcome"] == "unavailable"
    assert answer["reason"] == "OpenVINO takes no value for the input 'z'."


def test_outputs_that_are_one_tensor_have_their_own_names(openvino: Runner, tmp_path: Path) -> None:
    """OpenVINO gives each of them all the names of the tensor."""
    nodes = [oh.make_node("Neg", ["x"], ["a"]), oh.make_node("Identity", ["a"], ["b"])]
    outputs = [value("b", FLOAT, 1), value("a", FLOAT, 1)]
    [files] = bundle(
        tmp_path, model(nodes, [value("x", FLOAT, 1)], outputs), {"x": np.ones(2, "f4")}
    )
    [[got]] = openvino.run(tmp_path, step(files), repeat=1)["arrays"]
    assert list(got) == ["b", "a"]
    for array in got.values():
        np.testing.assert_array_equal(array, [-1, -1])


def test_a_dtype_that_openvino_lacks_is_unavailable(openvino: Runner, tmp_path: Path) -> None:
    data_type = TensorProto.FLOAT8E5M2FNUZ
    array = np.ones(2, oh.tensor_dtype_to_np_dtype(data_type))
    [files] = bundle(tmp_path, one_node("Identity", FLOAT, 1), {"x": array})
    answer = openvino.run(tmp_path, step(files))
    assert answer["outcome"] == "unavailable"
    assert answer["reason"] == "OpenVINO takes no TensorProto type 20 (x)."
