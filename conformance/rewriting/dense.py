"""A model in which every attention node is plain dense attention.

It is the reference for the calls that a program makes of a model: one prompt of the same tokens. A
node that has keys of its own attends to those; its cache is not looked at. A node without keys
attends to those of the node, or of the graph's input, that its past comes from. Everything is
computed in float32.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from conformance.base.array_types import ONNX
from conformance.graph.nodes import attributes_in, is_attention, sliced_away
from conformance.graph.parts import put, reached
from conformance.graph.reading import reads
from conformance.graph.shapes import UNKNOWN, ValueType, inferred, types_of
from conformance.graph.walks import inlined, nodes_in, subgraphs
from conformance.rewriting.dense_nodes import (
    AttentionCall,
    CodeScale,
    PastUse,
    inputs_of,
    is_rewritten,
    write_attention,
)
from conformance.rewriting.floats import HALVES, make_float32, round_values
from conformance.rewriting.node_writer import LOWEST_OPSET, NodeWriter
from conformance.rewriting.origins import (
    NOTHING,
    Origin,
    Scope,
    bodies_of,
    inner_scope,
    made_by,
    passed_on,
)

_CACHES: Final = ("past_key", "past_value")
#: Operator sets for a graph that names none, as one without standard operators may.
_USUAL_OPSET: Final = 17
#: The first version in which constants need not be inputs.
_LOWEST_IR: Final = 4
#: The deepest nesting of loops; each goes over its body a few times for each of the outer ones.
_MOST_LOOPS: Final = 4


class CannotRewrite(ValueError):
    """The model has no dense form; the message says why in one sentence."""


def dense_model(
    model: onnx.ModelProto, *, rounded: bool = False, keep: Sequence[str] = ()
) -> onnx.ModelProto:
    """The model with standard operators in place of its attention, in float32.

    Args:
        model: a model with its weights, its nodes in order. It is not changed.
        rounded: round each value to its type, keys and values to the steps of their cache's codes,
            without the limits of their range, and factors of products to int8 where the model
            allows it.
        keep: names of values of the main graph that become outputs, too.

    Returns:
        A model with the outputs that are no caches, and with the inputs that these are computed
        from. Fixed sizes of a batch, of tokens and of rows are open. Attention nodes in branches
        and loops are rewritten there, local functions are inlined.

    Raises:
        CannotRewrite: the opset is below 13, functions cannot be inlined, weights are missing,
            there is no value that ``keep`` names, a node lacks what it needs, loops are nested
            deeply, or one carries codes.
    """
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    try:
        dense = inlined(dense, lambda f: is_attention(NodeProto(op_type=f.name, domain=f.domain)))
    except ValueError as error:
        raise CannotRewrite(f"Its functions cannot be inlined: {error}.") from None
    del dense.functions[:]
    opset = opset_of(dense, _USUAL_OPSET)
    if _loops(dense.graph) > _MOST_LOOPS:
        raise CannotRewrite(f"More than {_MOST_LOOPS} loops are one in the other.")
    dense.ir_version = max(dense.ir_version, _LOWEST_IR)
    types = types_in(dense)
    try:
        make_float32(dense, exact=not rounded)
    except ValueError as error:
        raise CannotRewrite(f"A weight has no content: {str(error).splitlines()[0]}.") from None
    graph = dense.graph
    del graph.value_info[:]
    if rounded:
        round_values(graph, {name: each.dtype for name, each in types.known.items()})
    rewriting = _Rewriting(types, NodeWriter(opset, unused_prefix(dense, "dense/")), rounded)
    origins = rewriting.rewrite(graph, ChainMap())
    graph.initializer.extend(rewriting.write.constants.values())
    _choose_outputs(graph, origins, keep)
    _open_sizes(graph.input, rewriting.caches)
    return dense


def opset_of(model: onnx.ModelProto, otherwise: int) -> int:
    """The model's operator set, which it gets if it names none; raises CannotRewrite: too old."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    if not opset:
        opset = otherwise
        model.opset_import.append(helper.make_opsetid("", opset))
    if opset < LOWEST_OPSET:
        raise CannotRewrite(f"It has operator set {opset}, and {LOWEST_OPSET} is the lowest known.")
    return opset


def unused_prefix(model: onnx.ModelProto, prefix: str) -> str:
    """``prefix``, or one that ends in it, with which no name of a value or node begins."""
    nodes = nodes_in(model.graph)
    names = {name for node in nodes for name in (*node.input, *node.output, node.name)}
    while any(name.startswith(prefix) for name in names):
        prefix = f"_{prefix}"
    return prefix


@dataclass
class _Rewriting:
    """One walk over a model.

    ``caches`` are the inputs of the graph that pasts of nodes come from directly.
    """

    types: ValueTypes
    write: NodeWriter
    rounded: bool

    def __post_init__(self) -> None:
        self.caches: set[str] = set()

    def rewrite(self, graph: GraphProto, scope: Scope, outer: bool = True) -> Scope:
        """Rewrite the nodes of a graph and of its subgraphs; returns the values' origins."""
        if outer:
            for each in graph.input:
                kind = each.type.tensor_type.elem_type
                scope[each.name] = Origin(given=True, kind=kind)
            for weight in graph.initializer:
                scope[weight.name] = NOTHING
        nodes: list[NodeProto] = []
        for node in graph.node:
            made = dict(made_by(node, scope))
            passed = passed_on(node, scope)
            if is_rewritten(node):
                nodes += self._dense(node, scope)
            elif passed:
                nodes.append(helper.make_node("Identity", [passed], node.output, node.name))
            else:
                for body, formals in bodies_of(node, scope):
                    inner = self.rewrite(body, inner_scope(formals, scope), outer=False)
                    _open_body(body, inner)
                nodes.append(node)
            scope.update(made)
        put(graph.node, nodes)
        return scope

    def _dense(self, node: NodeProto, scope: Scope) -> list[NodeProto]:
        name = node.name or node.op_type
        try:
            write_attention(node, self._call(node, scope), self.write)
        except CannotRewrite:
            raise
        except KeyError as error:
            raise CannotRewrite(f"{name} has no {error.args[0]}.") from None
        except (ArithmeticError, ValueError):
            raise CannotRewrite(f"{name} has an attribute out of its range.") from None
        return self.write.take()

    def _call(self, node: NodeProto, scope: Scope) -> AttentionCall:
        inputs, attributes = inputs_of(node), attributes_in(node)
        types = {name: self.types.get(value, UNKNOWN) for name, value in inputs.items()}
        origins = {name: scope.get(inputs.get(name, ""), NOTHING) for name in _CACHES}
        packed = is_attention(node) and "key" not in inputs and not borrows(node, types)
        use: PastUse = "none"
        if "past_key" in inputs:
            use = "all" if origins["past_key"].present else _use(node, packed, types)
        self.caches.update(inputs[name] for name in _CACHES if name in inputs)
        codes: dict[str, CodeScale] = {}
        rounding = {name: of.scale for name, of in origins.items() if of.scale is not None}
        for name, side in zip(_CACHES, "kv", strict=True):
            if str(attributes.get(f"{side}_quant_type", "NONE")) != "NONE" and is_attention(node):
                kind = ONNX.get(types.get(name, UNKNOWN).dtype or "", origins[name].kind)
                scale = inputs.get(f"{side}_scale", "")
                many = types[f"{side}_scale"].dims if scale else None
                flat = many is not None and len(many) == 1 and many[0] != 1
                dims = (1, int(attributes["kv_num_heads"]), 1, -1) if flat else None
                rounding[name] = CodeScale(scale, kind, dims)
                if not origins[name].present:
                    codes[name] = rounding[name]
                elif origins[name].given:
                    raise CannotRewrite("A loop carries a quantised cache.")
        mask = self.types.kinds.get(inputs.get("attn_mask", ""))
        dtype = types.get("query", UNKNOWN).dtype
        return AttentionCall(
            use,
            packed,
            mask == TensorProto.BOOL,
            {name: len(each.dims) for name, each in types.items() if each.dims is not None},
            codes,
            rounding if self.rounded else {},
            HALVES.get(dtype or "", 0) if self.rounded else 0,
        )


# What a node attends to


def borrows(node: NodeProto, types: Mapping[str, ValueType]) -> bool:
    """Whether a node without key and value has none, instead of a query that holds them, too.

    That is so if the query is as wide as the heads of the past (docs/oracle.md).
    """
    width, past = types["query"].size(-1), types.get("past_key", UNKNOWN)
    heads = int(attributes_in(node)["num_heads"])
    if width is None or width % heads:
        return False
    size = width // heads
    return past.size(3) == ((size + 1) // 2 if past.dtype == "uint8" else size)


def _use(node: NodeProto, packed: bool, types: Mapping[str, ValueType]) -> PastUse:
    """The use of a past that comes from inputs of the graph only."""
    if "key" not in types:
        return "none" if packed or not is_attention(node) else "all"
    key, query = types["key"], types["query"]
    in_heads = len(key.dims or ()) == 4
    length, queries = key.dim(2 if in_heads else 1), query.dim(-2)
    if length == 0:
        return "all"
    if isinstance(length, int) or (length is not None and length == queries):
        return "none"
    return "without new keys"


def _loops(graph: GraphProto) -> int:
    """The deepest nesting of loops in the graph."""
    deepest = 0
    for node in graph.node:
        inner = max(map(_loops, subgraphs(node)), default=0)
        deepest = max(deepest, inner + (node.op_type in ("Loop", "Scan")))
    return deepest


# The graph's types, inputs and outputs


@dataclass(frozen=True)
class ValueTypes:
    """The types of the values of all graphs, and the ONNX types of their elements."""

    known: Mapping[str, ValueType]
    kinds: Mapping[str, int]

    def get(self, name: str, default: ValueType) -> ValueType:
        return self.known.get(name, default)


def types_in(model: onnx.ModelProto) -> ValueTypes:
    """What inference says; nothing about a name that two branches give to different values."""
    proto, _ = inferred(model)
    graphs = [proto.graph]
    graphs += (inner for node in nodes_in(proto.graph) for inner in subgraphs(node))
    known: dict[str, ValueType] = {}
    kinds: dict[str, int] = {}
    for graph in graphs:
        own = types_of(graph)
        own |= sliced_away(graph, own)
        for name, each in own.items():
            known[name] = each if known.get(name, each) == each else UNKNOWN
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type.elem_type
            kinds[value.name] = kind if kinds.get(value.name, kind) == kind else 0
        kinds |= {each.name: each.data_type for each in graph.initializer}
    return ValueTypes(known, kinds)


def _choose_outputs(graph: GraphProto, origins: Scope, keep: Sequence[str]) -> None:
    """Keep the outputs that are no caches and those to keep, and what they are computed from."""
    made = {name for node in graph.node for name in node.output}
    made |= {each.name for each in graph.input} | {each.name for each in graph.initializer}
    for name in keep:
        if name not in made:
            raise CannotRewrite(f"The graph has no value {name}.")
    outputs: list[ValueInfoProto] = []
    for value in graph.output:
        origin = origins.get(value.name, NOTHING)
        if value.name in keep or origin.output or not origin.present:
            kept = ValueInfoProto(name=value.name)
            kept.type.CopyFrom(value.type)
            if kept.type.HasField("tensor_type"):
                kept.type.tensor_type.ClearField("shape")
            outputs.append(kept)
    given = {each.name for each in outputs}
    outputs += (ValueInfoProto(name=name) for name in dict.fromkeys(keep) if name not in given)
    makers = {name: node for node in graph.node for name in node.output if name}
    needed = reached((each.name for each in outputs), lambda n: _read_by(makers.get(n)))
    put(graph.output, outputs)
    put(graph.node, [each for each in graph.node if not needed.isdisjoint(each.output)])
    put(graph.input, [each for each in graph.input if each.name in needed])
    put(graph.initializer, [each for each in graph.initializer if each.name in needed])


def _read_by(node: NodeProto | None) -> Iterable[str]:
    return () if node is None else reads(node)


def _open_sizes(inputs: Iterable[ValueInfoProto], caches: set[str]) -> None:
    """Open the sizes that differ from call to call; heads and widths stay.

    An input of four dims that is no node's past is a mask if its second dim, the heads, is 1.
    """
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        open_axes = {0, 1}
        if len(dims) == 4:
            is_mask = value.name not in caches and dims[1].dim_value == 1
            open_axes = {0, 2, 3} if is_mask else {0, 2}
        for axis in open_axes & {*range(len(dims))}:
            if dims[axis].HasField("dim_value"):
                dims[axis].Clear()


def _open_body(body: GraphProto, origins: Mapping[str, Origin]) -> None:
    """Let the types of a body's values be what its nodes make of them; their ranks stay."""
    del body.value_info[:]
    for value in (*body.input, *body.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    for value in body.output:
        if origins.get(value.name, NOTHING).present:
            value.ClearField("type")
