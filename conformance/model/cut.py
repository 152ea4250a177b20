"""Parts of a model with several nodes, cut out as small graphs without weights.

Two kinds are cut: a layer with those that borrow its KV cache, since a runtime may keep a cache in
place between nodes; and a layer with the projections before it, since their fusion decides the
form of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import onnx
from onnx import TensorProto, helper

from conformance.base.array_types import ONNX
from conformance.base.signature import DOMAIN, OPSET_VERSION
from conformance.bundle.model import DEFAULT_OPSET, IR_VERSION
from conformance.case.call import Call
from conformance.case.graph import GraphError, graph_call
from conformance.case.tensors import ShapeError, steps_of
from conformance.model.forms import Form
from conformance.model.groups import BORROWER, Group
from conformance.model.nodes import AttentionNode
from conformance.model.reading import ReadModel, makers_in
from conformance.model.shapes import UNKNOWN, Dim, ValueType, types_of
from conformance.model.skeleton import MOST_WEIGHTS
from conformance.model.stages import Stage
from conformance.oracle.graph import unknown_operators

#: Operators between the output of a norm and the inputs of attention.
_PROJECTIONS: Final = frozenset(
    ["MatMul", "MatMulNBits", "FusedMatMul", "Gemm", "Add", "Split", "Slice", "Concat", "Cast"]
)
_PRODUCTS: Final = frozenset(["MatMul", "MatMulNBits", "FusedMatMul", "Gemm"])

_PRESENTS: Final = ("present_key", "present_value")


def cuts_of(model: ReadModel, groups: Sequence[Group]) -> Iterator[Group]:
    """The groups of nodes that are checked as one graph, beside the nodes alone.

    One for each two groups that share a cache, and for each group with packed QKV.
    """
    makers = makers_in(model.proto.graph)
    node_of = {node.name: (node, group) for group in groups for node in group.nodes}
    seen: set[tuple[str, str]] = set()
    for group in groups:
        for node in group.nodes:
            if node.source not in node_of:
                continue
            source, owner = node_of[node.source]
            # Behind another node, which this graph would not have, the past is another value.
            direct = node.inputs["past_key"] == source.outputs.get("present_key")
            if direct and (owner.name, group.name) not in seen:
                seen.add((owner.name, group.name))
                name = f"sharing_{group.name.removeprefix('borrowing_')}"
                batch = owner.form.batch_size or group.form.batch_size
                form = replace(owner.form, reads_presents=True, batch_size=batch)
                graph = _pair(makers, source, owner.form, node, group.form)
                appends = not group.form.borrows
                yield Group(name, form, (source, node), graph=graph, appends=appends)
    types = types_of(model.proto.graph)
    for group in groups:
        # The codes of a quantised cache depend on roundings of the projections before it.
        quantised = "k_quant_type" in group.form.fields
        if group.form.fields.get("key_value") == "packed" and not quantised:
            content = _projected(model, makers, group.nodes[0], group.form, types)
            if content is not None:
                yield replace(group, name=f"projected_{group.name}", graph=content)


# A layer and one that borrows its cache


def _pair(
    makers: Mapping[str, onnx.NodeProto],
    source: AttentionNode,
    owner: Form,
    borrower: AttentionNode,
    other: Form,
) -> bytes:
    """The graph of two nodes with their forms; the past of the second is the first's present."""
    shared = {source.outputs[name]: name for name in _PRESENTS if name in source.outputs}
    names: dict[str, str] = dict(shared)
    inputs: list[onnx.ValueInfoProto] = []
    nodes = []
    outputs: list[onnx.ValueInfoProto] = []
    for node, form, prefix in ((source, owner, ""), (borrower, other, BORROWER)):
        for parameter, value in node.inputs.items():
            if value not in names:
                names[value] = prefix + parameter
                known = node.type(parameter)
                inputs.append(_declared(prefix + parameter, parameter, known, form))
        made = {value: prefix + parameter for parameter, value in node.outputs.items()}
        read = node.reads_presents or node is source
        outputs += (
            _declared(prefix + parameter, "", ValueType(node.type(parameter).dtype, (None,) * rank))
            for parameter, rank in (("output", 3), *((name, 4) for name in _PRESENTS))
            if parameter in node.outputs and (parameter == "output" or read)
        )
        nodes.append(_renamed(makers[node.outputs["output"]], {**names, **made}))
    return _file(helper.make_graph(nodes, "sharing", inputs, outputs))


def _declared(
    name: str, parameter: str, known: ValueType, form: Form | None = None
) -> onnx.ValueInfoProto:
    """An input or output; that of a ``parameter`` of attention has the sizes of its ``form``.

    The rows of rotary tables are as many as the call needs.
    """
    dims: list[Dim] = list(known.dims or ())
    if parameter in ("cos_cache", "sin_cache") and dims:
        dims[0] = "rotary_cache_length"
    if form is not None and parameter in ("past_key", "past_value") and len(dims) == 4:
        size = form.fields["head_size"]
        dims[1] = form.fields["kv_num_heads"]
        dims[3] = dims[3] if isinstance(dims[3], int) else size
    return helper.make_tensor_value_info(name, ONNX[known.dtype or "float32"], dims)


# A layer and its projections


def _projected(
    model: ReadModel,
    makers: Mapping[str, onnx.NodeProto],
    node: AttentionNode,
    form: Form,
    types: Mapping[str, ValueType],
) -> bytes | None:
    """The graph of the node with the projections before it; None if there are none, or too many
    weights."""
    graph = model.proto.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    attention = makers[node.outputs["output"]]
    chain = _before(attention.input[:3], makers)
    if not any(each.op_type in _PRODUCTS for each in chain):
        return None
    kept = [each for each in graph.node if id(each) in set(map(id, chain))]
    made = {output for each in kept for output in each.output}
    needed = dict.fromkeys(name for each in (*kept, attention) for name in each.input if name)
    outside = [name for name in needed if name not in made]
    weights = [constants[name] for name in outside if name in constants]
    # What attention itself reads is small or given by the call, such as the rotary tables.
    direct = {value: parameter for parameter, value in node.inputs.items()}
    inner = [tensor for tensor in weights if tensor.name not in direct]
    if sum(math.prod(tensor.dims) for tensor in inner) > MOST_WEIGHTS:
        return None
    inputs: list[onnx.ValueInfoProto] = []
    renamed = {value: parameter for parameter, value in node.outputs.items()}
    for name in outside:
        if name in constants and name not in direct:
            continue
        known = node.type(direct[name]) if name in direct else types.get(name, UNKNOWN)
        if known.dtype is None or known.dims is None:
            return None
        renamed[name] = direct.get(name, f"activation_{len(inputs)}")
        inputs.append(_declared(renamed[name], direct.get(name, ""), known, form))
    outputs = [
        _declared(name, "", ValueType(node.type(name).dtype, (None,) * rank))
        for name, rank in (("output", 3), *((present, 4) for present in _PRESENTS))
        if name in node.outputs
    ]
    nodes = [_renamed(each, renamed) for each in (*kept, attention)]
    made_graph = helper.make_graph(
        nodes, "projected", inputs, outputs, [_without_data(tensor) for tensor in inner]
    )
    return _file(made_graph, model.proto.opset_import)


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """The node with other ``names`` for some values; those of inputs and outputs must be plain."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for own in (made.input, made.output):
        given = [names.get(name, name) for name in own]
        del own[:]
        own.extend(given)
    return made


def _before(names: Iterable[str], makers: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The projections that the values come from."""
    found: list[onnx.NodeProto] = []
    waiting = [makers[name] for name in names if name in makers]
    while waiting:
        node = waiting.pop()
        if node.op_type in _PROJECTIONS and not any(node is one for one in found):
            found.append(node)
            first = node.input[:1] if node.op_type in _PRODUCTS else node.input
            waiting += (makers[name] for name in first if name in makers)
    return found


def _without_data(tensor: TensorProto) -> TensorProto:
    """A weight without its data; a constant of integers, such as the widths of a split, whole."""
    if tensor.data_type in (TensorProto.INT32, TensorProto.INT64):
        return tensor
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _file(graph: onnx.GraphProto, opsets: Sequence[onnx.OperatorSetIdProto] = ()) -> bytes:
    plain = helper.make_opsetid("", DEFAULT_OPSET), helper.make_opsetid(DOMAIN, OPSET_VERSION)
    model = helper.make_model(graph, opset_imports=list(opsets or plain))
    model.ir_version = IR_VERSION
    return bytes(model.SerializeToString(deterministic=True))


def possible_stages(cut: Group, stages: Sequence[Stage]) -> tuple[list[Stage], str]:
    """Those of the ``stages`` that the graph of ``cut`` allows, and why it allows no others."""
    assert cut.graph is not None
    unknown = "; ".join(unknown_operators(onnx.ModelProto.FromString(cut.graph)))
    possible, why = [], unknown
    for stage in stages if not unknown else ():
        call = Call.model_validate({"dtype": cut.form.fields["dtype"], **stage.fields})
        try:
            steps_of(graph_call(call, cut.graph))
        except (GraphError, ShapeError) as error:
            why = f"{stage.words}: {error}"
        else:
            possible.append(stage)
    return possible, why
