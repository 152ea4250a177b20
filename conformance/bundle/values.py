"""The oracle's computation of one step of a call, or of a graph, with all intermediate values."""

from __future__ import annotations

from conformance.base.array_types import NUMPY
from conformance.bundle.prepare import Prepared
from conformance.bundle.script import Arrays, script_of
from conformance.case.call import Call, GraphCall
from conformance.oracle.reference import Computation, compute


def computation_of(call: Call, prepared: Prepared, step: int) -> Computation:
    """The computation of the expected outputs of one step; ``prepared`` is made from ``call``.

    The call must be of a single node and have a meaning: ``prepared.unjudged`` is None.
    """
    script = prepared.script
    inputs: Arrays = dict(script.steps[step].inputs)
    for past, present in script.steps[step].carry.items():
        before = prepared.expected[step - 1][present]
        inputs[past] = before.value.astype(NUMPY[before.dtype])
    assert script.attributes is not None
    return compute(inputs, script.attributes, script.outputs, prepared.reading)


def values_in_graph(call: GraphCall) -> Arrays:
    """Every tensor that a node of the graph makes, in float64, by its name.

    The graph must have a meaning. Elements that an attention leaves undefined are arbitrary.
    """
    from conformance.oracle.graph import Program  # onnx.reference takes long to import

    script = script_of(call)
    return Program(script.model).values(script.steps[0].inputs)
