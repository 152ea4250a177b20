"""Runs cases as a decoder with captured graphs does: a call is captured once, and replayed.

A captured graph (of CUDA, or of WebGPU) repeats the kernels that ran, with the addresses and the
launch sizes of that time: only the content of its inputs can change. So it is captured with the
lengths of one token less if the call allows that, and replayed with those of the case; the steps of
a loop replay the graph of the first one. This reveals a kernel that reads a length on the host, or
derives a launch size from a length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from availability import Unavailable
from ort_execution import CARRIERS, Case, Runtime, is_refusal
from ort_memory import content_of
from probe import FLOAT, probe_model
from tensor_file import Tensor

#: By which a run names its graph, and the name under which nothing is captured.
GRAPH_ID = "gpu_graph_id"
NO_GRAPH = "-1"

LENGTHS = ("seqlens_k", "total_sequence_length")


def captures_graphs(runtime: Runtime) -> bool:
    """Whether a second run replays the first: its results are where the first run wrote them."""
    memory = runtime.memory
    if memory is None:
        return False
    kept = [bytearray(np.full(4, fill, np.float32)) for fill in (1, 2, 0, 0)]
    tensor = Tensor("x", FLOAT, (4,), b"")
    one, two, first, second = (memory.to_device(runtime.value(tensor, raw)) for raw in kept)
    try:
        options = runtime.make_options(captures=True)
        options.enable_profiling = False
        session = runtime.provider.session(probe_model(FLOAT, 1), options, True)._sess
        for output in (first, second):
            binding = runtime.state.SessionIOBinding(session)
            binding.bind_ortvalue_input("x", one)
            binding.bind_ortvalue_output("y", output)
            session.run_with_iobinding(binding, run_options(runtime, "1"))
            memory.copy_into(one, two)
    except Exception as error:
        if is_refusal(error):
            return False
        raise
    found = [content_of("", memory.to_host(value)).raw for value in (first, second)]
    return found == [bytes(kept[1]), bytes(kept[3])]


def run_options(runtime: Runtime, number: str) -> Any:
    """RunOptions that capture or replay the graph with the identifier ``number``."""
    options = runtime.onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_ID, number)
    return options


class GraphCase(Case):
    """A case whose calls are each captured, and replayed with the values of the case."""

    captures = True
    graphs: dict[Any, Graph]

    def run(self, repeat: int) -> tuple[list[dict[str, str]], float]:
        """Like `Case.run`. Raises `Unavailable` for a case whose cache grows from call to call."""
        if not all(step["share"] for step in self.steps):
            raise Unavailable("a graph is captured only where past and present share one buffer.")
        if repeat == 0:
            self.graphs = {}
        return super().run(repeat)

    def compute(
        self, index: int, feeds: dict[str, Any], shared: dict[str, Any]
    ) -> tuple[Any, float]:
        """Like `Case.compute`, by a replay."""
        shapes = tuple(sorted((name, tuple(feed.shape())) for name, feed in feeds.items()))
        graph = self.graphs.get(shapes)
        if graph is None:
            graph = self.graphs[shapes] = Graph(self, index, feeds)
            graph.run(self.earlier(index, feeds))
        values, seconds = graph.run(feeds)
        shared.update({output: graph.outputs[output] for output in shared})
        return values, seconds

    def earlier(self, index: int, feeds: dict[str, Any]) -> dict[str, Any]:
        """The inputs with the lengths of one token less, if each sequence has a past token.

        Otherwise the inputs themselves.
        """
        tensors = {name: self.inputs[index].get(name) for name in LENGTHS}
        rows = feeds["query"].shape()[1] if "query" in feeds else None
        if rows is None or any(tensor is None for tensor in tensors.values()):
            return feeds
        lower: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            assert tensor is not None
            numbers = np.frombuffer(tensor.raw, CARRIERS[tensor.data_type]) - 1
            if not numbers.size or numbers.min() < rows - (name == "seqlens_k"):
                return feeds
            lower[name] = tensor._replace(raw=numbers.tobytes())
        placed = {}
        for name, tensor in lower.items():
            self.buffers.append(bytearray(tensor.raw))
            placed[name] = self.place(name, tensor, self.buffers[-1])
        return {**feeds, **placed}


class Graph:
    """A captured call: its number, and its inputs and outputs at their fixed addresses."""

    def __init__(self, case: GraphCase, index: int, feeds: dict[str, Any]) -> None:
        self.case = case
        self.kept: list[bytearray] = []
        self.shares = case.steps[index]["share"]
        self.inputs = {name: self.copied(name, feed) for name, feed in feeds.items()}
        # The shapes of the outputs, from a separate run that captures nothing.
        scratch = {name: self.copied(name, feed) for name, feed in feeds.items()}
        places = {output: scratch[name] for output, name in self.shares.items()}
        values, _ = case.run_bound(scratch, places, run_options(case.runtime, NO_GRAPH))
        self.outputs = {
            name: self.inputs[self.shares[name]]
            if name in self.shares
            else self.copied(name, values[position], True)
            for position, name in enumerate(case.names)
        }
        self.number = str(len(case.graphs) + 1)

    def copied(self, name: str, value: Any, output: bool = False) -> Any:
        """A copy of an OrtValue in new memory, placed where the session reads or writes it."""
        case = self.case
        tensor = content_of(name, case.on_host(value))
        self.kept.append(bytearray(tensor.raw))
        host = case.runtime.value(tensor, self.kept[-1])
        memory = case.runtime.memory
        return memory.to_device(host) if memory and (output or name in case.on_device) else host

    def run(self, feeds: dict[str, Any]) -> tuple[Any, float]:
        """Copy ``feeds`` to the addresses of the inputs and run; the first run is captured."""
        memory = self.case.runtime.memory
        assert memory is not None  # as it captures graphs
        for name, feed in feeds.items():
            if feed is not self.inputs[name]:
                memory.copy_into(self.inputs[name], feed)
        options = run_options(self.case.runtime, self.number)
        return self.case.run_bound(self.inputs, self.outputs, options)
