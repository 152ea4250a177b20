"""Parts of a model with several nodes, cut out as small graphs without weights.

Two kinds are cut: a layer with one that borrows its KV cache, since a runtime may keep a cache in
place between nodes; and a layer with the projections before it, since their fusion decides the
form of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto

from conformance.bundle.model import IR_VERSION
from conformance.case.call import Call
from conformance.case.graph import GraphError, graph_call
from conformance.case.tensors import ShapeError, steps_of
from conformance.model.forms import Form
from conformance.model.groups import BORROWER, Group
from conformance.model.nodes import AttentionNode, is_attention
from conformance.model.parts import CannotCut, declared, in_order, model_of, reached, too_many
from conformance.model.reading import ReadModel, reads
from conformance.model.shapes import UNKNOWN, Dim, ValueType, types_of
from conformance.model.stages import Stage
from conformance.oracle.graph import unknown_operators

#: Operators between the output of a norm and the inputs of attention.
_PROJECTIONS: Final = frozenset(
    ["MatMul", "MatMulNBits", "FusedMatMul", "Gemm", "Add", "Split", "Slice", "Concat", "Cast"]
)
_PRODUCTS: Final = frozenset(["MatMul", "MatMulNBits", "FusedMatMul", "Gemm"])
#: What a node makes that is compared, with its rank.
_COMPARED: Final = {"output": 3, "present_key": 4, "present_value": 4}


def cuts_of(model: ReadModel, groups: Sequence[Group]) -> Iterator[Group]:
    """The groups of nodes that are checked as one graph, beside the nodes alone.

    One for each two groups that share a cache, and for each group with packed QKV.
    """
    yield from _sharing(model, groups)
    types = types_of(model.proto.graph)
    for group in groups:
        # The codes of a quantised cache depend on roundings of the projections before it.
        quantised = "k_quant_type" in group.form.fields
        if group.form.fields.get("key_value") == "packed" and not quantised:
            query = [group.nodes[0].inputs["query"]]
            _, chain = _before(model, query, lambda maker: maker.op_type in _PROJECTIONS)
            if any(each.op_type in _PRODUCTS for each in chain):
                with suppress(CannotCut):
                    graph = _graph(model, chain, [(group.nodes[0], group.form)], types)
                    yield replace(group, name=f"projected_{group.name}", graph=_content(graph))


def _sharing(model: ReadModel, groups: Sequence[Group]) -> Iterator[Group]:
    """Each layer with one whose past is the present of the first, or is computed from it."""
    layers = [(node, group) for group in groups for node in group.nodes]
    owners = {node.outputs.get("present_key", ""): (node, group) for node, group in layers}
    # A past that is a present comes before one that is computed from it.
    layers.sort(key=lambda layer: layer[0].inputs.get("past_key", "") not in owners)
    seen = set()
    for node, group in layers:
        pasts = [node.inputs[name] for name in ("past_key", "past_value") if name in node.inputs]
        names, between = _before(model, pasts, lambda maker: not is_attention(maker))
        for source, owner in (owners[name] for name in names if name in owners):
            if (owner.name, group.name) in seen:
                continue
            with suppress(CannotCut):
                graph = _graph(model, between, [(source, owner.form), (node, group.form)], {})
                if any(unknown_operators(graph)):
                    continue
                seen.add((owner.name, group.name))
                name = f"sharing_{group.name.removeprefix('borrowing_')}"
                batch = owner.form.batch_size or group.form.batch_size
                form = replace(owner.form, reads_presents=True, batch_size=batch)
                content, appends = _content(graph), not group.form.borrows
                yield Group(name, form, (source, node), graph=content, appends=appends)


def _before(
    model: ReadModel, values: Iterable[str], passes: Callable[[NodeProto], bool]
) -> tuple[list[str], list[NodeProto]]:
    """What the values come from through nodes that ``passes`` lets through, and these nodes."""
    makers = {name: each for name, each in model.makers.items() if passes(each)}

    def origins(name: str) -> Iterable[str]:
        product = name in makers and makers[name].op_type in _PRODUCTS
        return makers[name].input[:1] if product else reads(makers[name]) if name in makers else ()

    names = reached(values, origins)
    return names, [makers[name] for name in names if name in makers]


def _graph(
    model: ReadModel,
    nodes: Sequence[NodeProto],
    layers: Sequence[tuple[AttentionNode, Form]],
    types: Mapping[str, ValueType],
) -> onnx.ModelProto:
    """The graph of the layers and of other ``nodes`` before them.

    What attention reads and makes is called by the operator's names. Its weights are inputs: they
    are small or given by the call, such as the rotary tables. Only values with ``types`` can be
    inputs beside them. Raises :class:`CannotCut`.
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
    kept = in_order((*nodes, *(model.makers[node.outputs["output"]] for node, _ in layers)), graph)
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
    return cut


def _of_call(parameter: str, known: ValueType, form: Form) -> ValueType:
    """The type of an input of attention, with the sizes of the form.

    The rows of rotary tables are as many as the call needs.
    """
    dims: list[Dim] = list(known.dims or ())
    if parameter in ("cos_cache", "sin_cache") and dims:
        dims[0] = "rotary_cache_length"
    if parameter in ("past_key", "past_value") and len(dims) == 4:
        dims[1] = form.fields["kv_num_heads"]
        dims[3] = dims[3] if isinstance(dims[3], int) else form.fields["head_size"]
    return ValueType(known.dtype, known.dims and tuple(dims))


def _content(graph: onnx.ModelProto) -> bytes:
    """The file of the graph, without the data of its weights. Constants of integers, such as the
    widths of a split, are kept."""
    graph.ir_version = IR_VERSION
    for tensor in graph.graph.initializer:
        if tensor.data_type not in (TensorProto.INT32, TensorProto.INT64):
            name, kind, dims = tensor.name, tensor.data_type, [*tensor.dims]
            tensor.CopyFrom(TensorProto(name=name, data_type=kind, dims=dims))
    return bytes(graph.SerializeToString(deterministic=True))


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
