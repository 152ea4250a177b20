"""The standard Attention nodes of a model as calls of the operator, each with its own graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper

from conformance.base.array_types import ONNX
from conformance.base.explain import reason_of
from conformance.graph.describe import Unclear
from conformance.graph.nodes import AttentionNode, connected, layer_in, node_with_types
from conformance.graph.reading import ReadModel
from conformance.graph.shapes import UNKNOWN, ValueDim, ValueType, types_of
from conformance.graph.standard import STANDARD_INPUTS, as_operator, is_standard
from conformance.model.calls.forms import Form, form_of
from conformance.model.calls.stages import NodeCall
from conformance.model.config.configuration import Configuration
from conformance.operator.call import GRAPH_FIELDS
from conformance.operator.signature import OUTPUT_NAMES

#: The fields of a form that say what the graph itself says.
_WRITTEN: Final = ("inputs", "outputs", "attributes")


def standard_forms(
    model: ReadModel, configuration: Configuration
) -> Iterator[tuple[AttentionNode, Form | str]]:
    """The nodes outside of subgraphs, each as a node of the operator with its form.

    In place of the form of a node that is no call of the operator there is the reason, half a
    sentence.
    """
    graph = model.inferred[0].graph
    types = types_of(graph)
    for at, node in enumerate(graph.node):
        if not is_standard(node):
            continue
        name = node.name or node.op_type
        layer = layer_in(" ".join((name, *node.input, *node.output)))
        found = node_with_types(node, name, {})
        try:
            made, own = as_operator(node, types)
            found = node_with_types(made, name, {**types, **own})
            form = form_of(found, configuration)
            fields = {key: value for key, value in form.fields.items() if key not in _WRITTEN}
            content = _graph_of(node, types, replace(form, fields=fields), model.proto)
            told: Form | str = replace(form, fields=fields, shared=False, graph=content)
        except Exception as error:  # what the node says may be anything
            told = reason_of(error)
        yield replace(found, layer=at if layer is None else layer), told


def standard_call(form: Form, call: NodeCall) -> NodeCall | None:
    """The call as one of the form's graph; None if the graph cannot be called so.

    Only lengths make sequences differ, and only at the end of them.
    """
    fields = {key: value for key, value in call.fields.items() if key != "cache"}
    lengths = form.cache == "static" and call.phase != "prompt"
    if not fields.keys() <= {*GRAPH_FIELDS} or (call.ragged and not lengths):
        return None
    return replace(call, fields=fields)


def _graph_of(
    node: NodeProto, types: Mapping[str, ValueType], form: Form, model: onnx.ModelProto
) -> bytes:
    """A model of the node alone, whose sizes have the names of a case's fields.

    A mask of booleans is made from a bias, and lengths that count from 1 from those that do not.
    """
    given = connected(STANDARD_INPUTS, node.input)
    known = {name: types.get(value, UNKNOWN) for name, value in given.items()}
    dtype, before, inputs = str(form.fields["dtype"]), [], []
    for name, each in known.items():
        if name == "seqlens_k":
            inputs.append(_declared(name, "int32", ["batch_size"]))
            before += [
                helper.make_node("Cast", [name], ["last"], to=TensorProto.INT64),
                helper.make_node("Constant", [], ["one"], value_int=1),
                helper.make_node("Add", ["last", "one"], ["lengths"]),
            ]
            given[name] = "lengths"
            continue
        inputs.append(_declared(name, dtype, [*_dims(name, each, form)]))
        given[name] = name
        if each.dtype == "bool":  # numbers in (-1, 1) become 0
            before += [
                helper.make_node("Cast", [name], ["whole"], to=TensorProto.INT32),
                helper.make_node("Cast", ["whole"], ["visible"], to=TensorProto.BOOL),
            ]
            given[name] = "visible"
    outputs = connected(OUTPUT_NAMES, node.output)
    ranks = {"output": len(known["query"].dims or ())}
    made = helper.make_node(
        node.op_type,
        [given.get(name, "") for name in STANDARD_INPUTS[: len(node.input)]],
        [name if name in outputs else "" for name in OUTPUT_NAMES[: len(node.output)]],
        "attention",
    )
    made.attribute.extend(node.attribute)
    declared = [_declared(name, dtype, [None] * ranks.get(name, 4)) for name in outputs]
    graph = helper.make_graph([*before, made], "attention", inputs, declared)
    opsets = [each for each in model.opset_import if each.domain in ("", "ai.onnx")]
    alone = helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)
    return bytes(alone.SerializeToString(deterministic=True))


def _declared(name: str, dtype: str, dims: list[ValueDim]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, ONNX[dtype], dims)


def _dims(name: str, known: ValueType, form: Form) -> Iterator[ValueDim]:
    """The sizes of an input of the standard node."""
    fields, rank = form.fields, len(known.dims or ())
    side = "num_heads" if name == "query" else "kv_num_heads"
    heads, size = int(fields[side]), int(fields["head_size"])
    if name == "attention_bias":
        if known.dims is None:
            raise Unclear("the rank of its mask is unknown")
        every = ("batch_size", int(fields["num_heads"]), "sequence_length", "total_sequence_length")
        for usual, dim in zip(every[4 - rank :], known.dims, strict=True):
            yield 1 if dim == 1 or (isinstance(usual, int) and dim != usual) else usual
        return
    is_past = name.startswith("past") or (form.borrows and name != "query")
    rows = "past_sequence_length" if is_past else "sequence_length"
    yield from (
        ("batch_size", heads, rows, size) if rank == 4 else ("batch_size", rows, heads * size)
    )
