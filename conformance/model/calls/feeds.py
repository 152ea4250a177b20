"""The values that a program gives to a model's inputs: tokens, masks, positions, KV caches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from onnx import GraphProto, TensorProto, numpy_helper

from conformance.base.array_types import NUMPY, WORD_OF_ONNX, Array
from conformance.base.paths import shown
from conformance.case.steps import steps_of
from conformance.graph.nodes import AttentionNode
from conformance.graph.reading import ModelError, ReadModel
from conformance.graph.shapes import ValueType, types_of
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import Group
from conformance.model.calls.sequences import DIFFERENT, ProgramCall
from conformance.model.calls.skeleton import TOKENS, Skeleton, rotary_table
from conformance.model.config.configuration import Configuration
from conformance.operator.call import checked_call
from conformance.operator.tensors import Step

#: The meaning of a decoder's inputs, by the names that exporters give them.
_BY_NAME: Final[Mapping[str, str]] = {
    "input_ids": "ids",
    "decoder_input_ids": "ids",
    TOKENS: "ids",
    "attention_mask": "mask",
    "position_ids": "positions",
    "cache_position": "positions",
    "use_cache_branch": "past",
    "past_seq_len": "last",
    "past_sequence_length": "past",
    "total_seq_len": "total",
    "total_sequence_length": "total",
    "num_logits_to_keep": "one",
    "logits_to_keep": "one",
    "beam_idx": "order",
    "write_indices": "before",
    "nonpad_kv_seqlen": "lengths",
}
#: The meaning of an input of integers, by the first of these words that its name contains.
_IN_NAME: Final = {
    "encoder_attention_mask": "one",
    "type": "types",
    "mask": "mask",
    "position": "positions",
    "ids": "ids",
    "tok": "ids",
}
#: Inputs and dims with one of these words in their names belong to an encoder.
_ENCODER: Final = ("encoder", "frame", "audio", "image")
_FRAMES: Final = 5
#: The meaning of an input that genai_config.json gives one of these names.
_BY_WORD: Final[Mapping[str, str]] = {**_BY_NAME, "past_sequence_length": "last"}
#: The meaning of an input that a node takes directly.
_BY_PARAMETER: Final[Mapping[str, str]] = {
    "seqlens_k": "last",
    "total_sequence_length": "total",
    "position_ids": "positions",
    "query_seqlens": "new",
}
_PASTS: Final = {"past_key": "present_key", "past_value": "present_value"}
_TABLES: Final = ("cos_cache", "sin_cache")
#: The meanings of an input that the user can give, by the words for them.
MEANINGS: Final[Mapping[str, str]] = {
    "past_length": "past",
    "total": "total",
    "positions": "positions",
    "zeros": "zero",
    "ids": "ids",
    "mask": "mask",
}
#: A bias that hides a column: a number that all floating-point types have.
_HIDDEN: Final = -6e4


class CannotFeed(ModelError):
    """The meaning of an input is unknown; the message names the input."""


@dataclass(frozen=True)
class Interface:
    """What is known about a model's inputs and outputs.

    ``types`` are the TensorProto types of the inputs. ``takers`` maps a value to the attention node
    that takes it directly, the input of the node that it is, and the node's form. ``meanings`` has
    the meaning of some inputs, or their values, by the user's word or from the graph. ``scattered``
    maps caches to the outputs that are the same buffers with new rows.
    """

    path: str
    inputs: Mapping[str, ValueType]
    types: Mapping[str, int]
    outputs: Mapping[str, ValueType]
    takers: Mapping[str, tuple[str, AttentionNode, Form]]
    configuration: Configuration
    meanings: Mapping[str, str | Array] = field(default_factory=dict)
    scattered: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def states(self) -> Mapping[str, str]:
        """Maps each past to its present.

        They are matched by GenAI's names, by the usual names, and by the nodes; the remaining ones
        if one name contains the other, or if only one of each is left.
        """
        found: dict[str, str] = {}
        found |= {past: present for past, present in self.scattered.items() if past in self.inputs}
        for name in self.inputs:
            present = next((each for each in self._presents(name) if each in self.outputs), None)
            if present is not None:
                found[name] = present
        caches = [name for name in self.inputs if name not in found and self.is_cache(name)]
        left = [
            name
            for name, known in self.outputs.items()
            if name not in found.values() and len(known.dims or ()) > 2
        ]
        for name in caches:
            own = self.inputs[name]
            fitting = [
                each
                for each in left
                if self.outputs[each].dtype == own.dtype
                if len(self.outputs[each].dims or ()) == len(own.dims or ())
            ]
            alike = [each for each in fitting if name in each or each in name]
            if len(alike) == 1 or len(caches) == len(fitting) == 1:
                found[name] = (alike or fitting)[0]
        return found

    def is_cache(self, name: str) -> bool:
        """Whether an input of unknown meaning can be a cache.

        It can if it has four dims, or is a state of a fixed size that is the size of an output,
        too.
        """
        dims = self.inputs[name].dims or ()
        sizes = [other.dims[1:] for other in self.outputs.values() if other.dims]
        fixed = all(isinstance(dim, int) for dim in dims[1:])
        one_token = any(form.sequence_length == 1 for _, _, form in self.takers.values())
        state = len(dims) > 2 and fixed and dims[1:] in sizes and not (dims[1] == 1 and one_token)
        known = name in self.takers or self.kind(name) is not None
        return not known and (len(dims) > 3 or state)

    def _presents(self, name: str) -> Iterator[str]:
        names = self.configuration.names
        for what in ("key", "value"):
            pattern = re.escape(names.get(f"past_{what}_names", "")).replace("%d", r"(\d+)")
            found = re.fullmatch(pattern, name) if "(" in pattern else None
            if found is not None:
                yield names.get(f"present_{what}_names", "").replace("%d", found[1])
        if "past" in name:
            yield name.replace("past_key_values", "present")
            yield name.replace("past_key_values", "present_key_values")
            yield name.replace("past", "present")
        if name in self.takers:
            parameter, node, _ = self.takers[name]
            yield node.outputs.get(_PASTS.get(parameter, ""), "")

    def taken_as(self, name: str) -> str:
        """The operator's input that a value is, "" if no node takes it directly."""
        return self.takers[name][0] if name in self.takers else ""

    def is_taken_as_past(self, name: str) -> bool:
        """Whether an attention node takes an input directly as its past_key or past_value."""
        return self.taken_as(name) in _PASTS

    def is_past(self, name: str) -> bool:
        """Whether an input is a cache that is empty when a program starts."""
        borrowed = name in self.takers and self.takers[name][2].borrows
        return name in self.states or (self.is_taken_as_past(name) and not borrowed)

    def kind(self, name: str) -> str | None:
        """The meaning of an input, None if it is unknown."""
        if isinstance(meaning := self.meanings.get(name), str):
            return meaning
        if self.taken_as(name) in _BY_PARAMETER:
            return _BY_PARAMETER[self.taken_as(name)]
        words = {own: word for word, own in self.configuration.names.items() if "%d" not in own}
        known = _BY_WORD.get(words[name]) if name in words else _BY_NAME.get(name)
        integers = WORD_OF_ONNX.get(self.types.get(name, 0)) in ("int32", "int64")
        if known is None and integers:
            alike = (kind for word, kind in _IN_NAME.items() if word in name.lower())
            known = next(alike, None)
        return known

    def layer(self, name: str) -> int | None:
        """The number of a layer in the name of an input, None if it has none."""
        found = re.findall(r"\d+", name)
        return int(found[0]) if len(found) == 1 else None


def interface_of(
    model: ReadModel,
    skeleton: Skeleton,
    groups: Sequence[Group],
    configuration: Configuration,
    meanings: Mapping[str, str | Array] | None = None,
) -> Interface:
    """The inputs and outputs of the model; ``meanings`` are the user's."""
    graph = model.inferred[0].graph
    types = {**types_of(skeleton.model.graph), **types_of(graph)}
    constants = {tensor.name for tensor in skeleton.model.graph.initializer}
    every = {each.name: each for each in (*skeleton.model.graph.input, *graph.input)}
    inputs = [each for each in every.values() if each.name not in constants]
    return Interface(
        path=shown(model.path),
        inputs={each.name: types[each.name] for each in inputs},
        types={each.name: each.type.tensor_type.elem_type for each in inputs},
        outputs={each.name: types[each.name] for each in graph.output},
        takers={
            value: (parameter, node, group.form)
            for group in groups
            for node in group.nodes
            for parameter, value in reversed([*node.inputs.items()])
        },
        configuration=configuration,
        meanings={**dict.fromkeys(_reorders(graph), "order"), **(meanings or {})},
        scattered={
            node.input[0]: node.output[0]
            for node in graph.node
            if node.op_type == "TensorScatter" and node.input[0] in every
        },
    )


def _reorders(graph: GraphProto) -> Iterator[str]:
    """The inputs by which the graph takes the sequences of its caches in another order."""
    ranks = {each.name: len(each.type.tensor_type.shape.dim) for each in graph.input}
    for node in graph.node:
        axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
        if node.op_type == "Gather" and axis == 0 and len(node.input) == 2:
            cache, order = node.input
            if ranks.get(cache, 0) > 2 and ranks.get(order) == 1:
                yield order


@dataclass(frozen=True)
class Feeder:
    """Gives the ``inputs`` of a model, or of a part of it, their values in a ``call``.

    ``rows`` is the number of rows of a buffer whose size the graph leaves open, and ``buffers`` has
    those of buffers in which the program keeps growing caches.
    """

    interface: Interface
    inputs: Mapping[str, ValueType]
    rows: int
    call: ProgramCall
    buffers: Mapping[str, int] = field(default_factory=dict)

    def arrays(self, number: int = 0) -> dict[str, Array]:
        """The values in a call; from the second call (``number``) on, without the pasts.

        Values that a program would compute from weights are random. Raises :class:`CannotFeed`.
        """
        return {
            name: self.array(name)
            for name in self.inputs
            if not (number and name in self.interface.states)
        }

    def array(self, name: str) -> Array:
        """The values of one input in a call. Raises :class:`CannotFeed`."""
        declared, kind = self.inputs[name], self.interface.kind(name)
        data_type = self.interface.types.get(name, 0)
        if declared.dtype is None and data_type != TensorProto.BOOL:
            raise CannotFeed(
                f"its input {name} is {word_of(data_type)}, which no runner can pass on"
            )
        dtype = np.dtype(bool) if declared.dtype is None else NUMPY[declared.dtype]
        given = self.interface.meanings.get(name)
        if isinstance(given, np.ndarray):
            return given.astype(dtype)
        whole = declared.dtype is None or NUMPY[declared.dtype].kind in "iu"
        known = kind or name in self.interface.takers or self.interface.is_past(name)
        if whole and not known:
            raise CannotFeed(
                f"nothing tells what its input {name} is; say it, as in --input {name}=ids"
            )
        array = np.zeros(self._shape(name), dtype)
        if kind == "mask":
            self._mask(array)
        elif kind is not None:
            values = self._of_kind(kind, array.shape)
            array[...] = values if values.ndim in (0, array.ndim) else values.reshape(array.shape)
        elif not self.interface.is_past(name):
            self._draw(name, array)
        return array

    def _of_kind(self, kind: str, shape: tuple[int, ...]) -> Array:
        """The integers of an input with a known meaning."""
        call = self.call
        if kind in ("ids", "types"):
            return np.resize(call.ids if kind == "ids" else call.types, shape)
        if kind == "positions" and shape[-2:] == call.positions.shape:
            return np.broadcast_to(call.positions, shape)  # there may be several kinds of them
        if kind == "positions":
            return call.past + np.arange(shape[-1] if shape and shape[-1] == call.new else 1)
        rows = {
            "last": call.lengths - 1,
            "lengths": call.lengths,
            "before": call.lengths - (~call.padding).sum(1),
            "order": np.arange(call.batch) if call.order is None else np.array(call.order),
        }
        if kind in rows:
            own = rows[kind]
            return np.asarray(own if own.size == math.prod(shape) else own.max())
        return np.array(
            {"past": call.past, "total": call.total, "new": call.new, "one": 1}.get(kind, 0)
        )

    def _mask(self, array: Array) -> None:
        """Fill a mask: of columns, or with four dims of queries and columns."""
        call = self.call
        rows, width = (array.shape[0] if array.ndim > 1 else 1), min(call.total, array.shape[-1])
        columns = call.columns[:rows, :width]
        if array.ndim == 4:
            seen = self._seen(width)[:rows, None]
            array[..., :width] = seen if array.dtype.kind in "biu" else np.where(seen, 0, _HIDDEN)
            if array.dtype.kind == "f":
                array[..., width:] = _HIDDEN
        else:
            array[..., :width] = columns if array.ndim > 1 else columns[0]

    def _seen(self, width: int) -> Array:
        """Which columns each new token may attend to, [batch, new, width]."""
        call = self.call
        causal = np.arange(width) <= call.past + np.arange(call.new)[:, None]
        return np.asarray(call.columns[:, None, :width] & causal)

    def _draw(self, name: str, array: Array) -> None:
        """Fill an input with random numbers: the same in each call, and for equal tokens."""
        call = self.call
        parameter = self.interface.taken_as(name)
        draws = np.random.default_rng([*name.encode()])
        if parameter in _PASTS and array.ndim == 4 and array.dtype.kind == "f":
            self._cache(array, draws)
        elif parameter in _TABLES:
            array[...] = rotary_table(array.shape[0], array.shape[1], parameter)
        elif parameter in ("k_scale", "v_scale"):
            array[...] = 0.01
        elif array.ndim == 4 and array.shape[2] == call.new and array.shape[3] >= call.total:
            # A bias, or a mask: a number for each pair of places, and none for what is hidden.
            keys, queries = np.arange(call.total), call.past + np.arange(call.new)[:, None]
            bias = np.sin(1.3 * queries + 2.1 * keys + 0.37 * queries * keys)
            seen = self._seen(call.total)[: len(array), None]
            array[...] = _HIDDEN
            array[..., : call.total] = np.where(seen, bias, _HIDDEN)
        elif array.shape[:2] == call.ids.shape and not _is_of_encoder(name):
            array[...] = draws.uniform(-1, 1, (DIFFERENT, *array.shape[2:]))[call.ids % DIFFERENT]
        else:
            batch = array.ndim > 1 and len(array) == call.batch
            array[...] = draws.uniform(-1, 1, array.shape[1 if batch else 0 :])

    def _cache(self, array: Array, draws: np.random.Generator) -> None:
        """Fill a cache that no call of this model makes: each row belongs to a token."""
        heads, rows, size = array.shape[1:]
        of_token = draws.uniform(-1, 1, (DIFFERENT, heads, size))
        for row, history in enumerate(self.call.histories[: len(array)]):
            ids = np.array([each for each, _ in history][:rows], int)
            array[row, :, : len(ids)] = of_token[ids % DIFFERENT].swapaxes(0, 1)

    def _shape(self, name: str) -> tuple[int, ...]:
        call = self.call
        declared, batch = self.inputs[name].dims, call.batch
        if declared is None:
            raise CannotFeed(f"the rank of its input {name} is not declared")
        known: tuple[int | None, ...] = self._known_shapes[name] or (None,) * len(declared)
        if self.interface.taken_as(name) == "total_sequence_length":
            known = tuple(
                self._symbols.get(str(dim), own) for dim, own in zip(declared, known, strict=True)
            )
        tokens = _FRAMES if _is_of_encoder(name) else call.new
        words = (
            *((word, _FRAMES) for word in _ENCODER),
            *(("past", call.past), ("total", call.total), ("batch", batch), ("max", self.rows)),
        )
        shape = []
        for axis, (dim, own) in enumerate(zip(declared, known, strict=True)):
            usual = (batch, tokens)[axis] if axis < max(1, min(2, len(declared) - 1)) else None
            named = next((size for word, size in words if word in str(dim).lower()), usual)
            # A mask may call its columns as embeddings call their tokens.
            embeds = len(declared) == 3 and name not in self.interface.takers
            found = (dim, own, *([named] if embeds else []), self._symbols.get(str(dim)), named)
            size = next((each for each in found if isinstance(each, int)), None)
            if axis == len(declared) - 2 and name in self.buffers:
                size = self.buffers[name]
            elif axis == len(declared) - 2 and name in self.interface.scattered:
                size = dim if isinstance(dim, int) else self.rows
            if size is None:
                raise CannotFeed(f"the size of its input {name} cannot be told")
            shape.append(size)
        return tuple(shape)

    @cached_property
    def _symbols(self) -> Mapping[str, int]:
        """The sizes of symbolic dims, from the inputs whose meaning is known."""
        return {
            dim: size
            for name, declared in self.inputs.items()
            # total_sequence_length has one element, even if the graph names the dim.
            if self.interface.taken_as(name) != "total_sequence_length"
            for dim, size in zip(declared.dims or (), self._known_shapes[name] or (), strict=False)
            if isinstance(dim, str)
        }

    @cached_property
    def _known_shapes(self) -> Mapping[str, tuple[int, ...] | None]:
        return {name: self._known_shape(name) for name in self.inputs}

    @cached_property
    def _steps(self) -> dict[int, Step | None]:
        """The calls of the nodes so far, by their form."""
        return {}

    def _step(self, form: Form) -> Step | None:
        """The call of nodes with this form, None if there is none: the target says so."""
        rows = form.rows(self.call.new, self.call.total, self.rows)
        fields = form.lengths(self.call.new, [*map(int, self.call.lengths)], rows)
        try:
            return steps_of(checked_call({**form.fields, **fields}))[0]
        except ValueError:
            return None

    def _known_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an input whose meaning is known, if it has the usual rank."""
        call = self.call
        shape: tuple[int, ...] | None = None
        dims = self.inputs[name].dims or ()
        if name in self.interface.takers:
            parameter, _, form = self.interface.takers[name]
            if id(form) not in self._steps:
                self._steps[id(form)] = self._step(form)
            step = self._steps[id(form)]
            shape = None if step is None else step.input(parameter).shape
            if parameter == "attention_bias" and shape is not None:
                shape = (*shape[:2], call.new, call.total)
        else:
            widths = dict.fromkeys(("ids", "positions", "types"), call.new) | {"mask": call.total}
            kind = self.interface.kind(name)
            shape = (call.batch, widths[kind]) if kind in widths else None
            if kind == "mask" and len(dims) == 4:
                shape = (call.batch, 1, call.new, call.total)
            if kind == "positions" and len(dims) == 3:  # of time, height and width
                shape = (3, call.batch, call.new)
        return shape if shape is not None and len(shape) == len(dims) else None


def _is_of_encoder(name: str) -> bool:
    """Whether an input belongs to an encoder."""
    return any(word in name and "decoder" not in name for word in _ENCODER)


def tensor_file(array: Array, name: str) -> bytes:
    """The file of a tensor, as runners read it."""
    return bytes(numpy_helper.from_array(array, name).SerializeToString())


def word_of(data_type: int) -> str:
    """The suite's word for a TensorProto type, or its number."""
    return WORD_OF_ONNX.get(
        data_type, f"TensorProto type {data_type}" if data_type else "no tensor"
    )
