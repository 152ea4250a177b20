"""What is asked of every runner alike: small models, with ONNX Runtime's CPU kernels to compare."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx.helper as oh
import pytest
from onnx import TensorProto
from spoken_runner import (
    GQA_OUTPUTS,
    RUNNERS,
    Arrays,
    Runner,
    Start,
    assert_same,
    bundle,
    fake_package,
    gqa_inputs,
    gqa_model,
    model,
    one_node,
    runners,
    step,
    value,
)
from tables import tables

from conformance.targets.tools import find_onnxruntime_node, find_onnxruntime_web, find_tract

TABLES = tables(__file__)

#: Of each test README's command runs one example, see support/tiers.py.
ONE_EXAMPLE = True

CPU = "CPUExecutionProvider"
TRACTS = "float32 float16 int8 uint8 int32 int64"
SHARES = ("shared_buffer", "keep", "may_be_rejected")
FLOAT8 = "float32 float16 bfloat16 int8 uint8 float8e4m3fn int32 int64"


class Kind(NamedTuple):
    """A runner with its arguments, and what it says of itself."""

    program: str
    arguments: tuple[str, ...]
    runtime: str
    provider: str | None
    dtypes: str
    features: tuple[str, ...] = ("keep", "may_be_rejected")
    tolerance: tuple[float, float] = (1e-6, 2e-3)  # of float32 and of float16
    threads: int | str = 1
    int64: type = np.int64  # the integers that it computes with in place of int64


KINDS = {
    "cpu": Kind(
        "onnxruntime/runner.py",
        ("--ep", "cpu"),
        *("onnxruntime", CPU, FLOAT8, SHARES, (0.0, 0.0)),
    ),
    "tract-wheel": Kind("tract/wheel.py", (), "tract", "cpu", TRACTS),
    "tract": Kind("tract/cli.py", ("--tract", "TRACT"), "tract", "cpu", TRACTS, ("keep",)),
    "tract-plain": Kind(
        *("tract/cli.py", ("--tract", "TRACT", "--plain"), "tract", "unoptimized", TRACTS),
        features=("keep",),
    ),
    "openvino": Kind(
        *("openvino/openvino_runner.py", (), "openvino", None, FLOAT8),
        threads="default",
        int64=np.int32,
    ),
    "wasm": Kind(
        "onnxruntime_web/launch.py",
        ("--ep", "wasm", "--modules", "WEB"),
        *("onnxruntime-web", CPU, TRACTS),
    ),
    "wasm in Chromium": Kind(
        "onnxruntime_web/launch.py",
        ("--ep", "wasm", "--modules", "WEB", "--browser", "chromium"),
        *("onnxruntime-web", CPU, TRACTS),
    ),
    "node": Kind(
        "onnxruntime_web/launch.py",
        ("--ep", "node", "--modules", "NODE"),
        *("onnxruntime-node", CPU, TRACTS, SHARES),
    ),
}


#: The start of a browser takes seconds.
PUSHED = "wasm in Chromium"


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.push) if n == PUSHED else n for n in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def start(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts runners of this kind, which describe themselves; skips where one cannot."""
    programs = {
        "TRACT": find_tract(),
        "WEB": find_onnxruntime_web(),
        "NODE": find_onnxruntime_node(),
    }
    if {"WEB", "NODE"} & {*kind.arguments} and shutil.which("node") is None:
        pytest.skip("needs Node.js")
    named = {word: found.path for word, found in programs.items() if found}
    words = [named.get(word, word) for word in kind.arguments]
    with runners(RUNNERS / kind.program, lambda: tmp_path_factory.mktemp("runner")) as started:

        def described() -> Runner:
            runner = started(*words)
            answer = runner.ask(cmd="describe")
            if answer["outcome"] == "unavailable":
                pytest.skip(answer["reason"])
            return runner

        yield described


@pytest.fixture(scope="module")
def runner(start: Start) -> Runner:
    """The one that most tests share."""
    return start()


def test_it_describes_its_runtime_and_ends_with_its_input(start: Start, kind: Kind) -> None:
    runner = start()
    answer = runner.ask(cmd="describe")
    assert answer["outcome"] == "described"
    assert (answer["runtime"], answer["execution_provider"]) == (kind.runtime, kind.provider)
    assert sorted(answer["dtypes"]) == sorted(kind.dtypes.split())
    assert answer["features"] == [*kind.features]
    assert re.search(r", \d+ cores?$", answer["device"])
    assert (answer["threads"], answer.get("adapter")) == (kind.threads, None)
    assert answer["versions"]
    assert runner.end() == 0
    assert runner.stderr() == ""


def test_bits_of_every_dtype_and_shape_stay(runner: Runner, kind: Kind, tmp_path: Path) -> None:
    """The bits of every dtype and shape are preserved."""
    for word in kind.dtypes.split():
        data_type = TensorProto.DataType.Value(word.upper().replace("FLOAT32", "FLOAT"))
        item = oh.tensor_dtype_to_np_dtype(data_type)
        for shape in [(), (0, 3), (2, 300)]:
            raw = np.random.RandomState(1).bytes(int(np.prod(shape)) * item.itemsize)
            array = np.frombuffer(raw, item).reshape(shape)
            if word == "int64":
                array = array.astype(kind.int64).astype(np.int64)
            folder = tmp_path / "x".join(map(str, (word, *shape)))
            folder.mkdir()
            [files] = bundle(folder, one_node("Identity", data_type, len(shape)), {"x": array})
            for [got] in runner.run(folder, step(files))["arrays"]:
                assert_same(got, {"y": array})


def session(content: bytes) -> Any:
    """ONNX Runtime's own, to compare with."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    return onnxruntime.InferenceSession(content, providers=[CPU])


def assert_attended(kind: Kind, got: Arrays, content: bytes, arrays: Arrays) -> None:
    """``got`` has the numbers of ONNX Runtime, and their dtypes and shapes."""
    want = dict(zip(GQA_OUTPUTS, session(content).run(None, arrays), strict=True))
    assert list(got) == list(want)
    for name in want:
        assert (got[name].dtype, got[name].shape) == (want[name].dtype, want[name].shape)
        bound = kind.tolerance[got[name].dtype == np.float16]
        np.testing.assert_allclose(got[name], want[name], rtol=bound, atol=bound)


def prefill(dtype: str) -> Arrays:
    """Three tokens on an empty cache."""
    arrays, rng = gqa_inputs(past=0, total=3, dtype=dtype), np.random.RandomState(7)
    widths = {"query": 16, "key": 8, "value": 8}
    return arrays | {n: rng.randn(1, 3, width).astype(dtype) for n, width in widths.items()}


def decode(dtype: str) -> Arrays:
    return gqa_inputs(past=4, total=5, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("call", [decode, prefill])
def test_ran_has_correct_numbers(
    runner: Runner, kind: Kind, tmp_path: Path, call: Callable[[str], Arrays], dtype: str
) -> None:
    content, arrays = gqa_model(oh.np_dtype_to_tensor_dtype(np.dtype(dtype))), call(dtype)
    [files] = bundle(tmp_path, content, arrays)
    answer = runner.run(tmp_path, step(dict(reversed(files.items()))))  # they are fed by name
    assert (answer["outcome"], answer.get("placement")) == ("ran", kind.provider)
    assert answer["ms"]["load"] > 0
    assert answer["ms"]["run"] > 0
    for repeat, ([files], [got]) in enumerate(zip(answer["runs"], answer["arrays"], strict=True)):
        assert files == {name: f"{repeat}_0_{name}.pb" for name in GQA_OUTPUTS}
        assert_attended(kind, got, content, arrays)


def test_a_loop_carries_the_runtimes_outputs(runner: Runner, kind: Kind, tmp_path: Path) -> None:
    """A loop carries the runtime's own outputs through growing shapes."""
    given = [gqa_inputs(past=4 + n, total=5 + n, seed=n) for n in range(3)]
    for arrays in given[1:]:
        del arrays["past_key"], arrays["past_value"]
    files = bundle(tmp_path, gqa_model(), *given)
    carry = {"past_key": "present_key", "past_value": "present_value"}
    answer = runner.run(tmp_path, step(files[0]), step(files[1], carry), step(files[2], carry))
    for run in answer["arrays"]:
        past: Arrays = {}
        for arrays, got in zip(given, run, strict=True):
            assert_attended(kind, got, gqa_model(), {**arrays, **past})
            past = {name: got[output] for name, output in carry.items()}
        assert past["past_key"].shape == (1, 1, 7, 8)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_loop_keeps_the_first_rows_of_a_present(
    runner: Runner, kind: Kind, tmp_path: Path, dtype: str
) -> None:
    """Tokens of a growing cache are taken back; a tensor of another rank is carried whole."""
    names = ["past_key", "other"]
    data_type = oh.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [oh.make_node("Identity", [name], [f"present_{name}"]) for name in names]
    inputs = [value(name, data_type, rank) for name, rank in zip(names, (4, 2), strict=True)]
    outputs = [value(f"present_{n}", data_type, r) for n, r in zip(names, (4, 2), strict=True)]
    past = np.arange(2 * 3 * 5 * 4).reshape(2, 3, 5, 4).astype(dtype)
    given = {"past_key": past, "other": past[:, :, 0, 0]}
    [files, *_] = bundle(tmp_path, model(nodes, inputs, outputs), given)
    carry = {name: f"present_{name}" for name in names}
    plan = [step({}, carry, keep=rows) for rows in (3, None, 0)]
    answer = runner.run(tmp_path, step(files), *plan)
    for first, *later in answer["arrays"]:
        assert_same(first, {carry[name]: array for name, array in given.items()})
        for rows, got in zip((3, 3, 0), later, strict=True):
            kept = {"present_past_key": past[:, :, :rows], "present_other": given["other"]}
            assert_same(got, kept)


def test_it_goes_on_after_a_step_that_may_be_rejected(
    runner: Runner, kind: Kind, tmp_path: Path
) -> None:
    if "may_be_rejected" not in kind.features:
        pytest.skip("each call has a process of its own")
    floats = TensorProto.FLOAT
    inputs = [value(name, floats, 1) for name in ("x", "z")]
    content = model([oh.make_node("Add", ["x", "z"], ["y"])], inputs, [value("y", floats, 1)])
    numbers = [np.arange(size, dtype=np.float32) for size in (2, 3, 2)]
    given = [{"x": np.ones(2, np.float32), "z": each} for each in numbers]
    good, bad, again = bundle(tmp_path, content, *given)
    answer = runner.run(tmp_path, step(good), step(bad, may_be_rejected=True), step(again))
    assert answer["outcome"] == "ran"
    for run, [first, refused, last] in zip(answer["runs"], answer["arrays"], strict=True):
        assert run[1]
        assert isinstance(run[1], str)
        assert not refused
        assert_same(first, {"y": numbers[0] + 1})
        assert_same(last, {"y": numbers[2] + 1})
    must = runner.run(tmp_path, step(good), step(bad))
    assert (must["outcome"], must["step"]) == ("rejected", 1)


def test_an_output_name_that_is_no_file_name(runner: Runner, kind: Kind, tmp_path: Path) -> None:
    if "TRACT" in kind.arguments:
        pytest.skip("tract itself names its files by the outputs")
    name, floats = "/layers.0/attn/y:0", TensorProto.FLOAT
    node = oh.make_node("Neg", ["x"], [name])
    content = model([node], [value("x", floats, 1)], [value(name, floats, 1)])
    [files] = bundle(tmp_path, content, {"x": np.ones(2, np.float32)})
    answer = runner.run(tmp_path, step(files))
    assert list(answer["arrays"][0][0]) == [name]


# A defect of a bundle never looks like a rejection

BROKEN: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "cut": lambda content: content[:-1],
    "garbage": lambda content: b"\xff" * 20,
}


@pytest.mark.parametrize("name", ["model.onnx", "test_data_set_0/input_0.pb"])
@pytest.mark.parametrize("damage", BROKEN)
def test_broken_bundle(start: Start, kind: Kind, tmp_path: Path, name: str, damage: str) -> None:
    """An unreadable bundle ends it with 1."""
    if {"WEB", "NODE"} & {*kind.arguments} and damage != "missing":
        pytest.skip("a package of JavaScript reads the files")
    [files] = bundle(tmp_path, one_node("Identity", 1, 1), {"x": np.ones(2, np.float32)})
    content = BROKEN[damage]((tmp_path / name).read_bytes())
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    runner = start()
    assert runner.run_to_its_end(tmp_path, step(files)) == 1
    assert name in runner.stderr()
    assert len(runner.stderr().splitlines()) == 1


# Packages that cannot be used


PACKAGES = {
    "cpu": ("onnxruntime", "onnxruntime/runner.py", ("--ep", "cpu")),
    "cuda": ("onnxruntime", "onnxruntime/runner.py", ("--ep", "cuda")),
    "qnn": ("onnxruntime_qnn", "onnxruntime/runner.py", ("--plugin", "onnxruntime_qnn")),
    "tract": ("tract", "tract/wheel.py", ()),
    "openvino": ("openvino", "openvino/openvino_runner.py", ()),
}


@pytest.mark.parametrize(("target", "source", "reason", "fix"), TABLES["packages"])
def test_unusable_packages(tmp_path: Path, target: str, source: str, reason: str, fix: str) -> None:
    """An unusable package is unavailable."""
    package, program, arguments = PACKAGES[target]
    environment = fake_package(tmp_path, package, source.format(package))
    with runners(RUNNERS / program, lambda: tmp_path) as started:
        runner = started(*arguments, **environment)
        answer = runner.ask(cmd="describe")
        assert answer["outcome"] == "unavailable"
        assert re.search(reason, answer["reason"])
        assert "\n" not in answer["reason"]
        assert answer["fix"].endswith(fix)
        assert sys.executable in answer["fix"] or target == "cuda"
        assert runner.run(tmp_path, step({})) == answer
        assert runner.end() == 0
        assert runner.stderr() == ""
