"""A runner process, driven with single messages like the harness does, and small bundles for it.

Each request and each answer is checked with the protocol's JSON Schema.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import pytest
from onnx import TensorProto, numpy_helper

from conformance.base.paths import data_path
from conformance.targets.tools import RuntimeProgram

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")

RUNNERS = data_path("runners")

Arrays = dict[str, np.ndarray]
Message = dict[str, Any]
#: A bundle of one step, and the files of the step.
Bundle = tuple[Path, dict[str, str]]
#: Imports the modules of a runner by their names.
Modules = Callable[[str], ModuleType]


def validator(name: str) -> Any:
    schema = json.loads((RUNNERS / "schema" / name).read_text())
    return jsonschema.Draft202012Validator(schema)


REQUESTS, ANSWERS = validator("request.json"), validator("answer.json")


def packages_in_node(find: Callable[[], RuntimeProgram | None], setup: str) -> Path:
    """The folder of the npm packages that ``find`` finds and ``gqa setup`` installs."""
    if shutil.which("node") is None:
        pytest.skip("needs Node.js")
    if (found := find()) is None:
        pytest.skip(f"needs npm packages: gqa setup {setup}")
    return found.path


class Runner:
    """A runner process. Its standard error goes to a file, so that nothing can block."""

    def __init__(self, argv: list[str], stderr: Path, **environment: str) -> None:
        self.stderr_path = stderr
        self.last_id = self.compiled = 0
        with stderr.open("wb") as file:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )

    def tell(self, request: Message) -> bytes:
        """Send ``request`` unchanged; returns the answer's line, empty if the runner ends."""
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def ask(self, **request: Any) -> Message:
        """The answer to a valid request, itself valid and with the same id.

        A runner may announce once that it is compiling: ``compiled`` counts these notices.
        """
        self.last_id += 1
        request["id"] = self.last_id
        REQUESTS.validate(request)
        answer = self.hear(self.tell(request))
        if request["cmd"] == "run" and answer["outcome"] == "compiling":
            self.compiled += 1
            answer = self.hear(self.process.stdout.readline())
        assert answer["outcome"] != "compiling"
        return answer

    def hear(self, line: bytes) -> Message:
        """A valid message to the last request, without its id."""
        message: Message = json.loads(line)
        ANSWERS.validate(message)
        assert message.pop("id") == self.last_id
        return message

    def run(self, bundle: Path, *steps: Message, repeat: int = 2) -> Message:
        """Run a case into a new folder beside its bundle; ``arrays`` has the files' content."""
        out = bundle / f"out{self.last_id}"
        out.mkdir()
        answer = self.ask(
            cmd="run", bundle=str(bundle), out=str(out), repeat=repeat, steps=list(steps)
        )
        if answer["outcome"] == "ran":
            steps_run = [[{} if isinstance(s, str) else s for s in run] for run in answer["runs"]]
            named = [file for run in steps_run for step in run for file in step.values()]
            assert sorted(named) == sorted(os.listdir(out))
            answer["arrays"] = [
                [{name: load(out / file, name) for name, file in step.items()} for step in run]
                for run in steps_run
            ]
        return answer

    def run_to_its_end(self, bundle: Path, *steps: Message) -> int:
        """Run a case that ends the runner instead of an answer; its exit status."""
        request = {"id": 9, "cmd": "run", "bundle": str(bundle), "out": str(bundle), "repeat": 1}
        assert self.tell({**request, "steps": list(steps)}) == b""
        return self.process.wait(60)

    def stderr(self) -> str:
        return self.stderr_path.read_text(errors="replace")

    def end(self) -> int:
        """End its input; its exit status."""
        self.process.stdin.close()
        status = self.process.wait(60)
        assert self.process.stdout.read() == b""
        self.process.stdout.close()
        return status


Start = Callable[..., Runner]


# Models and bundles


def value(name: str, data_type: int, rank: int) -> onnx.ValueInfoProto:
    return oh.make_tensor_value_info(name, data_type, [None] * rank)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> bytes:
    graph = oh.make_graph(nodes, "test", inputs, outputs)
    opsets = [oh.make_opsetid("", 19), oh.make_opsetid("com.microsoft", 1)]
    content: bytes = oh.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return content


def one_node(operator: str, data_type: int, rank: int, result: int = 0, **attributes: Any) -> bytes:
    """``y = operator(x)``."""
    return model(
        [oh.make_node(operator, ["x"], ["y"], **attributes)],
        [value("x", data_type, rank)],
        [value("y", result or data_type, rank)],
    )


GQA_INPUTS = {"query": 3, "key": 3, "value": 3, "past_key": 4, "past_value": 4}
GQA_OUTPUTS = {"output": 3, "present_key": 4, "present_value": 4}


def gqa_model(data_type: int = TensorProto.FLOAT, kv_num_heads: int = 1) -> bytes:
    """Two query heads on one key head of size 8, or on ``kv_num_heads``, with a past."""
    inputs = [value(name, data_type, rank) for name, rank in GQA_INPUTS.items()]
    inputs.append(value("seqlens_k", TensorProto.INT32, 1))
    inputs.append(value("total_sequence_length", TensorProto.INT32, 0))
    node = oh.make_node(
        "GroupQueryAttention",
        [info.name for info in inputs],
        list(GQA_OUTPUTS),
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=kv_num_heads,
    )
    return model([node], inputs, [value(n, data_type, r) for n, r in GQA_OUTPUTS.items()])


def gqa_inputs(past: int, total: int, seed: int = 0, dtype: Any = np.float32) -> Arrays:
    """One token; a past of ``past`` rows, of which ``total`` - 1 are in use."""
    rng = np.random.RandomState(seed)
    shapes = {
        "query": (1, 1, 16),
        "key": (1, 1, 8),
        "value": (1, 1, 8),
        "past_key": (1, 1, past, 8),
        "past_value": (1, 1, past, 8),
    }
    arrays: Arrays = {name: rng.randn(*shape).astype(dtype) for name, shape in shapes.items()}
    arrays["seqlens_k"] = np.array([total - 1], np.int32)
    arrays["total_sequence_length"] = np.array(total, np.int32)
    return arrays


def bundle(folder: Path, content: bytes, *steps: Arrays) -> list[dict[str, str]]:
    """Write a bundle; for each step, input → file."""
    (folder / "model.onnx").write_bytes(content)
    files = []
    for number, arrays in enumerate(steps):
        (folder / f"test_data_set_{number}").mkdir()
        named = {n: f"test_data_set_{number}/input_{i}.pb" for i, n in enumerate(arrays)}
        for name, array in arrays.items():
            save(folder / named[name], name, array)
        files.append(named)
    return files


def save(path: Path, name: str, array: np.ndarray) -> None:
    path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())


def load(path: Path, name: str) -> np.ndarray:
    tensor = onnx.load_tensor(str(path))
    assert tensor.name == name
    return numpy_helper.to_array(tensor)


def step(
    files: dict[str, str],
    carry: Any = None,
    share: Any = None,
    keep: int | None = None,
    may_be_rejected: bool = False,
) -> Message:
    one = {"files": files, "carry": carry or {}, "keep": keep, "share": share or {}}
    return {**one, "may_be_rejected": may_be_rejected}


def assert_same(got: Arrays, want: Arrays) -> None:
    assert list(got) == list(want)
    for name in want:
        assert got[name].dtype == want[name].dtype, name
        assert got[name].shape == want[name].shape, name
        assert got[name].tobytes() == want[name].tobytes(), name


@contextmanager
def runners(program: Path, folder: Callable[[], Path]) -> Iterator[Start]:
    """Starts runners of ``program``, and kills them at the end.

    Each gets the runner's arguments, python's options and environment variables; its standard
    error is written to its own ``folder``.
    """
    started: list[Runner] = []

    def start(*arguments: str | Path, python: tuple[str, ...] = (), **environment: str) -> Runner:
        argv = [sys.executable, *python, str(program), *map(str, arguments)]
        started.append(Runner(argv, folder() / "stderr", **environment))
        return started[-1]

    yield start
    for runner in started:
        runner.process.kill()
        runner.process.wait()


@contextmanager
def modules(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Modules]:
    """Imports modules of the runner ``name``, in the way the runner itself does."""
    for folder in ("common", name):
        monkeypatch.syspath_prepend(str(RUNNERS / folder))
    before = set(sys.modules)
    yield lambda module: __import__(module)
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(RUNNERS)):
            del sys.modules[module]


def files_in(folder: Path) -> dict[str, bytes]:
    """The content of each file below a folder, by its path there."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def starting(program: Path, *usual: str, scope: Any = "function") -> Any:
    """A fixture that starts runners of ``program``, with the ``usual`` arguments or others."""

    @pytest.fixture(scope=scope)
    def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
        with runners(program, lambda: tmp_path_factory.mktemp("runner")) as started:
            yield lambda *arguments, **rest: started(*(arguments or usual), **rest)

    return start


def importing(name: str) -> Any:
    """A fixture that imports modules of the runner ``name``."""

    @pytest.fixture
    def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
        with modules(monkeypatch, name) as found:
            yield found

    return module


def fake_program(folder: Path, name: str) -> Path:
    """The program ``name`` in ``folder``, which runs ``fake_NAME.py``."""
    made = folder / name
    file = Path(__file__).with_name(f"fake_{name.replace('compute-', '')}.py")
    made.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S '{file}' \"$@\"\n")
    made.chmod(0o755)
    return made


def fake_package(folder: Path, name: str, source: str) -> dict[str, str]:
    """The environment in which ``import NAME`` runs ``source``."""
    package = folder / "fake" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    return {"PYTHONPATH": str(package.parent)}


def input_with_a_default(folder: Path) -> dict[str, str]:
    """The files of a model that adds its inputs, of which ``z`` is an initializer, too."""
    one = numpy_helper.from_array(np.ones(2, np.float32), "z")
    graph = oh.make_graph(
        [oh.make_node("Add", ["x", "z"], ["y"])],
        "test",
        [value("x", TensorProto.FLOAT, 1), value("z", TensorProto.FLOAT, 1)],
        [value("y", TensorProto.FLOAT, 1)],
        initializer=[one],
    )
    content = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9)
    arrays = {"x": np.ones(2, np.float32), "z": np.zeros(2, np.float32)}
    [files] = bundle(folder, content.SerializeToString(), arrays)
    return files
