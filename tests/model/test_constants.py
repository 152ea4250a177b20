"""Constants of the model in place of inputs, and one tensor that is two inputs of the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.base.paths import data_path
from conformance.bundle.inputs import draw_inputs
from conformance.bundle.prepare import prepare
from conformance.bundle.script import Script, script_of
from conformance.bundle.variants import variant_script
from conformance.case.load import load_file
from conformance.case.properties import comparison_test
from conformance.case.steps import steps_of
from conformance.operator.call import checked_call

#: A loop whose second call would draw another head_sink, in another range.
LOOP: dict[str, Any] = {"loop": (5, 1), "rotary": "half_split", "head_sink": True}
LOOP |= {"constants": ("cos_cache", "head_sink")}
#: A scale that is a constant, and the same for keys and values.
SCALES: dict[str, Any] = {
    "past_sequence_length": 5,
    "cache_dtype": "int8",
    "k_quant_type": "PER_TENSOR",
    "v_quant_type": "PER_TENSOR",
    "constants": ("v_scale",),
    "inputs": {"k_scale": {"same_as": "v_scale"}},
}
KEY_IS_VALUE: dict[str, Any] = {"sequence_length": 3, "inputs": {"value": {"same_as": "key"}}}


def script(**fields: Any) -> Script:
    return script_of(checked_call(fields))


def initializers(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def test_a_constant_is_in_the_model_and_not_among_its_inputs() -> None:
    made = script(rotary="half_split", sequence_length=4, constants=("cos_cache", "sin_cache"))
    plain = script(rotary="half_split", sequence_length=4)
    names = [value.name for value in plain.model.graph.input]
    assert [value.name for value in made.model.graph.input] == names[:-2]
    assert made.model.graph.node[0] == plain.model.graph.node[0]
    constants = initializers(made.model)
    assert constants.keys() == {"cos_cache", "sin_cache"}
    for name, array in constants.items():
        assert array.tobytes() == plain.steps[0].inputs[name].tobytes()
    onnx.checker.check_model(made.model, full_check=True)


def test_all_calls_of_a_loop_have_the_constants_of_the_first() -> None:
    made, call = script(**LOOP), checked_call(LOOP)
    first, second = (step.inputs["head_sink"] for step in made.steps)
    assert first.tobytes() == second.tobytes() == initializers(made.model)["head_sink"].tobytes()
    other = checked_call({**LOOP, "constants": ()})
    assert not np.array_equal(draw_inputs(other, steps_of(other)[1])["head_sink"], second)
    assert made.steps[0].connected == made.steps[1].connected
    assert "sin_cache" in made.steps[1].connected
    variant = variant_script(call, "constants_as_inputs")
    assert not variant.model.graph.initializer
    for step, twin in zip(made.steps, variant.steps, strict=True):
        assert step.inputs["head_sink"].tobytes() == twin.inputs["head_sink"].tobytes()
        assert step.carry == twin.carry


def test_a_tensor_can_be_two_inputs() -> None:
    made = script(**SCALES)
    node = made.model.graph.node[0]
    assert list(node.input[12:14]) == ["v_scale", "v_scale"]
    assert initializers(made.model).keys() == {"v_scale"}
    assert not {"k_scale", "v_scale"} & {*made.steps[0].connected}
    inputs = made.steps[0].inputs
    assert inputs["k_scale"].tobytes() == inputs["v_scale"].tobytes()
    made = script(**KEY_IS_VALUE)
    assert list(made.model.graph.node[0].input[:3]) == ["query", "key", "key"]
    present = made.compute(made.steps[0].inputs)
    np.testing.assert_array_equal(present["present_key"].value, present["present_value"].value)


def test_a_bundle_has_one_file_for_a_tensor_and_none_for_a_constant() -> None:
    made = prepare(checked_call(SCALES))
    (files,) = (step.files for step in made.steps)
    assert not {"k_scale", "v_scale"} & files.keys()
    assert set(made.inputs) == {"model.onnx", *files.values()}
    made = prepare(checked_call(KEY_IS_VALUE))
    assert "value" not in made.steps[0].files


def test_cases_are_found_by_their_constants() -> None:
    test = comparison_test("constants=head_sink")
    found = [test(case) for case in load_file(data_path("cases") / "constants.yaml")]
    assert any(found)
    assert not all(found)
