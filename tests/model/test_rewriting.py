"""Dense attention in standard operators computes what the oracle does for one prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from gqa_calls import Arrays, Attributes
from onnx import TensorProto, helper, numpy_helper
from random_configurations import random_configuration

from conformance.base.array_types import ONNX_OF_NUMPY
from conformance.model.rewriting.dense import CannotRewrite, dense_model, other_attention
from conformance.operator.signature import DOMAIN, INPUT_NAMES, OUTPUT_NAMES
from conformance.oracle import reference

pytest.importorskip("onnxruntime")

#: Stages of a cache in which all tokens of the sequences are given at once.
WHOLE = ("prompt", "prompt_into_static", "borrowed_prompt", "all_at_once")


def ran(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a model on onnxruntime's CPU, which gets the inputs that there are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    feeds = {each.name: inputs[each.name] for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def one_node(
    inputs: Arrays, attributes: Attributes, *outputs: str, opset: int = 21
) -> onnx.ModelProto:
    """A graph of one node."""
    outputs = outputs or ("output",)
    names = [name if name in inputs else "" for name in INPUT_NAMES]
    made = [name if name in outputs else "" for name in OUTPUT_NAMES]
    node = helper.make_node("GroupQueryAttention", names, made, domain=DOMAIN, **attributes)
    values = [
        helper.make_tensor_value_info(name, ONNX_OF_NUMPY[array.dtype], array.shape)
        for name, array in inputs.items()
    ]
    kind = ONNX_OF_NUMPY[inputs["query"].dtype]
    results = [helper.make_tensor_value_info(name, kind, None) for name in outputs]
    graph = helper.make_graph([node], "g", values, results)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def compare(inputs: Arrays, attributes: Attributes, *outputs: str, **how: Any) -> None:
    """Assert that the dense graph computes what the oracle does."""
    outputs = outputs or ("output",)
    dense = dense_model(one_node(inputs, attributes, *outputs, **how))
    assert {node.domain for node in dense.graph.node} <= {""}
    wide = {
        name: array.astype(np.float32) if array.dtype.kind in "fV" else array
        for name, array in inputs.items()
    }
    got = ran(dense, wide)
    for name, each in reference(inputs, attributes, outputs).items():
        right = np.where(each.defined, each.value, 0)
        limit = 1e-5 * max(1.0, np.abs(right).max(initial=0))
        assert got[name].shape == right.shape
        np.testing.assert_allclose(np.where(each.defined, got[name], 0), right, 0, limit)


@pytest.mark.parametrize("seed", range(240))
def test_any_whole_prompt(seed: int) -> None:
    drawn = random_configuration(seed)
    if drawn.stage not in WHOLE:
        pytest.skip("has a past")
    total = int(drawn.inputs["total_sequence_length"])
    inputs = {n: each for n, each in drawn.inputs.items() if n != "position_ids"}
    if drawn.stage == "borrowed_prompt":  # the rows of a buffer are all read
        for name in ("past_key", "past_value"):
            inputs[name] = np.ascontiguousarray(inputs[name][:, :, :total])
    inputs["seqlens_k"] = np.full_like(inputs["seqlens_k"], total - 1)
    compare(inputs, drawn.attributes, opset=(13, 17, 18, 21, 23)[seed % 5])
