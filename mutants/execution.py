"""Executes the steps of a bundle: its model, its tensors, and the values passed between steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import graph
import numpy as np
from kernel import Refused
from tensor_file import Tensor, read_file, read_tensor

Arrays = dict[str, np.ndarray]


class Bundles:
    """The last bundle, kept because conformance.maintain.power runs every mutant on it."""

    def __init__(self) -> None:
        self._path = ""
        self._graph: graph.Graph | None = None
        self._tensors: dict[str, Tensor] = {}

    def open(self, path: str) -> Bundles:
        path = os.path.realpath(path)
        if path != self._path:
            self._path, self._graph, self._tensors = path, None, {}
        return self

    @property
    def graph(self) -> graph.Graph:
        if self._graph is None:
            self._graph = graph.Graph(read_file(f"{self._path}/model.onnx"))
        return self._graph

    def array(self, file: str) -> np.ndarray:
        """The tensor in ``file``, in separate memory."""
        tensor = self._tensors.get(file)
        if tensor is None:
            tensor = self._tensors[file] = read_tensor(f"{self._path}/{file}")
        dtype = graph.NUMPY[tensor.data_type]
        return np.frombuffer(bytearray(tensor.raw), dtype).reshape(tensor.dims)


def steps(
    session: graph.Session, bundle: Bundles, plan: Sequence[dict[str, Any]]
) -> Iterator[Arrays | str]:
    """The outputs of each step of the ``plan``, or why it is refused, as the protocol describes it.

    Raises what the kernel raises.
    """
    outputs: Arrays = {}
    for step in plan:
        feeds = {graph_input: bundle.array(file) for graph_input, file in step["files"].items()}
        carried = {fed: outputs[output] for fed, output in step["carry"].items()}
        if (keep := step.get("keep")) is not None:
            carried = {fed: present[:, :, :keep] for fed, present in carried.items()}
        feeds.update(carried)
        session.kernel.memory["shared"] = bool(step["share"])
        try:
            outputs = session.run(feeds)
        except Refused as refusal:
            if not step.get("may_be_rejected"):
                raise
            yield str(refusal)
            continue
        for output, shared in step["share"].items():
            session.kernel.bind(feeds[shared], outputs[output])
            outputs[output] = feeds[shared]
        yield outputs
