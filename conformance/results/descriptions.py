"""Describes cases for results files: their calls, and how the values of their inputs are made."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import Counter
from contextlib import suppress
from typing import Final

import numpy as np

from conformance.base.paths import shown
from conformance.case.case import Case
from conformance.case.corpus import is_shipped
from conformance.case.given import GivenError, given_inputs
from conformance.case.relations import RELATIONS
from conformance.operator.call import Call, GivenCall, GraphCall
from conformance.operator.features import INPUT_RULES
from conformance.operator.tensors import Step, Tensor, attributes_of
from conformance.results.recipes import later_inputs, numbers_of, recipe_of
from conformance.results.records import FROM_FILE, CaseRecord


def case_record(case: Case) -> CaseRecord:
    """The case for the results file and for ``gqa show``. Raises InputError."""
    try:
        first = case.steps[0]
        given: dict[str, np.ndarray] = {}
        if isinstance(case.call, GivenCall):
            with suppress(GivenError):  # then the record does not have the numbers
                given = given_inputs(case.call, first)
        tensors = (*first.inputs, *first.buffers)
        inputs = [_input(case.call, first, each, given.get(each.name)) for each in tensors]
        keep = [step.keep for step in case.steps[1:]]
        return CaseRecord.model_validate(
            {
                "id": case.id,
                "file": f"cases/{case.file.name}" if is_shipped(case) else shown(case.file),
                "theme": case.theme,
                "question": case.question,
                "name": case.name,
                "title": case.title,
                "axes": case.axes,
                "why": case.why,
                "tags": case.tags,
                "links": case.links,
                "contract": case.contract,
                "relation": RELATIONS[case.relation].sentence if case.relation else None,
                "call": {
                    "inputs": inputs,
                    "outputs": [_place(tensor) for tensor in first.outputs],
                    "attributes": attributes_of(case.call),
                    "steps": len(case.steps),
                    "later": [later_inputs(case.call, step, first) for step in case.steps[1:]],
                    "keep": keep if {*keep} - {None} else (),
                    "refused": [at for at, step in enumerate(case.steps) if step.refused],
                    "shared_buffer": case.call.shared_buffer,
                    "graph": _graph(case.call, first),
                },
            }
        )
    except Exception as error:
        raise case.unprepared(error) from error


def _input(
    call: Call, step: Step, tensor: Tensor, given: np.ndarray | None = None
) -> dict[str, object]:
    """An input of ``step``, or a drawn constant of a graph, for the record.

    ``given`` are its values from a file.
    """
    values, recipe = None, None
    if isinstance(call, GivenCall) and tensor.shape is not None and 0 not in tensor.shape:
        values = f"{FROM_FILE}{call.values_from} (SHA-256 {call.digest[:16]}…)"
        recipe = None if given is None else numbers_of(given)
    elif tensor.same_as:
        values = f"the tensor of {tensor.same_as}"
    elif tensor.holds:
        values, recipe = f"the memory of {tensor.holds}", recipe_of(call, step, tensor)
    elif tensor.connected:
        values, recipe = _values_text(tensor), recipe_of(call, step, tensor)
    return {
        **_place(tensor),
        "constant": tensor.constant,
        "same_as": tensor.same_as or None,
        "holds": tensor.holds or None,
        "values": f"constant: {values}" if tensor.constant else values,
        "dims": tensor.dims if any(tensor.dims) else (),
        "recipe": recipe,
    }


#: The longest content of a graph in a record, in characters.
MOST_CONTENT: Final = 1 << 16


def _graph(call: Call, step: Step) -> dict[str, object] | None:
    """The record of a graph; None for a call of a single node."""
    if not isinstance(call, GraphCall):
        return None
    from conformance.case.graph import parsed  # imports onnx

    content = base64.b64encode(zlib.compress(call.content, 9)).decode()
    return {
        "file": call.graph,
        "digest": hashlib.sha256(call.content).hexdigest(),
        "nodes": Counter(node.op_type for node in parsed(call.content).model.graph.node),
        "weights": [_input(call, step, tensor) for tensor in step.weights],
        "content": content if len(content) <= MOST_CONTENT else "",
    }


def _place(tensor: Tensor) -> dict[str, object]:
    """A tensor's name, state, shape and dtype, for the record."""
    dtype = tensor.dtype if tensor.connected else None
    return {"name": tensor.name, "state": tensor.state, "shape": tensor.shape, "dtype": dtype}


def _values_text(tensor: Tensor) -> str:
    """How an input's values are made, in words."""
    if tensor.node is not None:
        tensor = tensor._replace(name=tensor.role, node=None)
    if tensor.shape is not None and 0 in tensor.shape:
        return "no elements"
    if tensor.elements:
        rest = _values_text(tensor._replace(elements=()))
        changes = (
            f"{value:g} at {list(at)}" + (f" and the next {count - 1}" if count > 1 else "")
            for at, count, value in tensor.elements
        )
        return f"{rest}, but {', '.join(changes)}"
    if tensor.data is not None:
        return f"{tensor.data}"
    if tensor.values is None:
        rule = INPUT_RULES.get(tensor.name)
        return rule.meaning if rule else "1 for each token, 0 for padding"  # of an attention mask
    if tensor.values.kind == "constant":
        return f"all {tensor.values.value:g}"
    if tensor.values.kind == "marked":
        return "one element of each token in ±[0.5, 1), the rest in [-0.125, 0.125)"
    text = f"uniform in [{tensor.values.low:g}, {tensor.values.high:g})"
    factor = tensor.values.odd_heads
    return text if factor == 1.0 else f"{text}, times {factor:g} in every other head"
