"""The target of Qualcomm's simulator: the ONNX Runtime runner with its plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from shipped import shipped_cases
from spoken_runner import RUNNERS, Modules, Runner, Start, bundle, importing, starting, step

from conformance.bundle.prepare import NoStaticShapesError, prepare
from conformance.case.case import Case
from conformance.harness.jobs import Job
from conformance.harness.outcomes import Outcome, Unavailable
from conformance.run.assessment import Assessment, PreparedCase
from conformance.run.target import DescribedTarget
from conformance.targets.catalogue import entry_of
from conformance.targets.registry import target_for

CASES = {case.id: case for case in shipped_cases()}
QNN = target_for("qnn")

start = starting(RUNNERS / "onnxruntime" / "runner.py", scope="module")
module = importing("onnxruntime")


@pytest.fixture(scope="module")
def qnn(start: Start) -> Runner:
    """The runner, with the arguments of the target."""
    runner = start(*QNN.entry.arguments)
    answer = runner.ask(cmd="describe")
    if answer["outcome"] == "unavailable":
        pytest.skip(answer["reason"])
    return runner


def dims_of(content: bytes) -> list[list[int]]:
    """The dims of each input and output of a model; 0 for one without a value."""
    graph = onnx.load_model_from_string(content).graph
    shapes = [each.type.tensor_type.shape.dim for each in (*graph.input, *graph.output)]
    return [[dim.dim_value for dim in dims] for dims in shapes]


def test_a_static_model_has_the_shapes_of_its_calls() -> None:
    made = prepare(CASES["smoke/decode[dtype=float16]"].call)
    (expected,) = made.expected
    shapes = [list(array.shape) for array in made.script.steps[0].inputs.values()]
    shapes += [list(output.shape) for output in expected.values()]
    assert dims_of(made.static_model()) == shapes
    assert dims_of(made.inputs["model.onnx"]) != shapes  # dims have names there, or nothing


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("loop/window[dtype=float16]", "the shapes of its calls differ"),
        ("static_cache/beyond_the_buffer[dtype=float16]", "its outputs are not defined"),
    ],
)
def test_a_case_without_static_shapes_is_not_tried(case: str, why: str) -> None:
    with pytest.raises(NoStaticShapesError, match=why):
        prepare(CASES[case].call).static_model()
    assert isinstance(outcome_of(CASES[case], []), Unavailable)


def outcome_of(case: Case, sent: list[Job]) -> Outcome:
    """What the target would make of a case; the job that would be run is added to ``sent``."""

    def run(job: Job) -> Outcome:
        sent.append(job)
        return Unavailable(reason="only asked for")

    assessment = Assessment(PreparedCase(case), DescribedTarget(QNN, None, None, None), run)
    assessment.result(())
    return assessment.outcomes[0]


def test_only_this_target_gets_static_models() -> None:
    case, sent = CASES["smoke/decode[dtype=float16]"], list[Job]()
    outcome_of(case, sent)
    assert sent[0].files["model.onnx"] == prepare(case.call).static_model()
    assert not any(entry_of(name).static_shapes for name in ("cpu", "webgpu", "openvino"))  # type: ignore[union-attr]


def test_the_runner_and_programs_place_the_operator_alike() -> None:
    (word,) = [word for word in QNN.entry.arguments if word.startswith("op_affinity=")]
    read = json.loads(Path(word.removeprefix("op_affinity=")).read_text())
    assert QNN.entry.script is not None
    assert read == QNN.entry.script.provider_options["op_affinity"]


def test_a_plugin_is_registered_with_the_name_of_its_module(
    module: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    providers = module("ort_providers")
    assert providers.registered_name("/opt/ep.so") == "gqa_plugin"
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(get_ep_name=lambda: "MyProvider"))
    assert providers.registered_name("mine") == "MyProvider"


def test_it_computes_a_case_on_the_simulator(qnn: Runner, tmp_path: Path) -> None:
    answer = qnn.ask(cmd="describe")
    assert answer["execution_provider"] == "QNNExecutionProvider"
    assert answer["provider_options"]["backend_type"] == "htp"
    made = prepare(CASES["smoke/decode[dtype=float16]"].call)
    [files] = bundle(tmp_path, made.static_model(), made.script.steps[0].inputs)
    ran = qnn.run(tmp_path, step(files))
    assert ran["placement"] == "QNNExecutionProvider"
    for name, array in ran["arrays"][0][0].items():
        np.testing.assert_allclose(array, made.expected[0][name].value, atol=4e-3)


@pytest.mark.push
@pytest.mark.usefixtures("qnn")
def test_a_program_needs_no_suite(tmp_path: Path) -> None:
    case = "smoke/static[dtype=float16]"
    export = [sys.executable, "-P", "-m", "conformance", "export", case, str(tmp_path), "--ep"]
    subprocess.run([*export, "qnn"], check=True, capture_output=True)
    command = [sys.executable, str(tmp_path / "repro.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "verdict: pass" in done.stdout.splitlines(), done.stderr
