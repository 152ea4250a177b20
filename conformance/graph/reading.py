"""Reads a user's model without its weights. Every error is one sentence with the file's name.

The model may be damaged, or made to do harm. `as_model_errors` handles errors that cannot be
foreseen: it is the one place that turns any exception into a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from conformance.base.explain import reason_of
from conformance.base.files import open_plain
from conformance.base.paths import shown
from conformance.base.text import visible
from conformance.graph.shapes import inferred
from conformance.graph.walks import inlined, make_names_safe, nodes_in, subgraphs, within
from conformance.operator.signature import DOMAIN, OP_TYPE

#: The largest size of protocol buffers, and so of ONNX files.
_MOST_BYTES: Final = 2**31 - 1
#: A tensor with more bytes is left without its content.
LARGE: Final = 1 << 20
_KINDS: Final = ("float", "int32", "string", "int64", "double", "uint64")
#: The fields with the elements of a tensor.
_ELEMENTS: Final = ("raw_data", *(f"{kind}_data" for kind in _KINDS))


class ModelError(ValueError):
    """The model cannot be read; the message says why and names the file."""


@contextmanager
def as_model_errors(path: Path) -> Iterator[None]:
    """Turn any exception while the model at ``path`` is read into a :class:`ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{shown(path)}: cannot be understood: {reason_of(error)}.") from error


@dataclass(frozen=True)
class ReadModel:
    """A model whose large tensors have no content, with its local functions inlined.

    ``written`` is the model as it is in the file. ``renamed``: the file has names that are not safe
    to show, and the model has others in place of them.
    """

    path: Path
    proto: onnx.ModelProto
    written: onnx.ModelProto
    renamed: bool = False

    @cached_property
    def inferred(self) -> tuple[onnx.ModelProto, str]:
        """The model with the types of its values, by :func:`conformance.graph.shapes.inferred`."""
        return inferred(self.proto)

    @cached_property
    def makers(self) -> dict[str, onnx.NodeProto]:
        """The node that makes each value, including nodes of subgraphs."""
        return {name: node for node in nodes_in(self.proto.graph) for name in node.output if name}

    @property
    def producer(self) -> str:
        """The tool that made the model, with its version if the model has it."""
        return " ".join(filter(None, (self.proto.producer_name, self.proto.producer_version)))


def model_file(path: Path) -> Path:
    """The file of the model: ``path``, or the only ``.onnx`` file of the folder ``path``.

    Raises :class:`ModelError`.
    """
    if not os.path.isdir(path):  # also for a name that no file can have
        return path
    found = sorted(path.glob("*.onnx"))
    if len(found) != 1:
        names = ", ".join(visible(each.name) for each in found[:8])
        what = f"{len(found)} .onnx files; name one of them: {names}" if found else "no .onnx file"
        raise ModelError(f"{shown(path)}: this folder has {what}.")
    return found[0]


def read_model(path: Path) -> ReadModel:
    """The model at ``path``, a file or a folder with one. Raises :class:`ModelError`."""
    path = model_file(path)
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise ModelError(f"{shown(path)}: the file is empty.")
            if size > _MOST_BYTES:
                raise ModelError(
                    f"{shown(path)}: the file has {size / 2**30:.1f} GiB, and ONNX's limit is 2;"
                    " save its weights as external data."
                )
            file.seek(0)
            proto, renamed = _parsed(path, file.read())
    except OSError as error:
        raise ModelError(f"{shown(path)}: cannot be read: {error.strerror}.") from None
    if not proto.graph.node:
        raise ModelError(f"{shown(path)}: its graph has no nodes.")
    written = onnx.ModelProto()
    written.CopyFrom(proto)
    _sort(path, proto.graph)
    return ReadModel(path, _inlined(path, proto), written, renamed)


def _parsed(path: Path, content: bytes) -> tuple[onnx.ModelProto, bool]:
    """The model without its weights, and whether it has been renamed."""
    if content[4:8] == b"ORTM":
        raise ModelError(
            f"{shown(path)}: a model in ONNX Runtime's own format; give the .onnx file that it was"
            " made from."
        )
    try:
        proto = onnx.ModelProto.FromString(content)
        _leave_out_weights(proto)
        renamed = make_names_safe(proto)
    except Exception as error:  # Python's, or of protocol buffers
        raise ModelError(f"{shown(path)}: not an ONNX model, or a damaged one: {error}.") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{shown(path)}: not an ONNX model: it has no graph or no operator sets.")
    return proto, renamed


def _leave_out_weights(message: Message) -> None:
    """Remove the content of each large tensor, and mark the tensor as external.

    Shapes and other small constants stay.
    """
    for field, value in message.ListFields():
        if field.message_type is not None and field.name != "type":
            for each in (value,) if isinstance(value, Message) else value:
                _leave_out_weights(each)
    if isinstance(message, TensorProto) and message.ByteSize() > LARGE:
        for name in _ELEMENTS:
            message.ClearField(name)
        message.data_location = TensorProto.EXTERNAL


def _inlined(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions; the operator itself stays, even if it is a function, too."""
    try:
        return inlined(proto, lambda f: (f.domain, f.name) == (DOMAIN, OP_TYPE))
    except ValueError as error:
        raise ModelError(f"{shown(path)}: its functions cannot be inlined: {error}.") from None


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that the node reads, including those of its subgraphs."""
    for each in within(node):
        yield from filter(None, each.input)
        yield from (output.name for inner in subgraphs(each) for output in inner.output)


def _sort(path: Path, graph: onnx.GraphProto) -> None:
    """Put each node after those whose results it reads, if the graph is not in this order."""
    makers = {output: at for at, node in enumerate(graph.node) for output in node.output if output}
    needs = [[makers[name] for name in node.input if name in makers] for node in graph.node]
    if all(maker < at for at, before in enumerate(needs) for maker in before):
        return
    try:
        order = [*TopologicalSorter(dict(enumerate(needs))).static_order()]
    except CycleError as error:
        names = [graph.node[at].name or graph.node[at].op_type for at in error.args[1][:4]]
        raise ModelError(f"{shown(path)}: the graph has a cycle: {' → '.join(names)}.") from None
    nodes = [graph.node[at] for at in order]
    del graph.node[:]
    graph.node.extend(nodes)
