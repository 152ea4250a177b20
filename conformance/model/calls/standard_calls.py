"""The standard Attention nodes of a model as calls of the operator, each with its own graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from onnx import NodeProto, TensorProto, helper

from conformance.base.explain import reason_of
from conformance.bundle.model import declare, model_of
from conformance.graph.describe import Unclear
from conformance.graph.nodes import AttentionNode, connected, layer_in, node_with_types
from conformance.graph.reading import ReadModel
from conformance.graph.shapes import UNKNOWN, ValueDim, ValueType, types_of
from conformance.graph.standard_attention import STANDARD_INPUTS, as_operator, is_standard
from conformance.model.calls.forms import Form, form_of
from conformance.model.calls.stages import NodeCall
from conformance.model.config.configuration import Configuration
from conformance.operator.call import GRAPH_FIELDS
from conformance.operator.signature import OUTPUT_NAMES

#: The fields of a form that say what the graph itself says.
_WRITTEN: Final = ("inputs", "outputs", "attributes")
_LENGTHS: Final = (
    helper.make_node("Cast", ["seqlens_k"], ["last"], to=TensorProto.INT64),
    helper.make_node("Constant", [], ["one"], value_int=1),
    helper.make_node("Add", ["last", "one"], ["lengths"]),
)
_VISIBLE: Final = (  # numbers in (-1, 1) become 0
    helper.make_node("Cast", ["attention_bias"], ["whole"], to=TensorProto.INT32),
    helper.make_node("Cast", ["whole"], ["visible"], to=TensorProto.BOOL),
)


def standard_forms(
    model: ReadModel, configuration: Configuration
) -> Iterator[tuple[AttentionNode, Form | str]]:
    """The nodes outside of subgraphs, each as a node of the operator with its form.

    In place of the form of a node that is no call of the operator there is the reason, half a
    sentence.
    """
    graph = model.inferred[0].graph
    opsets = (o.version for o in model.proto.opset_import if o.domain in ("", "ai.onnx"))
    opset = max(opsets, default=0)
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
            content = _graph_of(node, types, form, opset)
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


def _graph_of(node: NodeProto, types: Mapping[str, ValueType], form: Form, opset: int) -> bytes:
    """A model of the node alone, whose sizes have the names of a case's fields.

    A mask of booleans is made from a bias, and lengths that count from 1 from those that do not.
    """
    given = connected(STANDARD_INPUTS, node.input)
    known = {name: types.get(value, UNKNOWN) for name, value in given.items()}
    dtype, reads, before = str(form.fields["dtype"]), {name: name for name in given}, []
    if "seqlens_k" in given:
        reads["seqlens_k"], before = "lengths", [*_LENGTHS]
    if known.get("attention_bias", UNKNOWN).dtype == "bool":
        reads["attention_bias"], before = "visible", [*before, *_VISIBLE]
    alone = NodeProto(op_type=node.op_type, name="attention", attribute=node.attribute)
    outputs = connected(OUTPUT_NAMES, node.output)
    alone.input[:] = [reads.get(name, "") for name in STANDARD_INPUTS[: len(node.input)]]
    alone.output[:] = [n if n in outputs else "" for n in OUTPUT_NAMES[: len(node.output)]]
    ranks = {"output": len(known["query"].dims or ())}
    model = model_of(
        [*before, alone],
        [
            declare(n, "int32" if n == "seqlens_k" else dtype, _dims(n, known[n], form))
            for n in given
        ],
        [declare(name, dtype, [None] * ranks.get(name, 4)) for name in outputs],
        opset=opset,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _dims(name: str, known: ValueType, form: Form) -> list[ValueDim]:
    """The sizes of an input of the standard node."""
    if known.dims is None or len(known.dims) > 4:
        raise Unclear(f"the shape of its {name} is not in the graph")
    if name == "attention_bias":
        heads = int(form.fields["num_heads"])
        usual = ("batch_size", heads, "sequence_length", "total_sequence_length")
        every = zip(usual[4 - len(known.dims) :], known.dims, strict=True)
        return [1 if dim == 1 or (size == heads != dim) else size for size, dim in every]
    if name == "seqlens_k":
        return ["batch_size"]
    is_past = name.startswith("past") or (form.borrows and name != "query")
    rows = "past_sequence_length" if is_past else "sequence_length"
    heads = int(form.fields["num_heads" if name == "query" else "kv_num_heads"])
    size = int(form.fields["head_size"])
    sizes: list[ValueDim] = [heads, rows, size] if len(known.dims) == 4 else [rows, heads * size]
    return ["batch_size", *sizes]
