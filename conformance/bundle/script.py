"""The script of a bundle: a model, the inputs of each of its calls, and the oracle for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx

from conformance.base.array_types import NUMPY, Array
from conformance.bundle.inputs import draw_inputs, draw_weights
from conformance.bundle.model import build_model, filled_model
from conformance.case.graph import parsed, shared_pasts
from conformance.case.steps import steps_of
from conformance.operator.call import Call, GraphCall
from conformance.operator.readings import ReadingName
from conformance.operator.tensors import Step, attributes_of
from conformance.oracle import Reference, reference

Arrays = dict[str, Array]

#: In a loop, the past of a call is the present of the call before.
CARRY: Final = {"past_key": "present_key", "past_value": "present_value"}
#: With a shared buffer, each of these outputs occupies the memory of this input.
ALIASES: Final = {"present_key": "past_key", "present_value": "past_value"}


@dataclass(frozen=True)
class ScriptStep:
    """One call of the model.

    ``connected`` lists the graph's inputs in order. ``inputs`` has an array for each input of the
    node, including the constants of the model but not the inputs in ``carry``, which are taken from
    an output of the step before, or from its first ``keep`` rows. ``aliases`` maps an output to the
    input whose memory it occupies. ``buffers`` are those inputs of the graph that no node reads.
    ``refused``: the call is illegal.
    """

    connected: tuple[str, ...]
    inputs: Arrays
    carry: Mapping[str, str] = field(default_factory=dict)
    keep: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[str, Array] = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True)
class Script:
    """A model and its calls.

    ``outputs`` lists the graph's outputs in order. ``compute`` is the oracle: from the inputs of a
    step, including the carried ones, it computes a reference for each output. ``call`` describes
    the node, but it may have other lengths and inputs; None if the graph has several nodes.
    """

    model: onnx.ModelProto
    steps: tuple[ScriptStep, ...]
    outputs: tuple[str, ...]
    compute: Callable[[Arrays], dict[str, Reference]]
    call: Call | None = None


def script_of(
    call: Call, reading: ReadingName | None = None, steps: tuple[Step, ...] = ()
) -> Script:
    """The script of ``call``, with its drawn inputs and the oracle by this reading.

    ``steps`` are those of the call, if they are known. Raises
    :class:`conformance.case.node_steps.ShapeError`.
    """
    if isinstance(call, GraphCall):
        return _graph_script(call)
    steps = steps or steps_of(call)
    return script_with(call, [draw_inputs(call, step) for step in steps], reading, steps)


def _graph_script(call: GraphCall) -> Script:
    from conformance.oracle.graph_reference import GraphReference  # takes long to import

    (step,) = steps_of(call)
    model = filled_model(call.content, draw_weights(call, step))
    inputs = draw_inputs(call, step)
    aliases = shared_pasts(parsed(call.content)) if call.shared_buffer else {}
    return Script(
        model=model,
        steps=(ScriptStep(tuple(inputs), inputs, aliases=aliases),),
        outputs=step.connected_outputs,
        compute=lambda arrays: GraphReference(model).references(arrays),
    )


def values_in_graph(call: GraphCall) -> Arrays:
    """Every tensor that a node of the graph makes, in float64, by its name.

    The graph must have a meaning. Elements that an attention leaves undefined are arbitrary.
    """
    from conformance.oracle.graph_reference import GraphReference  # takes long to import

    script = script_of(call)
    return GraphReference(script.model).values(script.steps[0].inputs)


def script_with(
    call: Call,
    inputs: list[Arrays],
    reading: ReadingName | None = None,
    steps: tuple[Step, ...] = (),
) -> Script:
    """A script of the node that ``call`` describes, with one entry of ``inputs`` for each call.

    The number of calls and their lengths may differ from those of ``call``. Every call after the
    first takes its past from the call before unless ``inputs`` has one. ``steps`` are those of
    ``call``, if they are known.
    """
    of_call = steps or steps_of(call)
    first = of_call[0]
    connected = tuple(each.name for each in (*first.inputs, *first.buffers) if each.fed)
    bound = {tensor.holds: tensor.name for tensor in first.buffers}
    buffers = {each.name: np.zeros(each.shape or (), NUMPY[each.dtype]) for each in first.buffers}
    outputs = first.connected_outputs
    attributes = attributes_of(call)
    return Script(
        model=build_model(call, first, inputs[0]),
        steps=tuple(
            ScriptStep(
                connected,
                arrays,
                carry={
                    past: present
                    for past, present in CARRY.items()
                    if past in connected and past not in arrays
                },
                keep=of_call[index].keep if index < len(of_call) else None,
                aliases=ALIASES if call.shared_buffer else bound,
                buffers=buffers,
                refused=index < len(of_call) and of_call[index].refused,
            )
            for index, arrays in enumerate(inputs)
        ),
        outputs=outputs,
        compute=lambda arrays: reference(arrays, attributes, outputs, reading),
        call=call,
    )
