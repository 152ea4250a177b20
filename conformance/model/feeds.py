"""What a decoder feeds to the inputs of a model: tokens, masks, positions, and the KV cache."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import TensorProto

from conformance.base.array_types import WORD_OF_ONNX
from conformance.base.paths import shown
from conformance.case.call import Call
from conformance.case.tensors import steps_of
from conformance.model.configuration import Configuration
from conformance.model.forms import Form, plain_lengths
from conformance.model.groups import Group
from conformance.model.nodes import AttentionNode
from conformance.model.reading import ModelError, ReadModel
from conformance.model.shapes import Dim, ValueType, types_of

#: Rows of a static cache are a multiple of this where the graph leaves their number open.
_ROWS: Final = 64

#: What the inputs of a decoder are, by the names that exporters give them.
_BY_NAME: Final[Mapping[str, str]] = {
    "input_ids": "ids",
    "decoder_input_ids": "ids",
    "attention_mask": "mask",
    "position_ids": "positions",
    "cache_position": "positions",
    "use_cache_branch": "P",
    "past_seq_len": "P",
    "past_sequence_length": "P",
    "total_seq_len": "T",
    "total_sequence_length": "T",
    "num_logits_to_keep": "one",
    "logits_to_keep": "one",
}
#: What an input is that a node takes directly.
_BY_PARAMETER: Final[Mapping[str, str]] = {
    "seqlens_k": "last",
    "total_sequence_length": "T",
    "position_ids": "positions",
    "query_seqlens": "S",
}
#: The last dims of an input with this fill: S new tokens, T tokens with those before.
_LENGTHS: Final[Mapping[str, str]] = {"ids": "S", "mask": "T", "positions": "S"}
_INTEGERS: Final = (TensorProto.INT32, TensorProto.INT64)
_PASTS: Final = (("past_key", "present_key"), ("past_value", "present_value"))


@dataclass(frozen=True)
class Feed:
    """An input: its TensorProto type, its shape, and what fills it.

    ``S``, ``P`` and ``T`` in ``shape`` are the numbers of new tokens, of those before, and of both.
    ``fill`` is a word of ``runners/onnxruntime/capture.py``.
    """

    type: int
    shape: tuple[int | str, ...]
    fill: str


@dataclass(frozen=True)
class Feeds:
    """The inputs of a model, the output that each past is in the next call, and the logits.

    ``vocabulary`` is the number of tokens that the model knows, None if nothing says it.
    """

    inputs: Mapping[str, Feed]
    states: Mapping[str, str]
    logits: str | None
    vocabulary: int | None


@dataclass(frozen=True)
class Interface:
    """What is known of a model's inputs and outputs.

    ``types`` are the TensorProto types of the inputs. ``takers`` has the attention node that takes
    a value directly, as which of its inputs, and the node's form.
    """

    path: str
    inputs: Mapping[str, ValueType]
    types: Mapping[str, int]
    outputs: Mapping[str, ValueType]
    takers: Mapping[str, tuple[str, AttentionNode, Form]]
    configuration: Configuration


def feeds_of(
    model: Interface, tokens: int, given: Mapping[str, tuple[int, ...]] | None = None
) -> Feeds:
    """The feeds for a sequence that grows to ``tokens`` tokens.

    ``given`` are the inputs that the user gives for one call, with their shapes: only empty pasts
    are then added. Raises :class:`ModelError` for an input of which nothing tells what it is.
    """
    states = states_of(model)
    symbols = dict(_symbols(model))
    feeds: dict[str, Feed] = {}
    unknown: list[str] = []
    for name, declared in model.inputs.items():
        data_type = model.types[name]
        if given is not None and name in given:
            feeds[name] = Feed(data_type, given[name], "given")
        elif name in states or _is_past(model, name):
            batch = next((shape[0] for shape in (given or {}).values() if shape), 1)
            feeds[name] = Feed(data_type, _past(model, name, symbols, tokens, batch), "zeros")
        elif given is None and (fill := fill_of(model, name)) is not None:
            feeds[name] = Feed(data_type, _shape(declared, fill), fill)
        else:
            unknown.append(f"{name} ({_words(declared)})")
    if unknown and given is not None:
        raise ModelError(f"{model.path}: there are no values for its input {unknown[0]}.")
    if unknown:
        raise ModelError(
            f"{model.path}: nothing tells what its input {unknown[0]} is; give the inputs of one"
            " call with --capture FILE.npz."
        )
    logits = _logits(model)
    width = model.outputs[logits].size(-1) if logits else None
    return Feeds(feeds, states, logits, width or model.configuration.vocabulary)


def interface_of(
    model: ReadModel, groups: Sequence[Group], configuration: Configuration
) -> Interface:
    """What the model takes and gives."""
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
            for parameter, value in node.inputs.items()
        },
        configuration=configuration,
    )


def states_of(model: Interface) -> dict[str, str]:
    """Each past with its present: by the nodes, by GenAI's names, and by the usual names."""
    found = {}
    for name in model.inputs:
        present = next((each for each in _presents(model, name) if each in model.outputs), None)
        if present is not None:
            found[name] = present
    return found


def _presents(model: Interface, name: str) -> Iterator[str]:
    if name in model.takers:
        parameter, node, _ = model.takers[name]
        yield node.outputs.get(dict(_PASTS).get(parameter, ""), "")
    names = model.configuration.names
    for what in ("key", "value"):
        pattern = re.escape(names.get(f"past_{what}_names", "")).replace("%d", r"(\d+)")
        found = re.fullmatch(pattern, name) if "(" in pattern else None
        if found is not None:
            yield names.get(f"present_{what}_names", "").replace("%d", found[1])
    if "past" in name:
        yield name.replace("past_key_values", "present")
        yield name.replace("past_key_values", "present_key_values")
        yield name.replace("past", "present")


def _is_past(model: Interface, name: str) -> bool:
    return name in model.takers and model.takers[name][0] in dict(_PASTS)


def _symbols(model: Interface) -> Iterator[tuple[str, int]]:
    """What names of dims stand for, where a node says it."""
    for name, (parameter, _, form) in model.takers.items():
        if parameter in dict(_PASTS) and name in model.inputs:
            for dim, size in zip(model.inputs[name].dims or (), _of_past(form), strict=False):
                if isinstance(dim, str) and size is not None:
                    yield dim, size


def _of_past(form: Form) -> tuple[int | None, int | None, int | None, int | None]:
    """The shape of a node's past, None for what depends on the call."""
    call = Call.model_validate({**form.fields, **plain_lengths(form)})
    past = steps_of(call)[0].input("past_key").shape or (None,) * 4
    return None, past[1], None, past[3]


def _past(
    model: Interface, name: str, symbols: Mapping[str, int], tokens: int, batch: int
) -> tuple[int, ...]:
    """The shape of a past at the start: without tokens, or a buffer for ``tokens`` of them."""
    declared = model.inputs[name]
    rows = 0
    if name in model.takers:
        form = model.takers[name][2]
        if form.cache == "window":
            rows = form.capacity or form.window or 0
        elif form.cache == "static":
            rows = form.capacity or -(-tokens // _ROWS) * _ROWS
        expected = _of_past(form)
    else:
        expected = (None,) * 4
    if declared.dims is None:
        raise ModelError(f"{model.path}: the graph does not say the rank of its input {name}.")
    shape = []
    for axis, dim in enumerate(declared.dims):
        own = expected[axis] if axis < 4 else None
        if isinstance(dim, int):
            shape.append(dim)
        elif axis == 0:
            shape.append(batch)
        elif own is not None:
            shape.append(own)
        elif axis == 2 and name in model.takers:
            shape.append(rows)
        else:
            shape.append(symbols.get(str(dim), 0))
    return tuple(shape)


def fill_of(model: Interface, name: str) -> str | None:
    """What fills an input, None if nothing tells."""
    if name in model.takers and model.takers[name][0] in _BY_PARAMETER:
        return _BY_PARAMETER[model.takers[name][0]]
    words = {own: word for word, own in model.configuration.names.items() if "%d" not in own}
    known = _BY_NAME.get(words.get(name, name))
    return "mask" if known is None and "mask" in name and model.types[name] in _INTEGERS else known


def _shape(declared: ValueType, fill: str) -> tuple[int | str, ...]:
    """The declared shape, with lengths for its open dims and 1 for the batch."""
    dims: Sequence[Dim] = declared.dims if declared.dims is not None else (None, None)
    last = len(dims) - 1
    shape: list[int | str] = []
    for axis, dim in enumerate(dims):
        if isinstance(dim, int):
            shape.append(dim)
        else:
            shape.append(_LENGTHS.get(fill, 1) if axis == last else 1)
    return tuple(shape)


def _logits(model: Interface) -> str | None:
    wanted = model.configuration.names.get("logits", "logits")
    if wanted in model.outputs:
        return wanted
    presents = {name for _, node, _ in model.takers.values() for name in node.outputs.values()}
    others = [
        name
        for name, declared in model.outputs.items()
        if name not in presents and len(declared.dims or ()) == 3
    ]
    return others[0] if len(others) == 1 else None


def _words(declared: ValueType) -> str:
    dims = "" if declared.dims is None else f" {list(declared.dims)}".replace("'", "")
    return f"{declared.dtype or 'of an unknown type'}{dims}"


def word_of(data_type: int) -> str:
    """The suite's word for a TensorProto type, or its number."""
    return WORD_OF_ONNX.get(data_type, f"TensorProto type {data_type}")
