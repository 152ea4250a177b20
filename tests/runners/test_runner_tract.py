"""The runner for tract's command line: with a fake that can fail, and with the real program."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto
from spoken_runner import (
    RUNNERS,
    Bundle,
    Modules,
    Runner,
    Start,
    assert_same,
    bundle,
    fake_program,
    files_in,
    gqa_inputs,
    gqa_model,
    importing,
    one_node,
    starting,
    step,
)
from tables import tables

from conformance.harness.jobs import Job
from conformance.harness.outcomes import TimedOut
from conformance.harness.protocol import StepFiles
from conformance.harness.runner import Command, ProcessLimits
from conformance.harness.session import Session
from conformance.targets.tools import find_tract

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

CLI = RUNNERS / "tract" / "cli.py"
VALUES = np.array([[-1.5, 0.0, 2.0, 65504.0]], np.float16)
start = starting(CLI)
module = importing("tract")
Tried = Callable[[str], tuple[Any, Runner]]
LIMITS = ProcessLimits(case_seconds=10, start_seconds=60, failures_in_a_row=99)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_program(tmp_path_factory.mktemp("bin"), "tract")


@pytest.fixture
def relu(tmp_path: Path) -> Bundle:
    """A bundle of ``y = Relu(x)`` on which the fake fails, and the files of its only step."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    [files] = bundle(folder, one_node("Relu", TensorProto.FLOAT16, 2), {"x": VALUES})
    (folder / "case").touch()
    return folder, files


@pytest.fixture
def real() -> Path:
    """The real binary."""
    found = find_tract()
    if found is None:
        pytest.skip("needs the tract binary: gqa setup tract")
    return found.path


@pytest.fixture
def tried(start: Start, fake: Path, relu: Bundle) -> Tried:
    """What the runner answers for the bundle where tract has the named fault; and the runner."""

    def run(fault: str) -> tuple[Any, Runner]:
        runner = start("--tract", fake, FAKE_TRACT=fault)
        assert runner.ask(cmd="describe")["outcome"] == "described"
        return runner.run(relu[0], step(relu[1])), runner

    return run


# describe


@pytest.mark.parametrize(("option", "runtime"), [([], "cpu"), (["--plain"], "unoptimized")])
def test_describe_names_runtime(start: Start, fake: Path, option: list[str], runtime: str) -> None:
    answer = start("--tract", fake, *option).ask(cmd="describe")
    assert (answer["runtime"], answer["version"]) == ("tract", "0.23.9")
    assert answer["execution_provider"] == runtime
    assert answer["dtypes"] == ["float32", "float16", "int8", "uint8", "int32", "int64"]
    assert answer["features"] == ["keep"]
    assert answer["versions"]["runtimes"] == "cpu unoptimized"
    assert answer["versions"]["binary"] == str(fake)


def test_a_release_that_has_no_names_for_runtimes(tried: Tried) -> None:
    answer, runner = tried("of_0.22")
    assert (answer["outcome"], answer["placement"]) == ("ran", "cpu")
    described = runner.ask(cmd="describe")
    assert (described["version"], described["versions"]["runtimes"]) == ("0.22.5", "")


def test_tracts_own_environment_variables_are_recorded(start: Start, fake: Path) -> None:
    answer = start("--tract", fake, TRACT_FLASH_SDPA_ST="1").ask(cmd="describe")
    assert answer["versions"]["TRACT_FLASH_SDPA_ST"] == "1"


@pytest.mark.parametrize(("word", "threads"), [("4", 4), ("0", "default"), ("many", "default")])
def test_its_threads_are_recorded(start: Start, fake: Path, word: str, threads: object) -> None:
    assert start("--tract", fake).ask(cmd="describe")["threads"] == 1
    assert start("--tract", fake, RAYON_NUM_THREADS=word).ask(cmd="describe")["threads"] == threads


def test_without_a_binary_the_fix_is_to_install_one(start: Start) -> None:
    answer = start().ask(cmd="describe")
    assert answer == {
        "outcome": "unavailable",
        "reason": "there is no tract binary.",
        "fix": "gqa setup tract",
    }


@pytest.mark.parametrize(("fault", "said"), TABLES["other programs"])
def test_other_programs_are_unavailable(start: Start, fake: Path, fault: str, said: str) -> None:
    """A program with another command line is unavailable."""
    answer = start("--tract", fake, FAKE_TRACT=fault).ask(cmd="describe")
    assert answer["outcome"] == "unavailable"
    assert said in answer["reason"]
    assert "\n" not in answer["reason"]
    assert answer["fix"] == "gqa setup tract"


def test_errors_of_the_system_are_not_blamed_on_the_release(start: Start, fake: Path) -> None:
    runner = start("--tract", fake, FAKE_TRACT="full_at_start")
    assert runner.tell({"id": 1, "cmd": "describe"}) == b""
    assert runner.end() == 1
    assert "No space left on device" in runner.stderr()
    assert "Traceback" not in runner.stderr()


def test_a_failing_start_gives_one_line(tmp_path: Path) -> None:
    """For example a runner whose libraries are broken in an unforeseen way."""
    text = "import sys, serving; sys.exit(serving.serve(lambda: 1 / 0))"
    done = subprocess.run(
        (sys.executable, "-c", text), cwd=RUNNERS / "common", capture_output=True, text=True
    )
    assert done.returncode == 1
    assert re.fullmatch(r"-c: ZeroDivisionError: division by zero \(.*\)\n", done.stderr)


# How a call ends


def test_ran_has_the_bits_and_the_placement(tried: Tried) -> None:
    answer, runner = tried("")
    assert answer["outcome"] == "ran"
    assert answer["placement"] == "cpu"
    assert answer["ms"]["run"] > 0
    for [got] in answer["arrays"]:
        assert_same(got, {"y": np.maximum(VALUES, 0)})
    assert runner.stderr() == ""  # progress messages are dropped
    assert runner.end() == 0


def test_each_repeat_is_a_separate_process(tried: Tried) -> None:
    answer, _ = tried("differs")
    [first], [second] = answer["arrays"]
    assert first["y"].tobytes() != second["y"].tobytes()


@pytest.mark.parametrize(("fault", "first"), [("load", "Error at stage"), ("run", "Evaluating #3")])
def test_a_rejection_has_the_chain_of_causes(tried: Tried, fault: str, first: str) -> None:
    answer, runner = tried(fault)
    assert (answer["outcome"], answer["stage"], answer["step"]) == ("rejected", fault, 0)
    lines = answer["message"].splitlines()
    assert lines[0].startswith(first)
    assert lines[-1].strip() == "1: GroupQueryAttention: softcap is unsupported"
    assert "2026" not in answer["message"]
    assert "backtrace" not in answer["message"]
    assert "WARN" in runner.stderr()
    assert "Stack backtrace" in runner.stderr()


@pytest.mark.parametrize(
    ("fault", "ended"), [("SIGSEGV", "SIGSEGV"), ("SIGABRT", "SIGABRT"), ("reported", "SIGSEGV")]
)
def test_death_by_a_signal_is_a_crash(tried: Tried, fault: str, ended: str) -> None:
    answer, runner = tried(fault)
    assert answer == {"outcome": "crashed", "step": 0, "ended": ended, "message": ""}
    assert runner.end() == 0  # the runner is still alive


def test_a_panic_is_a_crash_and_not_a_rejection(tried: Tried) -> None:
    answer, runner = tried("panic")
    assert (answer["outcome"], answer["ended"]) == ("crashed", "panic")
    assert answer["message"] == (
        "panicked at tract-core-0.23.9/src/ops/array/gather.rs:85:59:\n"
        "range end index 48 out of range for slice of length 40"
    )
    assert "somebody/.cargo" in runner.stderr()


@pytest.mark.parametrize(("fault", "said"), TABLES["ends"])
def test_a_silent_end(start: Start, fake: Path, relu: Bundle, fault: str, said: str) -> None:
    """An end that says nothing about tract ends the runner."""
    runner = start("--tract", fake, FAKE_TRACT=fault)
    assert runner.run_to_its_end(relu[0], step(relu[1])) == 1
    assert said in runner.stderr()
    assert "Traceback" not in runner.stderr()


@pytest.mark.parametrize("columns", [0, 4])
def test_two_outputs_with_one_file(start: Start, fake: Path, tmp_path: Path, columns: int) -> None:
    """tract writes one file for two wires without elements; any other missing file is an error."""
    model = onnx.load_model_from_string(one_node("Relu", TensorProto.FLOAT16, 2))
    other = oh.make_tensor_value_info("other", TensorProto.FLOAT16, [None, None])
    model.graph.output.append(other)
    [files] = bundle(tmp_path, model.SerializeToString(), {"x": VALUES[:, :columns]})
    runner = start("--tract", fake)
    if columns:
        assert runner.run_to_its_end(tmp_path, step(files)) == 1
        assert "tract ended well and wrote no other" in runner.stderr()
    else:
        answer = runner.run(tmp_path, step(files))
        assert answer["outcome"] == "unavailable"
        assert "wrote no other: it names files by wires" in answer["reason"]


def test_a_dtype_that_nnef_lacks_is_unavailable(start: Start, fake: Path, tmp_path: Path) -> None:
    array = np.zeros((1, 2), oh.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    [files] = bundle(tmp_path, one_node("Relu", TensorProto.BFLOAT16, 2), {"x": array})
    answer = start("--tract", fake).run(tmp_path, step(files))
    assert answer["outcome"] == "unavailable"
    assert "tract has no tensors of TensorProto type 16 (x)" in answer["reason"]


# In the harness


def pool(fake: Path, fault: str) -> Session:
    argv = (sys.executable, str(CLI), "--tract", str(fake))
    return Session(Command("tract", argv, env={"FAKE_TRACT": fault}), limits=LIMITS)


def job(relu: Bundle, seconds: float | None = None) -> Job:
    folder, files = relu
    return Job("case", files_in(folder), (StepFiles(files=files),), seconds=seconds)


def test_a_hanging_tract_is_killed_with_its_runner(fake: Path, relu: Bundle) -> None:
    with pool(fake, "hang") as target:
        outcome = target.run(job(relu, seconds=1.0))
    assert isinstance(outcome, TimedOut)
    assert "going to sleep" in outcome.stderr  # reported at once, not when it ends
    mark = str(relu[0]).encode()
    until = time.monotonic() + 60
    while alive := [p for p in Path("/proc").glob("[0-9]*/cmdline") if mark in read_or_nothing(p)]:
        assert time.monotonic() < until, alive  # a killed process may take a moment to end
        time.sleep(0.05)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


# NNEF's tensors and the names of outputs


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (1,) * 8], ids=str)
def test_nnef_tensors_round_trip(module: Modules, shape: Any) -> None:
    nnef, files = module("nnef_tensor"), module("tensor_file")
    for data_type in nnef.ITEMS:
        count = int(np.prod(shape)) * files.ITEM_BYTES[data_type]
        raw = np.random.RandomState(0).bytes(count)
        tensor = files.Tensor("t", data_type, shape, raw)
        content = nnef.encode(tensor)
        assert len(content) == 128 + count
        assert content[:4] == b"\x4e\xef\x01\x00"
        assert nnef.decode(content, "t", "t.dat") == tensor


def test_the_item_types_that_tract_writes_for_integers_are_read(module: Modules) -> None:
    nnef, files = module("nnef_tensor"), module("tensor_file")
    for data_type, written in ((6, 3), (7, 3), (2, 2)):
        size = files.ITEM_BYTES[data_type]
        content = bytearray(nnef.encode(files.Tensor("t", data_type, (1,), b"\x01" * size)))
        content[48] = written
        assert nnef.decode(bytes(content), "t", "t.dat").data_type == data_type


@pytest.mark.parametrize(("at", "value", "said"), TABLES["no tensor"])
def test_what_is_no_nnef_tensor_is_told(module: Modules, at: int, value: int, said: str) -> None:
    """A file that is not an NNEF tensor is reported."""
    nnef, files = module("nnef_tensor"), module("tensor_file")
    content = bytearray(nnef.encode(files.Tensor("t", 1, (1,), b"\0\0\0\0")))
    content[at] = value
    with pytest.raises(files.BadFile, match=said):
        nnef.decode(bytes(content), "t", "t.dat")


def test_output_names_are_those_of_the_onnx_model(module: Modules, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(gqa_model())
    graph = module("onnx_graph")
    assert graph.output_names(str(path)) == [o.name for o in onnx.load(path).graph.output]
    path.write_bytes(b"\xff\xff\xff")
    with pytest.raises(module("tensor_file").BadFile, match="is no ONNX model"):
        graph.output_names(str(path))


# The real program


def test_a_rejection_has_tracts_own_message(start: Start, real: Path, tmp_path: Path) -> None:
    model = onnx.load_model_from_string(gqa_model())
    model.graph.node[0].attribute.append(oh.make_attribute("softcap", 2.0))
    [files] = bundle(tmp_path, model.SerializeToString(), gqa_inputs(past=4, total=5))
    answer = start("--tract", real).run(tmp_path, step(files))
    assert (answer["outcome"], answer["stage"]) == ("rejected", "load")
    assert answer["message"].splitlines()[0] == "Building node  (GroupQueryAttention)"
    assert answer["message"].endswith("GroupQueryAttention: softcap is unsupported")


def test_a_real_panic(start: Start, real: Path, tmp_path: Path) -> None:
    model = onnx.load_model_from_string(gqa_model())
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "kv_num_heads":
            attribute.i = 0
    [files] = bundle(tmp_path, model.SerializeToString(), gqa_inputs(past=4, total=5))
    answer = start("--tract", real).run(tmp_path, step(files))
    assert (answer["outcome"], answer["ended"]) == ("crashed", "panic")
    assert answer["message"].startswith("panicked at tract-data-")
    assert answer["message"].endswith("attempt to divide by zero")
