"""Reads a user's model without its weights. Every error is one sentence with the file's name."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError
from onnx import inliner

from conformance.base.files import open_plain
from conformance.base.paths import shown
from conformance.base.signature import DOMAIN, OP_TYPE
from conformance.model.wire import without_weights

#: What protocol buffers, and so ONNX files, cannot exceed.
_MOST_BYTES: Final = 2**31 - 1


class ModelError(ValueError):
    """The model cannot be read; the message says why and names the file."""


@dataclass(frozen=True)
class ReadModel:
    """A model whose large tensors have no content, with its local functions inlined.

    ``written`` is the model as the file has it. ``outside_functions`` are the names of the values
    in the graph of the file itself.
    """

    path: Path
    proto: onnx.ModelProto
    written: onnx.ModelProto
    outside_functions: frozenset[str] = frozenset()

    @property
    def producer(self) -> str:
        """The tool that made it, with its version if it says so."""
        return " ".join(filter(None, (self.proto.producer_name, self.proto.producer_version)))


def model_file(path: Path) -> Path:
    """The file of the model: ``path``, or the only ``.onnx`` file of the folder ``path``.

    Raises :class:`ModelError`.
    """
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.onnx"))
    if len(found) != 1:
        names = ", ".join(each.name for each in found[:8])
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
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    proto = _parsed(path, view)
                finally:
                    view.release()
    except OSError as error:
        raise ModelError(f"{shown(path)}: cannot be read: {error.strerror}.") from None
    if not proto.graph.node:
        raise ModelError(f"{shown(path)}: its graph has no nodes.")
    written = onnx.ModelProto()
    written.CopyFrom(proto)
    _sort(path, proto.graph)
    names = frozenset(value_names(proto.graph))
    return ReadModel(path, _inlined(path, proto), written, names)


def value_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of the values of the graph, without those of its subgraphs."""
    yield from (each.name for each in graph.input)
    yield from (each.name for each in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def _parsed(path: Path, view: memoryview) -> onnx.ModelProto:
    if bytes(view[4:8]) == b"ORTM":
        raise ModelError(
            f"{shown(path)}: a model in ONNX Runtime's own format; give the .onnx file that it was"
            " made from."
        )
    try:
        proto = onnx.ModelProto.FromString(without_weights(view))
    except (ValueError, DecodeError, RecursionError) as error:
        raise ModelError(f"{shown(path)}: not an ONNX model, or a damaged one: {error}.") from None
    if not proto.HasField("graph") or not proto.opset_import:
        raise ModelError(f"{shown(path)}: not an ONNX model: it has no graph or no operator sets.")
    return proto


def _inlined(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions put in place of the nodes that call them.

    A runtime that has the operator runs it, and no function of its name.
    """
    others = [each for each in proto.functions if (each.domain, each.name) != (DOMAIN, OP_TYPE)]
    del proto.functions[:]
    proto.functions.extend(others)
    if not proto.functions:
        return proto
    try:
        return inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(f"{shown(path)}: its functions cannot be inlined: {first}") from None


def _sort(path: Path, graph: onnx.GraphProto) -> None:
    """Put each node behind those whose results it reads, if the graph is not in this order."""
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
