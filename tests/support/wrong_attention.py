"""ONNX Runtime's runner, but each standard Attention with a past has three times its scale."""

import runpy
import sys
from typing import Any

import onnx
import onnxruntime

_Session = onnxruntime.InferenceSession


def session(model: bytes, *rest: Any, **others: Any) -> Any:
    proto = onnx.load_model_from_string(model)
    for node in proto.graph.node:
        if node.op_type == "Attention" and any(node.input[4:5]):
            scales = [each for each in node.attribute if each.name == "scale"]
            scales = scales or [node.attribute.add(name="scale", type="FLOAT", f=0.25)]
            scales[0].f *= 3
    return _Session(proto.SerializeToString(), *rest, **others)


onnxruntime.InferenceSession = session
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
