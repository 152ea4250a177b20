"""The runner for tract's Python package, driven like the harness drives it: as a process.

Small models; each answer is checked with the protocol's JSON Schema, each value with NumPy or
ONNX Runtime.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto
from spoken_runner import (
    RUNNERS,
    Modules,
    Runner,
    Start,
    assert_same,
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

FOLDER = RUNNERS / "tract"
RUNNER = FOLDER / "wheel.py"
FLOAT = TensorProto.FLOAT

start = starting(RUNNER, scope="module")
module = importing("tract")


@pytest.fixture(scope="module")
def tract() -> Any:
    """The package itself."""
    return pytest.importorskip("tract", reason="needs tract: pip install tract==0.23.9")


@pytest.fixture(scope="module")
def wheel(tract: Any, start: Start) -> Runner:
    """The runner that most tests share, with backtraces enabled as in a developer's shell."""
    return start(RUST_BACKTRACE="1")


# ran


def test_an_output_has_the_dtype_that_tract_returned(wheel: Runner, tmp_path: Path) -> None:
    array = np.array([1, 2, 3], np.float32)
    content = model(
        [oh.make_node("Greater", ["x", "one"], ["y"])],
        [value("x", FLOAT, 1), value("one", FLOAT, 0)],
        [value("y", TensorProto.BOOL, 1)],
    )
    [files] = bundle(tmp_path, content, {"x": array, "one": np.array(1, np.float32)})
    [[got]] = wheel.run(tmp_path, step(files), repeat=1)["arrays"]
    assert_same(got, {"y": array > 1})


# rejected


def test_rejected_at_load_with_only_the_chain_of_causes(wheel: Runner, tmp_path: Path) -> None:
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4, total=5))
    content = gqa_model().replace(b"kv_num_heads", b"xx_num_heads")
    (tmp_path / "model.onnx").write_bytes(content)
    answer = wheel.run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 0)
    assert answer["code"] is None
    assert "\n\nCaused by:\n" in answer["message"]
    assert "kv_num_heads" in answer["message"]
    for noise in ("backtrace", "\x1b", "anyhow", "tract_onnx::"):
        assert noise not in answer["message"]
    assert answer["message"] == answer["message"].strip()
    assert wheel.stderr() == ""


def test_a_message_loses_its_backtrace_and_its_colours(module: Modules) -> None:
    causes = module("wheel_execution").causes
    text = "\x1b[31mBuilding\x1b[0m node\n\nCaused by:\n    no\n\nStack backtrace:\n   0: f\n  at x"
    assert causes(text) == "Building node\n\nCaused by:\n    no"
    assert causes("Stack backtrace: is what it says") == ""
    assert causes("a Stack backtrace: inside") == "a Stack backtrace: inside"
    assert len(causes("x" * 200_000)) < 101_000


def test_rejected_at_run_names_the_step(wheel: Runner, tmp_path: Path) -> None:
    """The stride of Range is a value, unknown during preparation: 0 makes it endless."""
    names, ints = ("start", "limit", "delta"), TensorProto.INT64
    content = model(
        [oh.make_node("Range", names, ["y"])],
        [value(name, ints, 0) for name in names],
        [value("y", ints, 1)],
    )
    good = dict(zip(names, (np.array(number) for number in (1, 5, 2)), strict=True))
    files = bundle(tmp_path, content, good, {**good, "delta": np.array(0)})
    assert_same(wheel.run(tmp_path, step(files[0]))["arrays"][0][0], {"y": np.array([1, 3])})
    answer = wheel.run(tmp_path, step(files[0]), step(files[1]))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "run", 1)
    assert answer["message"].startswith("Evaluating ")
    assert "is too large" in answer["message"]
    assert "backtrace" not in answer["message"]


def test_shapes_of_a_later_step_are_rejected_in_that_step(wheel: Runner, tmp_path: Path) -> None:
    """Only the shapes of the first step are known before something ran."""
    good, bad = gqa_inputs(past=4, total=5), gqa_inputs(past=4, total=5)
    bad["key"] = np.ones((1, 1, 24), np.float32)
    files = bundle(tmp_path, gqa_model(), good, bad)
    answer = wheel.run(tmp_path, step(files[0]), step(files[1]))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 1)
    answer = wheel.run(tmp_path, step(files[1]))
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", "load", 0)


# No rejection


@pytest.mark.usefixtures("tract")
def test_a_panic_of_the_engine_kills_the_process(start: Start, tmp_path: Path) -> None:
    """The harness counts it as a crash. An integer is divided by zero."""
    ints = TensorProto.INT32
    content = model(
        [oh.make_node("Div", ["x", "z"], ["y"])],
        [value("x", ints, 1), value("z", ints, 1)],
        [value("y", ints, 1)],
    )
    [files] = bundle(tmp_path, content, {"x": np.ones(2, np.int32), "z": np.zeros(2, np.int32)})
    runner = start()
    assert runner.run_to_its_end(tmp_path, step(files)) == -signal.SIGABRT
    assert "attempt to divide by zero" in runner.stderr()


def test_a_dtype_that_the_binding_lacks_is_unavailable(wheel: Runner, tmp_path: Path) -> None:
    kind = oh.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
    [files] = bundle(
        tmp_path, one_node("Identity", TensorProto.BFLOAT16, 1), {"x": np.ones(2, kind)}
    )
    answer = wheel.run(tmp_path, step(files))
    assert answer["outcome"] == "unavailable"
    assert "takes no TensorProto type 16 (x)" in answer["reason"]


@pytest.mark.usefixtures("tract")
def test_an_output_that_cannot_be_returned_ends_the_runner(start: Start, tmp_path: Path) -> None:
    """Shape returns a type of tract's own; no output of the operator is declared so."""
    content = one_node("Shape", FLOAT, 1, TensorProto.INT64)
    [files] = bundle(tmp_path, content, {"x": np.ones(2, np.float32)})
    runner = start()
    assert runner.run_to_its_end(tmp_path, step(files)) == 1
    assert "does not hand output 'y' over: Unsupported DatumType" in runner.stderr()


def test_an_input_that_became_a_constant_is_unavailable(wheel: Runner, tmp_path: Path) -> None:
    """The computation would use its default, not the case's value."""
    answer = wheel.run(tmp_path, step(input_with_a_default(tmp_path)))
    assert answer["outcome"] == "unavailable"
    assert answer["reason"].endswith("takes no value for the input 'z'.")


# The program


@pytest.mark.usefixtures("tract")
@pytest.mark.parametrize(("asked", "threads"), [(None, 2), ("3", 4)], ids=["default", "asked"])
def test_it_uses_one_thread(start: Start, tmp_path: Path, asked: str | None, threads: int) -> None:
    """The engine keeps its own threads beside the runner's; the caller may request more."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs /proc")
    runner = start(**({"RAYON_NUM_THREADS": asked} if asked else {}))
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4096, total=4097))
    assert runner.run(tmp_path, step(files))["outcome"] == "ran"
    assert len(os.listdir(f"/proc/{runner.process.pid}/task")) == threads


@pytest.mark.parametrize(
    ("missing", "uv", "command"),
    [
        ((), None, "{0} -m pip install it"),
        (("pip",), "/a/uv", "uv pip install it --python {0}"),
        (("pip",), None, "{0} -m ensurepip && {0} -m pip install it"),
    ],
)
def test_the_command_that_installs_a_package_is_one_that_is_there(
    module: Modules,
    monkeypatch: pytest.MonkeyPatch,
    missing: Sequence[str],
    uv: str | None,
    command: str,
) -> None:
    availability = module("wheel_availability")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else name)
    monkeypatch.setattr(shutil, "which", lambda _: uv)
    assert availability.pip("install", "it") == command.format(shlex.quote(sys.executable))
