"""The ONNX model of a call: valid, in the form of exporters, and accepted by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import ModelProto
from packaging.version import Version
from shipped import shipped_cases

from conformance.bundle.inputs import draw_inputs
from conformance.bundle.model import build_model
from conformance.case.case import Case
from conformance.case.steps import steps_of
from conformance.expectations.read import load_expectations
from conformance.operator.call import checked_call
from conformance.operator.signature import ATTRIBUTES, INPUTS, OUTPUTS
from conformance.operator.tensors import attributes_of
from conformance.targets.registry import target_for


def build(**fields: Any) -> ModelProto:
    call = checked_call(fields)
    return build_model(call, steps_of(call)[0])


def model_of(case: Case) -> ModelProto:
    """The model of a case, with its constants."""
    step = case.steps[0]
    constants = draw_inputs(case.call, step) if case.call.constants else None
    return build_model(case.call, step, constants)


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return list(shipped_cases())


def test_every_shipped_model_passes_the_checker(corpus: list[Case]) -> None:
    for case in corpus:
        onnx.checker.check_model(model_of(case), full_check=True)


def test_the_graph_has_exactly_the_tensors_of_the_node(corpus: list[Case]) -> None:
    for case in corpus:
        graph = model_of(case).graph
        named = dict.fromkeys(n for n in graph.node[0].input if n)
        constants = [tensor.name for tensor in graph.initializer]
        inputs = [name for name in named if name not in constants]
        inputs += [tensor.name for tensor in case.steps[0].buffers]
        assert [value.name for value in graph.input] == inputs
        assert set(constants) == set(case.call.constants) <= named.keys()
        assert [value.name for value in graph.output] == [n for n in graph.node[0].output if n]


def test_the_bytes_are_the_same_each_time() -> None:
    once, again = build(rotary="half_split", softcap=2.0), build(rotary="half_split", softcap=2.0)
    assert once.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)


# ONNX Runtime


def session(model: ModelProto) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers)


def since(case: Case) -> Version:
    """The first ONNX Runtime whose schema has all that the case uses."""
    (step,) = case.steps[:1]
    used = {t.name for t in (*step.inputs, *step.outputs) if t.connected}
    used |= attributes_of(case.call).keys()
    versions = [p.since for p in (*INPUTS, *OUTPUTS, *ATTRIBUTES) if p.name in used]
    if not {"present_key", "present_value"} <= used:
        versions.append("1.27")
    return max(map(Version, versions))


def test_onnxruntime_loads_the_models_it_supports(corpus: list[Case]) -> None:
    """One case of each entry with specified values, as far as the installed version supports it."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    seen: set[tuple[str, str]] = set()
    lines = load_expectations(target_for("cpu").expectations)
    refused = [line for line in lines if line.known.stage == "load"]
    for case in corpus:
        entry = (case.theme, case.name)
        if any(line.covers(case) for line in refused):
            continue
        promised = (case.contract.demands, case.contract.basis) == ("computes", "specified")
        if not promised or entry in seen or case.call.dtype != "float32":
            continue
        seen.add(entry)
        if since(case) > Version(onnxruntime.__version__):
            continue
        step = case.steps[0]
        made = session(model_of(case))
        assert [i.name for i in made.get_inputs()] == [
            t.name for t in (*step.inputs, *step.buffers) if t.fed
        ]
        assert tuple(o.name for o in made.get_outputs()) == step.connected_outputs
    assert len(seen) > 40
