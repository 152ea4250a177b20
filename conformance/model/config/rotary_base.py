"""The base of a model's rotary tables, if the file of the model or of its weights contains them."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.graph.nodes import AttentionNode, is_empty
from conformance.graph.reading import ReadModel
from conformance.graph.walks import make_names_safe

#: The largest model that is read as a whole for its tables, and the largest table.
_MOST_BYTES: Final = 1 << 27
_MOST_ELEMENTS: Final = 1 << 25


def base_of(model: ReadModel, node: AttentionNode, rotary_dim: int) -> float | None:
    """The base of the frequencies in the tables of ``node``, None if they cannot be read.

    The angle of position 1 and pair i is ``base ** (-2 * i / rotary_dim)``, except in tables that
    are scaled for long contexts.
    """
    try:
        cos, sin = (stored(model, node.inputs[n]) for n in ("cos_cache", "sin_cache"))
        angle = math.atan2(float(sin[1, 1]), float(cos[1, 1]))
        return float(angle ** (-rotary_dim / 2)) if 0 < angle < 1 else None
    except Exception:  # no weights there, or whatever a stranger's model has
        return None


def stored(model: ReadModel, name: str) -> np.ndarray:
    """The content of an initializer, from its file. Raises if it is missing or too large."""
    found = {each.name: each for each in model.proto.graph.initializer}[name]
    if math.prod(found.dims) > _MOST_ELEMENTS or model.path.stat().st_size > _MOST_BYTES:
        raise ValueError("too large")
    tensor = onnx.TensorProto()
    tensor.CopyFrom(found)
    if is_empty(tensor) and not tensor.external_data:
        whole = onnx.load(model.path, load_external_data=False)
        make_names_safe(whole)
        tensor = next(each for each in whole.graph.initializer if each.name == name)
    return numpy_helper.to_array(tensor, str(model.path.parent))
