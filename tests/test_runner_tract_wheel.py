"""The runner for tract's Python package, driven like the harness drives it: as a process.

Small models; each answer is checked with the protocol's JSON Schema, each value with NumPy or
ONNX Runtime.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto, numpy_helper
from spoken_runner import (
    GQA_INPUTS,
    GQA_OUTPUTS,
    RUNNERS,
    Arrays,
    Runner,
    Start,
    assert_same,
    bundle,
    gqa_inputs,
    gqa_model,
    model,
    one_node,
    runners,
    step,
    value,
)

FOLDER = RUNNERS / "tract"
RUNNER = FOLDER / "wheel.py"
SOURCES = sorted(FOLDER.glob("wheel*.py"))
FLOAT = TensorProto.FLOAT
INSTALL = "-m pip install tract==0.23.9"
REINSTALL = "-m pip install --force-reinstall tract==0.23.9"

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts runners without arguments; the parameters are python's options and the environment."""
    with runners(RUNNER, lambda: tmp_path_factory.mktemp("runner")) as started:
        yield lambda *python, **environment: started(python=python, **environment)


@pytest.fixture(scope="module")
def tract() -> Any:
    """The package itself."""
    return pytest.importorskip("tract", reason="needs tract: pip install tract==0.23.9")


@pytest.fixture(scope="module")
def wheel(tract: Any, start: Start) -> Runner:
    """The runner that most tests share, with backtraces enabled as in a developer's shell."""
    return start(RUST_BACKTRACE="1")


# describe


def test_describe_reports_the_runtime(wheel: Runner, tract: Any) -> None:
    answer = wheel.ask(cmd="describe")
    assert answer["outcome"] == "described"
    assert (answer["runtime"], answer["version"]) == ("tract", tract.version())
    assert answer["execution_provider"] == tract.runtime_for_name("default").name()
    assert re.search(r", \d+ cores?$", answer["device"])
    assert answer["dtypes"] == list(DTYPES)
    assert answer["features"] == []
    assert answer["threads"] == 1
    assert answer["versions"].keys() == {"python", "numpy", "tract", "platform"}
    assert answer["versions"]["numpy"] == np.__version__


@pytest.mark.usefixtures("tract")
def test_it_exits_with_0_at_the_end_of_input(start: Start) -> None:
    runner = start()
    runner.ask(cmd="describe")
    assert runner.end() == 0
    assert runner.stderr() == ""


def fake(folder: Path, text: str) -> str:
    """A folder to put first on PYTHONPATH, with a package ``tract`` of this source."""
    (folder / "tract").mkdir()
    (folder / "tract" / "__init__.py").write_text(text)
    return str(folder)


def unavailable(runner: Runner) -> tuple[str, str]:
    """The reason and the command, queried twice: run gets the same answer as describe."""
    answer = runner.ask(cmd="describe")
    assert answer.pop("outcome") == "unavailable"
    again = runner.ask(cmd="run", bundle="/nowhere", out="/nowhere", repeat=1, steps=[step({})])
    assert again == {"outcome": "unavailable", **answer}
    assert runner.end() == 0
    assert runner.stderr() == ""
    assert "\n" not in answer["reason"]
    return answer["reason"], answer["fix"]


def test_without_the_package_the_fix_installs_it(start: Start, tmp_path: Path) -> None:
    path = fake(tmp_path, "raise ModuleNotFoundError('No module', name='tract')")
    reason, fix = unavailable(start(PYTHONPATH=path))
    assert reason == f"The package tract is not installed in {sys.executable}."
    assert fix.endswith(INSTALL)


BROKEN = {
    "raises": ("raise OSError('tract.so: cannot open\\nmore')", "tract.so: cannot open"),
    "needs_numpy": ("import no_such_numpy", "No module named 'no_such_numpy'"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_package_that_does_not_import_is_reported(
    start: Start, tmp_path: Path, what: str
) -> None:
    source, said = BROKEN[what]
    reason, fix = unavailable(start(PYTHONPATH=fake(tmp_path, source)))
    assert re.match(r"Importing the package tract .+ failed in ", reason)
    assert reason.endswith(f": {said}")
    assert fix.endswith(REINSTALL)


def test_an_old_package_is_reported(start: Start, tmp_path: Path) -> None:
    path = fake(tmp_path, "def version(): return '0.22.4'")
    reason, fix = unavailable(start(PYTHONPATH=path))
    assert reason == "tract 0.22.4 is too old: this runner needs 0.23 or later."
    assert fix.endswith(INSTALL)


def test_a_package_that_lacks_a_function_is_reported(start: Start, tmp_path: Path) -> None:
    path = fake(tmp_path, "def version(): return '0.31.0'\nclass TractError(Exception): pass")
    reason, fix = unavailable(start(PYTHONPATH=path))
    assert reason == "The package tract 0.31.0 has no Tensor, which this runner calls."
    assert fix.endswith(REINSTALL)


def test_a_package_without_content_is_reported(start: Start, tmp_path: Path) -> None:
    """Such as the folder that remains after an uninstall."""
    reason, fix = unavailable(start(PYTHONPATH=fake(tmp_path, "")))
    assert re.match(r"The package tract .+ has no TractError, which this runner calls\.", reason)
    assert fix.endswith(REINSTALL)


# ran


def prefill(dtype: str) -> Arrays:
    """Three tokens on an empty cache."""
    arrays = gqa_inputs(past=0, total=3, dtype=dtype)
    rng = np.random.RandomState(7)
    for name, width in {"query": 16, "key": 8, "value": 8}.items():
        arrays[name] = rng.randn(1, 3, width).astype(dtype)
    return arrays


def attended(arrays: Arrays) -> Arrays:
    """The expected result for two query heads on one key head, in float64."""
    past, new = arrays["past_key"].shape[2], arrays["query"].shape[1]
    whole = {
        name: np.concatenate(
            [arrays[f"past_{name}"], arrays[name].reshape(1, 1, new, 8)], axis=2
        ).astype(np.float64)
        for name in ("key", "value")
    }
    query = arrays["query"].astype(np.float64).reshape(1, new, 2, 8).transpose(0, 2, 1, 3)
    scores = query @ whole["key"].transpose(0, 1, 3, 2) / np.sqrt(8)
    scores[..., np.triu(np.ones((new, past + new), bool), past + 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    output = (weights @ whole["value"]).transpose(0, 2, 1, 3).reshape(1, new, 16)
    return {"output": output, "present_key": whole["key"], "present_value": whole["value"]}


def assert_attended(got: Arrays, arrays: Arrays) -> None:
    """``got`` has the numbers of ``arrays``, and their dtype."""
    want = attended(arrays)
    assert list(got) == list(want)
    for name in want:
        assert got[name].dtype == arrays["query"].dtype
        exact = name != "output"
        tolerance = 0 if exact else 2e-6 if got[name].dtype == np.float32 else 4e-3
        np.testing.assert_allclose(got[name].astype(np.float64), want[name], 0, tolerance)


CALLS = {"decode": lambda dtype: gqa_inputs(past=4, total=5, dtype=dtype), "prefill": prefill}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("call", CALLS)
def test_ran_has_correct_numbers(wheel: Runner, tmp_path: Path, call: str, dtype: str) -> None:
    arrays = CALLS[call](dtype)
    content = gqa_model(oh.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    [files] = bundle(tmp_path, content, arrays)
    answer = wheel.run(tmp_path, step(files))
    assert answer["outcome"] == "ran"
    assert answer["placement"] == wheel.ask(cmd="describe")["execution_provider"]
    assert answer["ms"]["load"] > 0
    assert answer["ms"]["run"] > 0
    for [got] in answer["arrays"]:
        assert_attended(got, arrays)
    assert answer["runs"][0] == [{name: f"0_0_{name}.pb" for name in GQA_OUTPUTS}]
    assert answer["runs"][1] == [{name: f"1_0_{name}.pb" for name in GQA_OUTPUTS}]


def test_inputs_are_fed_by_name(wheel: Runner, tmp_path: Path) -> None:
    """The request may have them in any order."""
    arrays = gqa_inputs(past=4, total=5)
    [files] = bundle(
        tmp_path, gqa_model(), {name: arrays[name] for name in reversed(GQA_INPUTS)} | arrays
    )
    [[got], _] = wheel.run(tmp_path, step(dict(reversed(files.items()))))["arrays"]
    assert_attended(got, arrays)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 300)], ids=str)
@pytest.mark.parametrize("word", DTYPES)
def test_the_bits_of_every_dtype_and_shape_are_preserved(
    wheel: Runner, tmp_path: Path, word: str, shape: tuple[int, ...]
) -> None:
    data_type = DTYPES[word]
    kind = oh.tensor_dtype_to_np_dtype(data_type)
    bits = np.random.RandomState(1).randint(0, 256, int(np.prod(shape)) * kind.itemsize, np.uint8)
    array = np.frombuffer(bits.tobytes(), kind).reshape(shape)
    [files] = bundle(tmp_path, one_node("Identity", data_type, len(shape)), {"x": array})
    [[got], [again]] = wheel.run(tmp_path, step(files))["arrays"]
    assert_same(got, {"y": array})
    assert_same(again, {"y": array})


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


def test_an_output_name_that_is_not_a_valid_file_name(wheel: Runner, tmp_path: Path) -> None:
    name = "/layers.0/attn/y:0"
    content = model(
        [oh.make_node("Neg", ["x"], [name])], [value("x", FLOAT, 1)], [value(name, FLOAT, 1)]
    )
    [files] = bundle(tmp_path, content, {"x": np.ones(2, np.float32)})
    answer = wheel.run(tmp_path, step(files))
    assert list(answer["arrays"][0][0]) == [name]


def test_a_loop_carries_tracts_own_outputs_through_growing_shapes(
    wheel: Runner, tmp_path: Path
) -> None:
    given = [gqa_inputs(past=4 + n, total=5 + n, seed=n) for n in range(3)]
    for arrays in given[1:]:
        del arrays["past_key"], arrays["past_value"]
    files = bundle(tmp_path, gqa_model(), *given)
    carry = {"past_key": "present_key", "past_value": "present_value"}
    answer = wheel.run(tmp_path, step(files[0]), step(files[1], carry), step(files[2], carry))
    for run in answer["arrays"]:
        past: Arrays = {}
        for arrays, got in zip(given, run, strict=True):
            assert_attended(got, {**arrays, **past})
            past = {name: got[output] for name, output in carry.items()}
        assert past["past_key"].shape == (1, 1, 7, 8)


def test_a_model_is_prepared_once_for_each_set_of_shapes(
    tract: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(RUNNERS / "common"))
    monkeypatch.syspath_prepend(str(FOLDER))
    import wheel_execution

    arrays = {rows: {"x": np.ones(rows, np.float32)} for rows in (2, 3)}
    files = bundle(tmp_path, one_node("Neg", FLOAT, 1), arrays[2], arrays[3], arrays[2])
    (tmp_path / "out").mkdir()
    engine = wheel_execution.Engine(tract, tract.runtime_for_name("default"))
    prepared: list[str] = []
    prepare = engine.prepare

    def counted(path: str, facts: dict[str, str]) -> Any:
        prepared.append(facts["x"])
        return prepare(path, facts)

    monkeypatch.setattr(engine, "prepare", counted)
    request = {"bundle": str(tmp_path), "out": str(tmp_path / "out"), "repeat": 2}
    wheel_execution.run_case(engine, {**request, "steps": [step(file) for file in files]})
    assert prepared == ["2,f32", "3,f32"]


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


def test_a_message_loses_its_backtrace_and_its_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUNNERS / "common"))
    monkeypatch.syspath_prepend(str(FOLDER))
    from wheel_execution import causes

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
    request = {"id": 1, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path), "repeat": 1}
    assert runner.tell({**request, "steps": [step(files)]}) == b""
    assert runner.process.wait(20) == -signal.SIGABRT
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
def test_an_output_that_the_binding_cannot_return_ends_the_runner(
    start: Start, tmp_path: Path
) -> None:
    """Shape returns a type of tract's own; no output of the operator is declared so."""
    content = one_node("Shape", FLOAT, 1, TensorProto.INT64)
    [files] = bundle(tmp_path, content, {"x": np.ones(2, np.float32)})
    runner = start()
    request = {"id": 1, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path), "repeat": 1}
    assert runner.tell({**request, "steps": [step(files)]}) == b""
    assert "does not hand output 'y' over: Unsupported DatumType" in runner.stderr()


def test_an_input_that_tract_turned_into_a_constant_is_unavailable(
    wheel: Runner, tmp_path: Path
) -> None:
    """The computation would use its default, not the case's value."""
    one = numpy_helper.from_array(np.ones(2, np.float32), "z")
    graph = oh.make_graph(
        [oh.make_node("Add", ["x", "z"], ["y"])],
        "test",
        [value("x", FLOAT, 1), value("z", FLOAT, 1)],
        [value("y", FLOAT, 1)],
        initializer=[one],
    )
    content = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    arrays = {"x": np.ones(2, np.float32), "z": np.zeros(2, np.float32)}
    [files] = bundle(tmp_path, content.SerializeToString(), arrays)
    answer = wheel.run(tmp_path, step(files))
    assert answer["outcome"] == "unavailable"
    assert answer["reason"].endswith("takes no value for the input 'z'.")


BAD_BUNDLES = {
    "no_model": (None, "cannot read .*model.onnx: No such file"),
    "empty_model": (b"", "is no ONNX model with an output"),
    "garbage": (b"garbage", "is no ONNX model"),
    "cut": (gqa_model()[:-30], "is no ONNX model"),
    "another_input": (one_node("Neg", FLOAT, 1).replace(b"\x01x", b"\x01q"), "input 'q' that the"),
}


@pytest.mark.usefixtures("tract")
@pytest.mark.parametrize("what", BAD_BUNDLES)
def test_a_bad_bundle_ends_the_runner(start: Start, tmp_path: Path, what: str) -> None:
    content, said = BAD_BUNDLES[what]
    [files] = bundle(tmp_path, b"", {"x": np.ones(1, np.float32)})
    (tmp_path / "model.onnx").unlink()
    if content is not None:
        (tmp_path / "model.onnx").write_bytes(content)
    runner = start()
    request = {"id": 1, "cmd": "run", "bundle": str(tmp_path), "out": str(tmp_path), "repeat": 1}
    assert runner.tell({**request, "steps": [step(files)]}) == b""
    assert runner.process.wait(20) == 1
    assert re.fullmatch(rf"wheel\.py: .*{said}.*\n", runner.stderr())


# The program


def test_it_imports_only_the_standard_library_and_its_siblings() -> None:
    sources = [*(RUNNERS / "tract").glob("*.py"), *(RUNNERS / "common").glob("*.py")]
    siblings = {path.stem for path in sources}
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] in siblings | sys.stdlib_module_names, source


@pytest.mark.usefixtures("tract")
@pytest.mark.parametrize(("asked", "threads"), [(None, 2), ("3", 4)], ids=["default", "asked"])
def test_computing_uses_one_thread(
    start: Start, tmp_path: Path, asked: str | None, threads: int
) -> None:
    """The engine keeps its own threads beside the runner's; the caller may request more."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("needs /proc")
    runner = start(**({"RAYON_NUM_THREADS": asked} if asked else {}))
    [files] = bundle(tmp_path, gqa_model(), gqa_inputs(past=4096, total=4097))
    assert runner.run(tmp_path, step(files))["outcome"] == "ran"
    assert len(os.listdir(f"/proc/{runner.process.pid}/task")) == threads
