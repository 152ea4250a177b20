"""A model as a program calls it: which inputs it has, and what its graph and its caches allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.graph.nodes import attributes_in, is_attention
from conformance.graph.parts import reached
from conformance.graph.shapes import ValueDim
from conformance.graph.walks import nodes_in
from conformance.model.calls.feeds import Feeder, Interface
from conformance.model.calls.groups import Group
from conformance.model.calls.sequences import DIFFERENT, CallSequence, ProgramCall, TokenSource
from conformance.model.calls.skeleton import MOST_TOKENS, Skeleton
from conformance.rewriting.floats import HALVES

#: Rows of a cache in a buffer if the graph leaves their number open.
ROWS: Final = 32
#: Elements of the keys that all caches together have in the longest call.
_CACHE_ELEMENTS: Final = 1 << 23
#: Operators that quantise their inputs, or may do so.
_QUANTISING: Final = ("MatMulNBits", "QuantizeLinear", "DynamicQuantizeLinear", "QLinearMatMul")
#: The most scores of all layers in a prompt.
_SCORES: Final = 1 << 26


@dataclass(frozen=True)
class DecoderProgram:
    """A model with its interface; ``prompt`` are the tokens of the user's own prompt."""

    skeleton: Skeleton
    interface: Interface
    groups: Sequence[Group]
    prompt: tuple[int, ...] = ()

    @property
    def in_files(self) -> bool:
        """Whether it is a pipeline of several files."""
        return False

    @cached_property
    def new(self) -> int | None:
        """The number of new tokens, if the graph fixes it."""
        for name, declared in self.skeleton.inputs.items():
            if self.interface.kind(name) == "ids" and isinstance(declared.dim(-1), int):
                return declared.size(-1)
        return self.groups[0].form.sequence_length

    @cached_property
    def batch(self) -> int | None:
        """The number of sequences, if the graph fixes it."""
        return next((size for g in self.groups if (size := g.form.batch_size) is not None), None)

    @cached_property
    def cached(self) -> bool:
        """Whether a call can continue the cache of the call before."""
        pasts = [known for n, known in self.skeleton.inputs.items() if n in self.interface.states]
        return bool(pasts) and all(known.dim(2) != 0 for known in pasts) and not self.appends

    @cached_property
    def appends(self) -> bool:
        """Whether a node appends to the cache of another one, so that lengths differ by node."""
        return any(
            node.source is not None and not group.form.borrows
            for group in self.groups
            for node in group.nodes
        )

    @cached_property
    def window(self) -> int:
        """The longest local window that a prompt can exceed here; 0 for none."""
        windows = [group.form.window or 0 for group in self.groups]
        return max((each for each in windows if each + 8 < self.most), default=0)

    @cached_property
    def most(self) -> int:
        """The most tokens that the graph, the configuration and moderate costs allow."""
        nodes = [(group.form, node) for group in self.groups for node in group.nodes]
        row = sum(
            int(form.fields["kv_num_heads"]) * int(form.fields["head_size"])
            for form, node in nodes
            if not form.borrows or "past_key" in node.given
        )
        heads = sum(int(form.fields["num_heads"]) for form, _ in nodes)
        sizes = [
            MOST_TOKENS,
            self.skeleton.table_rows,
            self.interface.configuration.context,
            _CACHE_ELEMENTS // max(row, 1),
            int((_SCORES // max(heads, 1)) ** 0.5),
        ]
        for form, _ in nodes:
            sizes += [form.table_rows, form.capacity if form.cache == "static" else None]
        return min(filter(None, sizes))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The meanings of its inputs."""
        found = (self.interface.kind(name) for name in self.skeleton.inputs)
        return frozenset(filter(None, found))

    @cached_property
    def given(self) -> frozenset[str]:
        """The inputs of attention nodes that the program gives directly."""
        taken = map(self.interface.taken_as, self.skeleton.inputs)
        return frozenset(filter(None, taken))

    @cached_property
    def tells_padding(self) -> bool:
        """Whether an input can tell which tokens are padding."""
        return not {"mask", "last", "positions", "lengths"}.isdisjoint(self.kinds)

    @cached_property
    def counts_chunks(self) -> bool:
        """Whether a node is told how many tokens of a chunk are no padding."""
        return any(group.form.chunks for group in self.groups)

    @cached_property
    def results(self) -> frozenset[str]:
        """The outputs to compare: those that are no caches."""
        caches = self.interface.states.values()
        return frozenset(self.skeleton.results or self.interface.outputs.keys() - caches)

    @cached_property
    def has_codes(self) -> bool:
        """Whether a cache is stored as codes: by attention nodes, or by the graph around them."""
        if any(group.form.fields.get("cache_dtype") for group in self.groups):
            return True
        nodes = [node for node in nodes_in(self.skeleton.model.graph) if not is_attention(node)]
        origins = {name: node.input for node in nodes for name in node.output}
        decoded = {n.input[0] for n in nodes if n.op_type == "DequantizeLinear"}
        return not reached(decoded, origins.get).isdisjoint(self.interface.states)

    @cached_property
    def halves(self) -> frozenset[str]:
        """The types of less than 32 bits that the model computes in."""
        graph = self.skeleton.model.graph
        kinds = {each.data_type for each in graph.initializer}
        kinds |= {each.type.tensor_type.elem_type for each in graph.input}
        attributes = (each for node in nodes_in(graph) for each in node.attribute)
        kinds |= {each.i for each in attributes if each.name == "to"}
        return frozenset(word for word, kind in HALVES.items() if kind in kinds)

    @cached_property
    def quantises(self) -> bool:
        """Whether its products quantise their inputs."""
        graph = self.skeleton.model.graph
        nodes = [node for node in nodes_in(graph) if node.op_type in _QUANTISING]
        caches = {each.name for each in graph.output}
        return any(
            attributes_in(node).get("accuracy_level") == 4
            if node.op_type == "MatMulNBits"
            else caches.isdisjoint(node.output)
            for node in nodes
        )

    @cached_property
    def vocabulary(self) -> int | None:
        """The number of different tokens that its embeddings have, None if it is unknown."""
        graph = self.skeleton.model.graph
        sizes = {each.name: each.dims[0] for each in graph.initializer if len(each.dims) == 2}
        found = [
            sizes[node.input[0]]
            for node in graph.node
            if node.op_type == "Gather" and node.input[0] in sizes
            if node.input[1] in self.skeleton.inputs and self.interface.kind(node.input[1]) == "ids"
        ]
        return min(found, default=None)

    @cached_property
    def source(self) -> TokenSource:
        """The tokens that its calls have."""
        most = self.vocabulary or self.interface.configuration.vocabulary or 64
        first = 3 if most > 8 else 0
        padding = self.interface.configuration.padding or 0
        return TokenSource(first, min(DIFFERENT, most - first), padding, self.prompt)

    def arrays(self, run: CallSequence) -> list[dict[str, Array]]:
        """The inputs of each call, without the carried ones. Raises :class:`CannotFeed`."""
        rows = max(ROWS, *(call.total for call in run.calls))
        found = []
        for number, call in enumerate(run.calls):
            feeder = Feeder(self.interface, self.skeleton.inputs, rows, call, run.buffers)
            found.append(feeder.arrays(number))
        return found

    def carried(self, run: CallSequence, call: ProgramCall, past: str, cache: Array) -> Array:
        """A cache as the program passes it on: rows taken back, sequences reordered."""
        if call.order is not None and "order" not in self.kinds:
            cache = cache.take(call.order, axis=self._batch_axis(past))
        growing = cache.ndim > 3 and past not in run.buffers and self.grows(past)
        if call.kept is not None and growing:
            before = run.calls[run.calls.index(call) - 1].total
            # A graph may keep only the last rows.
            cache = cache[..., : max(cache.shape[-2] - (before - call.kept), 0), :]
        return np.ascontiguousarray(cache)

    def grows(self, past: str) -> bool:
        """Whether a cache has more rows after each call."""
        taken = self.interface.takers.get(past)
        growing = taken is None or taken[2].cache == "growing"
        fixed = past in self.interface.scattered or self.skeleton.inputs[past].size(-2) is not None
        return growing and not fixed

    def _batch_axis(self, past: str) -> int:
        """The axis of the sequences in a cache."""
        dims = self.skeleton.inputs[past].dims or ()
        return next((dims.index(dim) for dim in self._of_batch if dim in dims), 0)

    @cached_property
    def _of_batch(self) -> list[ValueDim]:
        """The dims of inputs that have a row for each sequence."""
        every = self.skeleton.inputs.items()
        kinds = ("ids", "mask", "last")
        found = (known.dim(0) for name, known in every if self.interface.kind(name) in kinds)
        return [dim for dim in found if dim is not None]
