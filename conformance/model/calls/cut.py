"""Parts of a model with several nodes, cut out as small graphs without weights.

Two kinds are cut: a layer with one that borrows its KV cache, since a runtime may keep a cache in
place between nodes; and a layer with the projections before it, since their fusion decides the
form of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

import onnx
from onnx import TensorProto, ValueInfoProto, helper

from conformance.bundle.model import DEFAULT_OPSET, IR_VERSION
from conformance.case.graph import GraphError, graph_call
from conformance.case.steps import steps_of
from conformance.graph.nodes import AttentionNode, is_attention
from conformance.graph.parts import (
    CannotCut,
    declared,
    model_of,
    nodes_that_make,
    reached,
    too_many,
)
from conformance.graph.reading import ReadModel, reads
from conformance.graph.shapes import UNKNOWN, ValueDim, ValueType, types_of
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import BORROWER, Group
from conformance.model.calls.stages import NodeCall
from conformance.operator.call import checked_call
from conformance.operator.signature import DOMAIN, OPSET_VERSION
from conformance.operator.tensors import ShapeError
from conformance.oracle.graph_reference import unknown_operators

#: Operators between the output of a norm and the inputs of attention.
_PROJECTIONS: Final = frozenset(
    ["MatMul", "MatMulNBits", "FusedMatMul", "Gemm", "Add", "Split", "Slice", "Concat", "Cast"]
)
_PRODUCTS: Final = frozenset(["MatMul", "MatMulNBits", "FusedMatMul", "Gemm"])
#: The outputs of a node that are compared, with their ranks.
_COMPARED: Final = {"output": 3, "present_key": 4, "present_value": 4}


def cuts_of(model: ReadModel, groups: Sequence[Group]) -> Iterator[Group]:
    """The groups of nodes that are checked as one graph, in addition to the nodes alone.

    One group for each two groups that share a cache, and one for each group with packed QKV.
    """
    yield from _sharing(model, groups)
    types = types_of(model.proto.graph)
    origins = {
        name: node.input[:1] if node.op_type in _PRODUCTS else node.input
        for name, node in model.makers.items()
        if node.op_type in _PROJECTIONS
    }
    for group in groups:
        # The codes of a quantised cache depend on roundings of the projections before it.
        quantised = "k_quant_type" in group.form.fields
        if group.form.fields.get("key_value") == "packed" and not quantised:
            node = group.nodes[0]
            values = reached([node.inputs.get("query", "")], origins.get) & origins.keys()
            if any(model.makers[value].op_type in _PRODUCTS for value in values):
                with suppress(CannotCut):
                    graph = _graph(model, values, [(node, group.form)], types)
                    yield replace(group, name=f"projected_{group.name}", graph=graph)


def _sharing(model: ReadModel, groups: Sequence[Group]) -> Iterator[Group]:
    """Pairs of layers: the second one's past is the first one's present, or computed from it."""
    layers = [(node, group) for group in groups for node in group.nodes]
    owners = {node.outputs.get("present_key", ""): (node, group) for node, group in layers}
    makers = model.makers.items()
    origins = {name: [*reads(node)] for name, node in makers if not is_attention(node)}
    # A past that is a present comes before one that is computed from it.
    layers.sort(key=lambda layer: layer[0].inputs.get("past_key", "") not in owners)
    pairs: dict[tuple[str, str], Group] = {}
    for node, group in layers:
        pasts = [node.inputs[name] for name in ("past_key", "past_value") if name in node.inputs]
        values = reached(pasts, origins.get)
        for source, owner in (owners[value] for value in sorted(values & owners.keys())):
            if (owner.name, group.name) in pairs:
                continue
            name = f"sharing_{group.name.removeprefix('borrowing_')}"
            batch = owner.form.batch_size or group.form.batch_size
            form = replace(owner.form, reads_presents=True, batch_size=batch)
            both = (source, owner.form), (node, group.form)
            with suppress(CannotCut):
                graph = _graph(model, values & origins.keys(), both, {})
                appends = not group.form.borrows
                cut = Group(name, form, (source, node), graph=graph, appends=appends)
                pairs[owner.name, group.name] = cut
    yield from pairs.values()


def _graph(
    model: ReadModel,
    values: Set[str],
    layers: Sequence[tuple[AttentionNode, Form]],
    types: Mapping[str, ValueType],
) -> bytes:
    """The graph of the layers and of the nodes before them that make ``values``, without weights.

    Values that attention reads and makes have the operator's names. Weights of attention are
    inputs: they are small or given by the call, such as the rotary tables. Other inputs can only be
    values with ``types``. Raises :class:`CannotCut`.
    """
    parameters: dict[str, tuple[str, ValueType]] = {}
    names: dict[str, str] = {}
    outputs = []
    for (node, form), prefix in zip(layers, ("", BORROWER), strict=False):
        for name, value in node.inputs.items():
            parameters.setdefault(value, (prefix + name, _of_call(name, node.type(name), form)))
        names |= {value: prefix + name for name, value in node.outputs.items()}
        for name, rank in _COMPARED.items():
            if name in node.outputs and (name == "output" or node.reads_presents or not prefix):
                kind = ValueType(node.type(name).dtype or "float32", (None,) * rank)
                outputs.append(declared(prefix + name, kind))
    graph = model.proto.graph
    results = {node.outputs.get("output", "") for node, _ in layers} - {""}
    kept = nodes_that_make(values | results, graph)
    known = {tensor.name for tensor in graph.initializer} - parameters.keys()
    known |= {name for each in kept for name in each.output}
    inputs: list[ValueInfoProto] = []
    for value in dict.fromkeys(name for each in kept for name in reads(each)):
        if value not in known:
            other = f"activation_{len(inputs)}", types.get(value, UNKNOWN)
            names[value], kind = parameters.get(value, other)
            inputs.append(declared(names[value], kind))
    cut = model_of(model.proto, kept, inputs, outputs, names)
    if too_many(cut.graph.initializer):
        raise CannotCut("it has too many weights")
    cut.ir_version = IR_VERSION
    if all(map(is_attention, kept)):  # an older runtime may know no operator set of the model's
        plain = {"": DEFAULT_OPSET, DOMAIN: OPSET_VERSION}
        del cut.opset_import[:]
        cut.opset_import.extend(helper.make_opsetid(*each) for each in plain.items())
    for tensor in cut.graph.initializer:
        # Constants of integers, such as the widths of a split, are no weights.
        if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
            left = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            tensor.CopyFrom(left)
    return bytes(cut.SerializeToString(deterministic=True))


def _of_call(parameter: str, known: ValueType, form: Form) -> ValueType:
    """The type of an input of attention, with the sizes of the form.

    Rotary tables have as many rows as the call needs.
    """
    dims: list[ValueDim] = list(known.dims or ())
    if parameter in ("cos_cache", "sin_cache") and dims:
        dims[0] = "rotary_cache_length"
    if parameter in ("past_key", "past_value") and len(dims) == 4:
        dims[1] = form.fields["kv_num_heads"]
        dims[3] = dims[3] if isinstance(dims[3], int) else form.fields["head_size"]
    return ValueType(known.dtype, known.dims and tuple(dims))


def possible_stages(cut: Group, stages: Sequence[NodeCall]) -> tuple[list[NodeCall], str]:
    """The ``stages`` that the graph of ``cut`` allows, and why it does not allow the others."""
    assert cut.graph is not None
    unknown = "; ".join(unknown_operators(onnx.ModelProto.FromString(cut.graph)))
    possible, why = [], unknown
    for stage in stages if not unknown else ():
        call = checked_call({"dtype": cut.form.fields["dtype"], **stage.fields})
        try:
            steps_of(graph_call(call, cut.graph))
        except (GraphError, ShapeError) as error:
            why = f"{stage.words}: {error}"
        else:
            possible.append(stage)
    return possible, why
