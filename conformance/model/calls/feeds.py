"""The values that a program gives to a model's inputs: tokens, masks, positions, KV caches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from onnx import TensorProto, numpy_helper

from conformance.base.array_types import NUMPY, WORD_OF_ONNX, Array
from conformance.base.paths import shown
from conformance.case.steps import steps_of
from conformance.graph.nodes import AttentionNode
from conformance.graph.reading import ModelError, ReadModel
from conformance.graph.shapes import ValueType, types_of
from conformance.model.calls.forms import Form
from conformance.model.calls.groups import Group
from conformance.model.config.configuration import Configuration
from conformance.model.run.skeleton import rotary_table
from conformance.operator.call import checked_call

#: The meaning of a decoder's inputs, by the names that exporters give them.
_BY_NAME: Final[Mapping[str, str]] = {
    "input_ids": "ids",
    "decoder_input_ids": "ids",
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
}
#: The meaning of an input of integers, by the first of these words that its name contains.
_IN_NAME: Final = {
    "encoder_attention_mask": "one",
    "type": "zero",
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
#: The number of different tokens; the tokens after them repeat.
_TOKENS: Final = 7


class CannotFeed(ModelError):
    """The meaning of an input is unknown; the message names the input."""


@dataclass(frozen=True)
class ProgramCall:
    """One call with ``new`` tokens for each sequence; sequence b has ``totals[b]`` tokens after it.

    The shorter sequences of a prompt are padded at the right, or, with ``left``, at the left. All
    sequences have the same tokens, in all calls; ``equal``: each token is the first one.
    """

    words: str
    new: int
    totals: tuple[int, ...]
    equal: bool = False
    left: bool = False

    @property
    def total(self) -> int:
        """Tokens of the longest sequence after the call."""
        return max(self.totals)

    @property
    def past(self) -> int:
        """Rows of a growing past: the tokens before the call."""
        return self.total - self.new

    @property
    def starts(self) -> tuple[int, ...]:
        """The position of the first new token of each sequence, negative for padding."""
        least = -self.new if self.left else 0
        return tuple(max(total - self.new, least) for total in self.totals)

    @property
    def positions(self) -> Array:
        """The position of each token, [batch, new]."""
        return np.asarray(self.starts)[:, None] + np.arange(self.new)

    @property
    def tokens(self) -> Array:
        """The index of each token among the different ones, [batch, new]."""
        return self.positions % (1 if self.equal else _TOKENS)

    @property
    def padding(self) -> Array:
        """Which tokens are padding, [batch, new]."""
        return (self.positions < 0) | (self.positions >= np.asarray(self.totals)[:, None])


@dataclass(frozen=True)
class Interface:
    """What is known about a model's inputs and outputs.

    ``types`` are the TensorProto types of the inputs. ``takers`` maps a value to the attention node
    that takes it directly, the input of the node that it is, and the node's form.
    """

    path: str
    inputs: Mapping[str, ValueType]
    types: Mapping[str, int]
    outputs: Mapping[str, ValueType]
    takers: Mapping[str, tuple[str, AttentionNode, Form]]
    configuration: Configuration

    @cached_property
    def states(self) -> Mapping[str, str]:
        """Maps each past to its present.

        They are matched by GenAI's names, by the usual names, and by the nodes; the remaining ones
        if one name contains the other, or if only one of each is left.
        """
        found: dict[str, str] = {}
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
            alike = [each for each in left if name in each or each in name]
            if len(alike) == 1 or len(caches) == len(left) == 1:
                found[name] = (alike or left)[0]
        return found

    @cached_property
    def loses_caches(self) -> bool:
        """Whether an input can be a cache that no output continues."""
        return any(self.is_cache(name) and name not in self.states for name in self.inputs)

    def is_cache(self, name: str) -> bool:
        """Whether an input of unknown meaning can be a cache.

        It can if it has four dims, or is a state of a fixed size that is the size of an output,
        too.
        """
        dims = self.inputs[name].dims or ()
        sizes = [other.dims[1:] for other in self.outputs.values() if other.dims]
        state = len(dims) > 2 and dims[1:] in sizes and all(isinstance(d, int) for d in dims[1:])
        return name not in self.takers and (len(dims) > 3 or state)

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

    def is_past(self, name: str) -> bool:
        """Whether an input is a cache that is empty when a program starts."""
        borrowed = name in self.takers and self.takers[name][2].borrows
        return name in self.states or (self.taken_as(name) in _PASTS and not borrowed)

    def kind(self, name: str) -> str | None:
        """The meaning of an input, None if it is unknown."""
        if self.taken_as(name) in _BY_PARAMETER:
            return _BY_PARAMETER[self.taken_as(name)]
        words = {own: word for word, own in self.configuration.names.items() if "%d" not in own}
        known = _BY_WORD.get(words[name]) if name in words else _BY_NAME.get(name)
        integers = WORD_OF_ONNX.get(self.types.get(name, 0)) in ("int32", "int64")
        if known is None and integers:
            alike = (kind for word, kind in _IN_NAME.items() if word in name.lower())
            known = next(alike, None)
        return known

    def logits(self) -> str | None:
        """The output that gives the next token."""
        wanted = self.configuration.names.get("logits", "logits")
        if wanted in self.outputs:
            return wanted
        presents = {name for _, node, _ in self.takers.values() for name in node.outputs.values()}
        of_rank_3 = {name for name, known in self.outputs.items() if len(known.dims or ()) == 3}
        others = of_rank_3 - presents
        return others.pop() if len(others) == 1 else None

    def describe(self, name: str) -> str:
        """``pixels (float32 [batch, 3])``."""
        known = self.inputs.get(name, ValueType())
        dims = "" if known.dims is None else f" {list(known.dims)}".replace("'", "")
        return f"{name} ({known.dtype or word_of(self.types.get(name, 0))}{dims})"


def interface_of(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Interface:
    """The inputs and outputs of the model."""
    graph = model.inferred[0].graph
    types = types_of(graph)
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constants]
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
    )


@dataclass(frozen=True)
class Feeder:
    """Gives the ``inputs`` of a model, or of a part of it, their values in a ``call``.

    ``rows`` is the number of rows of a buffer whose size the graph leaves open.
    """

    interface: Interface
    inputs: Mapping[str, ValueType]
    rows: int
    call: ProgramCall

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
        call = self.call
        declared, kind = self.inputs[name], self.interface.kind(name)
        data_type = self.interface.types.get(name, 0)
        if declared.dtype is None and data_type != TensorProto.BOOL:
            raise CannotFeed(
                f"its input {name} is {word_of(data_type)}, which no runner can pass on"
            )
        whole = declared.dtype is None or NUMPY[declared.dtype].kind in "iu"
        known = kind or name in self.interface.takers or self.interface.is_past(name)
        if whole and not known:
            raise CannotFeed(f"nothing tells what its input {name} is")
        dtype = np.dtype(bool) if declared.dtype is None else NUMPY[declared.dtype]
        array = np.zeros(self._shape(name), dtype)
        numbers = {"past": call.past, "total": call.total, "new": call.new, "one": 1, "zero": 0}
        if kind == "ids":
            array[...] = np.resize(self._ids(), array.shape)
        elif kind == "mask":
            array[..., : call.total] = 1
            for row, total in enumerate(call.totals[: len(array) if array.ndim > 1 else 0]):
                padding = slice(call.total - total) if call.left else slice(total, call.total)
                array[row, ..., padding] = 0
        elif kind == "positions":
            if array.shape[-2:] == call.positions.shape:  # there may be several kinds of them
                array[...] = np.maximum(call.positions, 0)
            else:
                array[...] = call.past + np.arange(
                    call.new if array.shape[-1:] == (call.new,) else 1
                )
        elif kind == "last":
            lasts = np.asarray(call.totals, array.dtype) - 1
            array[...] = lasts.reshape(array.shape) if array.size == lasts.size else call.total - 1
        elif kind is not None:
            array[...] = numbers[kind]
        elif not self.interface.is_past(name):
            self._draw(name, array)
        return array

    def _ids(self) -> Array:
        """The tokens of a call, [batch, new], with the padding token of the configuration."""
        padding = self.interface.configuration.padding or 0
        ids = self.call.tokens + 1
        return np.where(self.call.padding, padding, np.where(ids == padding, 0, ids))

    def _draw(self, name: str, array: Array) -> None:
        """Fill an input with random numbers: the same in each call, and for equal tokens."""
        call = self.call
        parameter = self.interface.taken_as(name)
        if parameter in _TABLES:
            array[...] = rotary_table(array.shape[0], array.shape[1], parameter)
        elif parameter in ("k_scale", "v_scale"):
            array[...] = 0.01
        elif parameter not in _PASTS:
            draws = np.random.default_rng([*name.encode()])
            is_bias = array.ndim == 4 and array.shape[2:] == (call.new, call.total)
            if is_bias:  # or a mask
                keys = np.arange(call.total) % (1 if call.equal else _TOKENS)
                bias = draws.uniform(-1, 1, (_TOKENS, _TOKENS))[call.tokens][..., keys]
                array[...] = bias[: len(array), None]
            elif array.shape[:2] == call.tokens.shape:
                array[...] = draws.uniform(-1, 1, (_TOKENS, *array.shape[2:]))[call.tokens]
            else:
                batch = array.ndim > 1 and len(array) == len(call.totals)
                array[...] = draws.uniform(-1, 1, array.shape[1 if batch else 0 :])

    def _shape(self, name: str) -> tuple[int, ...]:
        call = self.call
        declared, batch = self.inputs[name].dims, len(call.totals)
        if declared is None:
            raise CannotFeed(f"the rank of its input {name} is not declared")
        known: tuple[int | None, ...] = self._known_shapes[name] or (None,) * len(declared)
        if self.interface.taken_as(name) == "total_sequence_length":
            known = tuple(
                self._symbols.get(str(dim), own) for dim, own in zip(declared, known, strict=True)
            )
        encoder = any(word in name and "decoder" not in name for word in _ENCODER)
        tokens = _FRAMES if encoder else call.new
        words = (
            *((word, _FRAMES) for word in _ENCODER),
            *(("past", call.past), ("total", call.total), ("batch", batch)),
        )
        shape = []
        for axis, (dim, own) in enumerate(zip(declared, known, strict=True)):
            usual = (batch, tokens)[axis] if axis < max(1, min(2, len(declared) - 1)) else None
            named = next((size for word, size in words if word in str(dim).lower()), usual)
            # A mask may call its columns as embeddings call their tokens.
            embeds = len(declared) == 3 and name not in self.interface.takers
            found = (dim, own, *([named] if embeds else []), self._symbols.get(str(dim)), named)
            size = next((each for each in found if isinstance(each, int)), None)
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

    def _known_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an input whose meaning is known, if it has the usual rank."""
        call = self.call
        shape: tuple[int, ...] | None = None
        dims = self.inputs[name].dims or ()
        if name in self.interface.takers:
            parameter, _, form = self.interface.takers[name]
            fields = form.lengths(call.new, call.totals, form.rows(call.new, call.total, self.rows))
            try:
                step = steps_of(checked_call({**form.fields, **fields}))[0]
                shape = step.input(parameter).shape
            except ValueError:  # the node has no such call: the target says so
                shape = None
        else:
            widths = {"ids": call.new, "positions": call.new, "mask": call.total}
            kind = self.interface.kind(name)
            shape = (len(call.totals), widths[kind]) if kind in widths else None
            if kind == "positions" and len(dims) == 3:  # of time, height and width
                shape = (3, len(call.totals), call.new)
        return shape if shape is not None and len(shape) == len(dims) else None


def tensor_file(array: Array, name: str) -> bytes:
    """The file of a tensor, as runners read it."""
    return bytes(numpy_helper.from_array(array, name).SerializeToString())


def word_of(data_type: int) -> str:
    """The suite's word for a TensorProto type, or its number."""
    return WORD_OF_ONNX.get(
        data_type, f"TensorProto type {data_type}" if data_type else "no tensor"
    )
