"""The ONNX model of a call: valid, with exactly the tensors of its node."""

from __future__ import annotations

import onnx
import pytest
from onnx import ModelProto
from shipped import shipped_cases

from conformance.bundle.inputs import draw_inputs
from conformance.bundle.model import build_model
from conformance.case.case import Case


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
