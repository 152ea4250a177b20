"""The base of a model's rotary tables, where the file of the model or of its weights has them."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from conformance.model.nodes import AttentionNode, is_empty
from conformance.model.reading import ReadModel

#: A model that is larger is not read whole for its tables, and neither is a larger table.
_MOST_BYTES: Final = 1 << 27
_MOST_ELEMENTS: Final = 1 << 25


def base_of(model: ReadModel, node: AttentionNode, rotary_dim: int) -> float | None:
    """The base of the frequencies in the tables of ``node``, None if they cannot be read.

    The angle of position 1 and pair i is ``base ** (-2 * i / rotary_dim)``, but for tables that are
    scaled for long contexts.
    """
    cos, sin = (_table(model, node.inputs.get(name, "")) for name in ("cos_cache", "sin_cache"))
    if cos is None or sin is None or cos.ndim != 2 or cos.shape != sin.shape:
        return None
    if len(cos) < 2 or cos.shape[1] < 2 or rotary_dim < 4:
        return None
    angle = math.atan2(float(sin[1, 1]), float(cos[1, 1]))
    return float(angle ** (-rotary_dim / 2)) if 0 < angle < 1 else None


def _table(model: ReadModel, name: str) -> np.ndarray | None:
    tensors = {each.name: each for each in model.proto.graph.initializer}
    tensor = tensors.get(name)
    if tensor is None or math.prod(tensor.dims) > _MOST_ELEMENTS:
        return None
    if is_empty(tensor) and not tensor.external_data:
        if model.path.stat().st_size > _MOST_BYTES:
            return None
        whole = onnx.load(model.path, load_external_data=False)
        tensor = next(each for each in whole.graph.initializer if each.name == name)
    if tensor.external_data:
        copied = onnx.TensorProto()
        copied.CopyFrom(tensor)
        tensor = copied
        try:
            external_data_helper.load_external_data_for_tensor(tensor, str(model.path.parent))
        except (OSError, ValueError, onnx.checker.ValidationError):
            return None  # the weights are not there
    return numpy_helper.to_array(tensor).astype(np.float64)
