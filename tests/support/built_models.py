"""The model that is built for a call, and the dims that it declares."""

from __future__ import annotations

from typing import Any

import onnx

from conformance.bundle.model import build_model
from conformance.case.steps import steps_of
from conformance.operator.call import checked_call


def model(**fields: Any) -> onnx.ModelProto:
    call = checked_call(fields)
    return build_model(call, steps_of(call)[0])


def dims(value: onnx.ValueInfoProto) -> list[int | str | None]:
    """The dims that a graph declares: a number, a name, or None for neither."""
    assert value.type.tensor_type.HasField("shape")  # also of a scalar
    return [
        getattr(dim, kind) if (kind := dim.WhichOneof("value")) else None
        for dim in value.type.tensor_type.shape.dim
    ]


def declared(**fields: Any) -> dict[str, list[int | str | None]]:
    graph = model(**fields).graph
    return {value.name: dims(value) for value in (*graph.input, *graph.output)}
