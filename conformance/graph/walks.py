"""What is done with every ONNX model that is read: a stranger may have made it to do harm.

A name can have line feeds, with which it would print lines of its own, or a million characters. The
model is renamed as a whole and stays the same model, so that a runtime gets it under these names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Final

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, inliner

from conformance.base.text import safe_name

#: The most nodes, and bytes of them, after functions are put in place of their calls.
_MOST_NODES: Final = 1 << 17
_MOST_INLINED: Final = 1 << 28
#: The deepest nesting of functions that call each other; ONNX accepts no more.
_DEEPEST: Final = 100
#: Fields whose texts are no names and are never shown, among them the paths of external data.
_NO_NAMES: Final = frozenset({"doc_string", "metadata_props", "external_data"})


def make_names_safe(message: Message) -> bool:
    """Give other names to what has unsafe ones; returns whether there were any.

    Raises ValueError for a name that is no text in UTF-8.
    """
    renamed = False
    for field, value in message.ListFields():
        if field.name in _NO_NAMES:
            continue
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                renamed |= make_names_safe(each)
        elif field.type == FieldDescriptor.TYPE_STRING:
            names = [value] if isinstance(value, str | bytes) else value
            for at, name in enumerate(names):
                if isinstance(name, bytes):
                    raise ValueError("a name is no text in UTF-8")
                if (safe := safe_name(name)) != name:
                    renamed = True
                    if names is value:
                        value[at] = safe
                    else:
                        setattr(message, field.name, safe)
    return renamed


def inlined(
    proto: onnx.ModelProto, is_kept: Callable[[onnx.FunctionProto], bool]
) -> onnx.ModelProto:
    """The model with its functions put in place of the nodes that call them.

    The calls of functions that are ``is_kept`` stay as nodes, without the function: a runtime that
    has such an operator runs it and not the function. Raises ValueError.
    """
    others = [function for function in proto.functions if not is_kept(function)]
    del proto.functions[:]
    proto.functions.extend(others)
    if not others:
        return proto
    try:
        _check_inlined(proto)
        return inliner.inline_local_functions(proto)
    except Exception as error:  # of several classes of ONNX
        raise ValueError(str(error).splitlines()[0].rstrip(".")) from error


def _check_inlined(proto: onnx.ModelProto) -> None:
    """Raises ValueError if functions call themselves, or would make the model too large.

    A few functions that call each other twice make millions of nodes. ONNX's inliner cannot be
    interrupted and would make them all.
    """
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}

    def calls(within: onnx.GraphProto | onnx.FunctionProto) -> list[tuple[str, str, str]]:
        names = ((node.domain, node.op_type, node.overload) for node in nodes_in(within))
        return [name for name in names if name in functions]

    called = {name: calls(function) for name, function in functions.items()}
    try:
        order = [*TopologicalSorter(called).static_order()]
    except CycleError as error:
        names = " → ".join(name for _, name, _ in error.args[1][:4])
        raise ValueError(f"they call themselves: {names}") from None
    nodes: dict[tuple[str, str, str], int] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    depths: dict[tuple[str, str, str], int] = {}
    for name in order:
        nodes[name] = len(functions[name].node) + sum(nodes[each] for each in called[name])
        sizes[name] = functions[name].ByteSize() + sum(sizes[each] for each in called[name])
        depths[name] = 1 + max((depths[each] for each in called[name]), default=0)
    whole = calls(proto.graph)
    made, size = sum(nodes[each] for each in whole), sum(sizes[each] for each in whole)
    if made > _MOST_NODES or size > _MOST_INLINED:
        raise ValueError(f"they would make {made:,} nodes of {size / 2**20:,.0f} MiB")
    if any(depths[each] > _DEEPEST for each in whole):
        raise ValueError(f"they call each other, one within the other, more than {_DEEPEST} deep")


def nodes_in(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the graph and of its subgraphs."""
    for node in graph.node:
        yield from within(node)


def within(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node and the nodes of its subgraphs."""
    yield node
    for inner in subgraphs(node):
        yield from nodes_in(inner)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that the node runs."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs
