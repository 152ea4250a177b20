"""The form of a node: the fields of its call that do not depend on how many tokens there are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from conformance.case.steps import steps_of
from conformance.graph.describe import Unclear, fields_of_node, head_size_of, heads_of
from conformance.graph.nodes import AttentionNode
from conformance.model.config.configuration import Configuration
from conformance.operator.call import Call, checked_call
from conformance.operator.parts.key_value import BORROWS
from conformance.operator.parts.quantisation import NUMBERS
from conformance.operator.signature import ATTRIBUTES, INPUT_NAMES, OUTPUT_NAMES
from conformance.operator.tensors import Step, attributes_of


@dataclass(frozen=True)
class Form:
    """The call of a node, apart from the number of its tokens.

    ``fields`` are those of :class:`conformance.operator.call.Call`. ``cache`` is how the KV cache
    is kept: ``none``; ``growing`` by the new tokens; ``static``, a buffer of ``capacity`` rows
    (None: any); ``window``, a buffer that holds the last tokens only. ``shared``: the program that
    runs the model keeps past and present in one buffer, too. ``batch_size`` and ``sequence_length``
    are set where the graph fixes them, and ``table_rows`` is the number of rows of the rotary
    tables. ``reads_presents``: another node reads the presents, or they are outputs of the model.
    ``chunks``: query_seqlens says how many tokens of a chunk are not padding. ``slack``: rows of a
    window cache beyond the window. ``given``: lengths that the caller of the model gives.
    ``graph``: a standard Attention that is a call of this form, as a model.
    """

    fields: Mapping[str, Any]
    cache: str
    capacity: int | None
    shared: bool
    batch_size: int | None
    sequence_length: int | None
    table_rows: int | None
    reads_presents: bool
    chunks: bool = False
    slack: int = 0
    given: tuple[str, ...] = ()
    graph: bytes = b""

    @property
    def borrows(self) -> bool:
        """Whether the node reads the KV cache of another layer and adds nothing to it."""
        return self.fields.get("key_value") in BORROWS

    @property
    def window(self) -> int | None:
        """The local window, None if there is none."""
        window = self.fields.get("local_window_size")
        return window if window is not None and window > 0 else None

    def rows(self, new: int, total: int, buffer: int) -> int | None:
        """Rows of the past in a call of ``new`` tokens after which there are ``total``.

        None if there is no past. A buffer whose size the graph leaves open has ``buffer`` rows.
        """
        if self.cache == "none":
            return None
        if self.cache == "growing":
            return total if self.borrows else total - new
        window = (self.window or buffer) + self.slack if self.cache == "window" else buffer
        return self.capacity or window

    def lengths(self, new: int, totals: Sequence[int], rows: int | None) -> dict[str, Any]:
        """The fields with the numbers of tokens.

        ``new`` is the number in the call, ``totals`` the number of each sequence after it, and
        ``rows`` the number of rows in the past.
        """
        fields: dict[str, Any] = {"sequence_length": new}
        if len(totals) > 1:
            fields["batch_size"] = len(totals)
        longest, added, before = max(totals, default=0), 0 if self.borrows else new, 0
        if rows is not None and self.cache in ("static", "window"):
            fields["max_sequence_length"] = rows
            before = max(longest - added, 0)
        elif rows is not None:
            before = rows
            if not before:
                fields["cache"] = "concatenated"
        if before:
            fields["past_sequence_length"] = before
        if any(total != before + added for total in totals):
            fields["total_sequence_lengths"] = list(totals)
        if self.chunks:
            fields["query_seqlens"] = [new] * len(totals)
        return fields

    @property
    def key(self) -> str:
        """A key that is equal for two nodes with the same form."""
        return json.dumps([self.__dict__, sorted(self.fields)], sort_keys=True, default=str)


def form_of(node: AttentionNode, configuration: Configuration) -> Form:
    """The form of ``node``; facts that the graph leaves open are taken from ``configuration``.

    Raises :class:`Unclear`.
    """
    numbers = {n: v for n, v in node.attributes.items() if not isinstance(v, str)}
    wrong = [f"{name} is {value}" for name, value in numbers.items() if not isfinite(value)]
    if wrong:
        raise Unclear(f"attribute {wrong[0]}")
    cache, capacity = _cache(node)
    fields = {
        "dtype": _dtype(node, configuration),
        **_sizes(node, configuration),
        **fields_of_node(node),
    }
    past = node.type("past_key").dtype
    # ONNX Runtime puts Casts around a cache of another floating-point type.
    if past in NUMBERS or (past is not None and "k_scale" in node.inputs):
        fields["cache_dtype"] = past
    of_batch = ("query", "key", "past_key", "seqlens_k", "position_ids")
    batches = [node.type(name).size(0) for name in of_batch]
    form = Form(
        fields=fields,
        cache=cache,
        capacity=capacity,
        shared=configuration.shared_buffer and cache in ("growing", "window"),
        batch_size=next((size for size in batches if size is not None), None),
        sequence_length=node.type("query").size(1),
        table_rows=node.type("cos_cache").size(0),
        reads_presents=node.reads_presents,
        chunks="query_seqlens" in node.inputs,
        slack=configuration.cache_slack if cache == "window" else 0,
        given=tuple(name for name in ("total_sequence_length",) if name in node.given),
    )
    overrides = _overrides(node, _plainest(form))
    return Form(**{**form.__dict__, "fields": {**fields, **overrides}})


def _dtype(node: AttentionNode, configuration: Configuration) -> str:
    of_type_t = ("query", "key", "value", "output", "cos_cache", "attention_bias", "head_sink")
    found = [node.type(name).dtype for name in of_type_t]
    known = next((dtype for dtype in found if dtype is not None), None)
    if known is None and "k_scale" not in node.inputs:
        known = node.type("past_key").dtype
    known = known or configuration.dtype
    if known is None:
        raise Unclear("the dtype cannot be told from the graph; give --dtype")
    return known


def _sizes(node: AttentionNode, configuration: Configuration) -> dict[str, int]:
    heads, kv_heads = heads_of(node)
    size = head_size_of(node, configuration.head_size)
    if size is None:
        raise Unclear(
            "the head size cannot be told from the graph; give --head-size, or put the model's"
            " config.json beside it"
        )
    return {"num_heads": heads, "kv_num_heads": kv_heads, "head_size": size}


def _cache(node: AttentionNode) -> tuple[str, int | None]:
    """How the cache is kept, and its capacity if the graph fixes it."""
    if "past_key" not in node.inputs:
        return "none", None
    past, present = node.type("past_key").dim(2), node.type("present_key").dim(2)
    if past == node.type("query").dim(1):  # careless names of dims say nothing
        past = None
    capacity = past if isinstance(past, int) and past > 0 else None
    if node.attributes.get("sliding_window_cache"):
        return "window", capacity
    one_buffer = capacity is not None or (past is not None and past == present)
    return ("static", capacity) if one_buffer and node.source is None else ("growing", None)


def _plainest(form: Form) -> Call:
    """A short call of this form, which determines its tensors."""
    new = form.sequence_length or 2
    fields = form.lengths(new, [new + 2], form.rows(new, new + 2, max(form.window or 0, 16)))
    return checked_call({**form.fields, **fields})


def _overrides(node: AttentionNode, call: Call) -> dict[str, Any]:
    """The fields that give the call exactly the inputs, outputs and attributes of the node."""
    step = steps_of(call)[0]
    made: dict[str, Any] = {}
    inputs: dict[str, Any] = dict(_states(node, step, "inputs"))
    width = node.type("cos_cache").size(1)
    size = call.head_size
    if call.rotary != "none" and width is not None and 2 * width > size:
        raise Unclear(
            f"cos_cache has {width} columns, one for each pair of elements that rotates, and a head"
            f" has {size} elements"
        )
    if call.rotary != "none" and width is not None and 2 * width != size:
        made["rotary_dim"] = 2 * width
    for name, plain in (("seqlens_k", 1), ("total_sequence_length", 0)):
        dims = node.type(name).dims
        if dims is not None and len(dims) != plain:
            inputs[name] = {"shape": _length_shape(name, len(dims), dims)}
    for name in ("k_scale", "v_scale"):
        dims, usual = node.type(name).dims, step.input(name).shape
        if dims is not None and None not in (*dims, usual) and dims != usual:
            inputs[name] = {"shape": list(dims)}
    if inputs:
        made["inputs"] = inputs
    if outputs := dict(_states(node, step, "outputs")):
        made["outputs"] = outputs
    derived = attributes_of(call)
    names = [attribute.name for attribute in ATTRIBUTES]
    different = {
        name: node.attributes.get(name)
        for name in names
        if node.attributes.get(name) != derived.get(name)
    }
    if different:
        made["attributes"] = different
    return made


def _length_shape(name: str, rank: int, dims: tuple[object, ...]) -> list[int | str]:
    """The shape of an input with lengths whose rank is not the usual one."""
    if name == "total_sequence_length" or rank == 0:
        return [1] * rank
    ones = [1] * (rank - 1)
    return [*ones, "batch_size"] if dims[0] == 1 else ["batch_size", *ones]


def _states(node: AttentionNode, step: Step, side: str) -> Iterator[tuple[str, str]]:
    """The inputs and outputs whose state in the node differs from the one that the fields imply."""
    names, given, wanted, tensors = (
        (INPUT_NAMES, node.given_inputs, node.inputs, step.inputs)
        if side == "inputs"
        else (OUTPUT_NAMES, node.given_outputs, node.outputs, step.outputs)
    )
    last = -1
    for at, name in enumerate(names):
        if name in wanted or at < given:
            last = at
    for at, (name, tensor) in enumerate(zip(names, tensors, strict=True)):
        state = "connected" if name in wanted else "omitted"
        ends_list = at == last and at < given  # an empty name at the end of the node's list
        if (tensor.connected or ends_list) if state == "omitted" else not tensor.connected:
            yield name, state
