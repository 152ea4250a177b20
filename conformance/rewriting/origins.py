"""Where the values of a graph come from: an attention node's present, its output, or an input.

The origins of values are found node after node, forwards. A loop's body is gone over until what it
leaves for the next round adds nothing.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onnx import GraphProto, NodeProto, TensorProto

from conformance.graph.nodes import ATTENTION, attributes_in
from conformance.graph.walks import subgraphs
from conformance.rewriting.dense_nodes import CodeScale, is_rewritten

#: Their results hold nothing of their inputs' elements.
_OF_SHAPES: Final = frozenset({"Shape", "Size", "ConstantOfShape", "EyeLike", "SequenceLength"})
#: Their results are elements of the first input; the others only say which.
_OF_FIRST: Final = frozenset(
    {
        "Cast", "CastLike", "DequantizeLinear", "Expand", "Gather", "GatherElements", "GatherND",
        "Identity", "Pad", "QuantizeLinear", "Reshape", "SequenceAt", "Slice", "Split",
        "SplitToSequence", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
_CODES: Final = frozenset(
    {
        TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4,
        TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
        TensorProto.FLOAT8E5M2FNUZ,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """What a value's elements come from.

    ``present``: a present of an attention node. ``output``: the output of one. ``given``: an input
    of the graph, of the ONNX type ``kind``, which is dequantised by ``scale``.
    """

    present: bool = False
    output: bool = False
    given: bool = False
    kind: int = 0
    scale: CodeScale | None = None

    def __or__(self, other: Origin) -> Origin:
        return Origin(
            self.present or other.present,
            self.output or other.output,
            self.given or other.given,
            self.kind or other.kind,
            self.scale or other.scale,
        )


NOTHING: Final = Origin()
_OUTPUT, _PRESENT = Origin(output=True), Origin(present=True)
Scope = MutableMapping[str, Origin]


def passed_on(node: NodeProto, scope: Mapping[str, Origin]) -> str:
    """The value that takes the place of the node's result; "" if it is computed.

    A cache that is an input of the graph is not looked at where new rows are written into it, and
    presents are not quantised on their way to a node that borrows them.
    """
    first = scope.get(node.input[0], NOTHING) if node.input else NOTHING
    if node.op_type == "TensorScatter" and first.given and not first.present:
        return str(node.input[1])
    of_present = first.present and not (first.output or first.given)
    codes = node.op_type in ("QuantizeLinear", "DequantizeLinear")
    return str(node.input[0]) if codes and of_present else ""


def made_by(node: NodeProto, scope: Mapping[str, Origin]) -> Iterator[tuple[str, Origin]]:
    """The outputs of a node, with their origins."""
    return zip(node.output, _results(node, scope), strict=False)


def _results(node: NodeProto, scope: Mapping[str, Origin]) -> Sequence[Origin]:
    if is_rewritten(node):
        return [_OUTPUT, _PRESENT, _PRESENT, _OUTPUT]
    if node.op_type == "TensorScatter":
        return [_PRESENT]
    if node.op_type in ATTENTION:
        return [_OUTPUT] * len(node.output)
    if node.op_type in _OF_SHAPES:
        return [NOTHING] * len(node.output)
    given = [scope.get(name, NOTHING) for name in node.input]
    bodies = bodies_of(node, scope)
    if bodies:
        return _of_bodies(node, given, bodies, scope)
    origin = _union(given[:1] if node.op_type in _OF_FIRST else given)
    if node.op_type == "DequantizeLinear" and origin.kind in _CODES:
        attributes = attributes_in(node)
        if not attributes.get("block_size"):
            axis = int(attributes.get("axis", 1)) % 4
            dims = tuple(-1 if at == axis else 1 for at in range(4))
            origin = replace(origin, scale=CodeScale(node.input[1], origin.kind, dims))
    codes = [at for at, each in enumerate(given) if each.kind in _CODES and each.scale is None]
    if node.op_type == "Mul" and len(codes) == 1:
        scale, kind = node.input[1 - codes[0]], given[codes[0]].kind
        origin = replace(origin, kind=kind, scale=CodeScale(scale, kind))
    return [origin] * len(node.output)


def _union(origins: Iterable[Origin]) -> Origin:
    found = NOTHING
    for each in origins:
        found |= each
    return found


def _spread(graph: GraphProto, scope: Scope) -> list[Origin]:
    """The origins of a subgraph's outputs."""
    for node in graph.node:
        scope.update(made_by(node, scope))
    return [scope.get(each.name, NOTHING) for each in graph.output]


def bodies_of(
    node: NodeProto, scope: Mapping[str, Origin]
) -> list[tuple[GraphProto, dict[str, Origin]]]:
    """The subgraphs of a node, each with the origins of its own inputs."""
    return [(body, _formals(node, body, scope)) for body in subgraphs(node)]


def _formals(node: NodeProto, body: GraphProto, scope: Mapping[str, Origin]) -> dict[str, Origin]:
    """The origins of a body's inputs: of what the node gives, and of what a round leaves."""
    given = [scope.get(name, NOTHING) for name in node.input]
    formals = {each.name: of for each, of in zip(body.input, given, strict=False)}
    carried = _carried(node, body)
    while carried:
        left = _spread(body, inner_scope(formals, scope))
        found = {name: formals.get(name, NOTHING) | left[at] for name, at in carried.items()}
        if found.items() <= formals.items():
            break
        formals |= found
    return formals


def _carried(node: NodeProto, body: GraphProto) -> dict[str, int]:
    """The inputs of a body that get an output of the round before, by its index."""
    names = [each.name for each in body.input]
    if node.op_type == "Loop":
        return {name: at + 1 for at, name in enumerate(names[2:]) if at + 1 < len(body.output)}
    if node.op_type == "Scan":
        states = len(names) - int(attributes_in(node).get("num_scan_inputs", len(names)))
        return {name: at for at, name in enumerate(names[:states]) if at < len(body.output)}
    return {}


def _of_bodies(
    node: NodeProto,
    given: Sequence[Origin],
    bodies: Sequence[tuple[GraphProto, dict[str, Origin]]],
    scope: Mapping[str, Origin],
) -> list[Origin]:
    """The origins of what the node's subgraphs return, and of what a loop of no rounds does."""
    first = 1 if node.op_type == "Loop" else 0
    found = [NOTHING] * len(node.output)
    for body, formals in bodies:
        left = _spread(body, inner_scope(formals, scope))[first:]
        found = [a | b for a, b in zip(found, [*left, *found[len(left) :]], strict=False)]
    if node.op_type == "Loop":
        found = [of | given[at + 2] if at + 2 < len(given) else of for at, of in enumerate(found)]
    return found


def inner_scope(formals: Mapping[str, Origin], scope: Mapping[str, Origin]) -> Scope:
    """The origins that are visible in a body, whose own do not reach the outer graph."""
    outer = scope.maps if isinstance(scope, ChainMap) else [dict(scope)]
    return ChainMap({**formals}, *outer)
