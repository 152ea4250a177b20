"""The steps of a call: one execution of the model for each call of a loop."""

from __future__ import annotations

from conformance.case.node_steps import node_steps
from conformance.operator.call import Call, GraphCall
from conformance.operator.tensors import Step


def steps_of(call: Call) -> tuple[Step, ...]:
    """The steps of a case: one, or one for each call of a loop. Raises :class:`ShapeError`."""
    if isinstance(call, GraphCall):
        from conformance.case.graph import graph_steps  # imports onnx

        return graph_steps(call)
    return node_steps(call)
