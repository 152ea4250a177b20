"""Runs a model with its weights, and keeps what each of its attention nodes gets.

The model runs in another process, by ``runners/onnxruntime/capture.py``: this package imports no
runtime. The user's files are only read.
"""

from __future__ import annotations

import base64
import json
import math
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import inliner

from conformance.base.array_types import NUMPY, WORD_OF_ONNX
from conformance.base.paths import data_path, shown
from conformance.base.processes import ask
from conformance.case.given import GivenError, npz_types
from conformance.model.answers import short
from conformance.model.feeds import Feeds, Interface, word_of
from conformance.model.groups import Group
from conformance.model.nodes import AttentionNode
from conformance.model.outer_norm import has_norm, put_norm_outside
from conformance.model.reading import ModelError, ReadModel, value_names

#: The values of all cases together: they are kept twice, and the oracle's in float64 besides.
MOST_BYTES: Final = 2 << 30
#: Standard error of the process is told up to here, where it says nothing itself.
_MOST_STDERR: Final = 400

Array = np.ndarray


class CaptureError(ModelError):
    """The model could not be run; the message says why, and what mends it."""


@dataclass(frozen=True)
class Tokens:
    """A prompt, and how many tokens the model chooses after it."""

    prompt: tuple[int, ...]
    steps: int

    @property
    def total(self) -> int:
        """Tokens in the cache at the end: the last one chosen is not fed."""
        return len(self.prompt) + self.steps


@dataclass(frozen=True)
class Captured:
    """What a run passed to the nodes.

    ``files`` maps the name of a value to its file in each call, and ``constants`` to its only one.
    ``ids`` are the tokens that the model chose, ``seconds`` the time for loading it, running it and
    writing the values, and ``version`` that of ONNX Runtime.
    """

    calls: int
    files: Mapping[str, Sequence[Path]]
    constants: Mapping[str, Path]
    ids: Sequence[int]
    seconds: Mapping[str, float]
    version: str

    def inputs(self, node: AttentionNode, call: int) -> dict[str, Array]:
        """The connected inputs of ``node`` in a call, by the operator's names."""
        return {
            parameter: _array(self.files[value][call])
            if value in self.files
            else self._constants[value]
            for parameter, value in node.inputs.items()
        }

    @cached_property
    def _constants(self) -> dict[str, Array]:
        """Rotary tables can be large, and all layers share them."""
        return {value: _array(file) for value, file in self.constants.items()}


def capturable(
    model: ReadModel, groups: Sequence[Group]
) -> tuple[list[AttentionNode], dict[str, str]]:
    """The nodes whose values can be captured, and why others cannot, by their names."""
    outside = {*value_names(model.proto.graph)}
    nodes: list[AttentionNode] = []
    faults: dict[str, str] = {}
    for group in groups:
        for node in group.nodes:
            if outside.issuperset((*node.inputs.values(), node.outputs["output"])):
                nodes.append(node)
            else:
                faults[node.name] = "it is in a subgraph, whose values cannot be captured"
    return sorted(nodes, key=lambda node: node.layer), faults


def check_weights(model: ReadModel) -> None:
    """Raises :class:`CaptureError` if a file with weights is not there, or too short."""
    needed: dict[str, int] = {}
    for tensor in model.proto.graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if "location" in where:
            place = (where.get(key, "") for key in ("offset", "length"))
            end = sum(int(text) for text in place if text.isdecimal())
            needed[where["location"]] = max(needed.get(where["location"], 0), end)
    for name, size in needed.items():
        file = model.path.parent / name
        if not file.is_file():
            raise CaptureError(
                f"{shown(model.path)}: the external data {name} is not there; to run the model, its"
                " weights are needed."
            )
        if file.stat().st_size < size:
            raise CaptureError(
                f"{shown(file)}: has {file.stat().st_size} bytes, and the model's weights need"
                f" {size}; it is of another model, or cut off."
            )


def capture(
    model: ReadModel,
    nodes: Sequence[AttentionNode],
    feeds: Feeds,
    tokens: Tokens | None,
    folder: Path,
    python: str | None = None,
    given: Path | None = None,
) -> Captured:
    """Runs the model and keeps what ``nodes`` get in the empty ``folder``.

    ``python`` is the interpreter whose onnxruntime runs it, by default this one. ``given`` is the
    file with the inputs of a single call. Raises :class:`CaptureError`.
    """
    graph = model.proto.graph
    values = dict.fromkeys(value for node in nodes for value in node.inputs.values())
    fixed = {tensor.name for tensor in graph.initializer}
    fixed |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    once = [value for value in values if value in fixed]
    each = [value for value in values if value not in fixed]
    known = {*feeds.inputs, *(output.name for output in graph.output)}
    calls = 1 if tokens is None else tokens.steps + 1
    plan = {
        "model": str(_file_with(model, values, folder)),
        "append": base64.b64encode(_outputs(v for v in values if v not in known)).decode(),
        "folder": str(model.path.resolve().parent),
        "feeds": {name: feed.__dict__ for name, feed in feeds.inputs.items()},
        "given": None if given is None else str(given.resolve()),
        "ids": [] if tokens is None else tokens.prompt,
        "steps": calls - 1,
        "states": feeds.states if calls > 1 else {},
        "logits": feeds.logits,
        "once": once,
        "each": each,
        "out": str(folder),
    }
    answer = _answer(plan, python or sys.executable)
    if answer["outcome"] == "unavailable":
        fix = f"\n  fix: {answer['fix']}" if answer["fix"] else ""
        raise CaptureError(f"The model cannot be run: {answer['reason']}{fix}")
    if answer["outcome"] == "failed":
        raise CaptureError(_failure(model, answer["place"], answer["message"], folder))
    files = {
        value: [folder / f"{call}_{index}.pb" for call in range(calls)]
        for index, value in enumerate(each, start=len(once))
    }
    constants = {value: folder / f"0_{index}.pb" for index, value in enumerate(once)}
    return Captured(calls, files, constants, answer["ids"], answer["seconds"], answer["version"])


def check_tokens(model: ReadModel, feeds: Feeds, tokens: Tokens) -> None:
    """Raises :class:`CaptureError` for tokens that are unknown, or that cannot be gone on from."""
    most = feeds.vocabulary
    wrong = next((i for i in tokens.prompt if most is not None and i >= most), None)
    if wrong is not None:
        raise CaptureError(
            f"{shown(model.path)}: the token {wrong} is not in its vocabulary of {most}, 0 to"
            f" {(most or 0) - 1}."
        )
    if tokens.steps and feeds.logits is None:
        raise CaptureError(
            f"{shown(model.path)}: no output is known to be the logits, so no next token can be"
            " chosen; give --steps 0."
        )
    pasts = [name for name, feed in feeds.inputs.items() if feed.fill == "zeros"]
    lost = next((name for name in pasts if name not in feeds.states), None)
    if tokens.steps and lost is not None:
        raise CaptureError(
            f"{shown(model.path)}: nothing tells which output its input {lost} is in the next call;"
            " give --steps 0."
        )


def check_inputs(model: Interface, file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in the user's ``file``, which must fit the model's inputs.

    Raises :class:`CaptureError`.
    """
    declared, types = model.inputs, model.types
    try:
        found = npz_types(file)
    except GivenError as error:
        raise CaptureError(f"{error}.") from None
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in found.values())
    if size > MOST_BYTES:
        raise CaptureError(
            f"{shown(file)}: its arrays have {size / 2**30:.3g} GiB, and at most"
            f" {MOST_BYTES / 2**30:.3g} GiB are read."
        )
    for name, (shape, dtype) in found.items():
        if name not in declared:
            raise CaptureError(
                f"{shown(file)}: the model has no input {name}; its inputs are"
                f" {', '.join(declared)}."
            )
        if types[name] and dtype != onnx.helper.tensor_dtype_to_np_dtype(types[name]):
            raise CaptureError(
                f"{shown(file)}: {name} is {dtype}; the model takes {word_of(types[name])}."
            )
        dims = declared[name].dims
        fits = dims is None or (
            len(dims) == len(shape)
            and all(
                not isinstance(dim, int) or dim == size
                for dim, size in zip(dims, shape, strict=True)
            )
        )
        if not fits:
            raise CaptureError(
                f"{shown(file)}: {name} has the shape {list(shape)}; the model takes"
                f" {list(dims or ())}.".replace("'", "")
            )
    return {name: shape for name, (shape, _) in found.items()}


def _file_with(model: ReadModel, values: Mapping[str, None], folder: Path) -> Path:
    """The file of the model, or a copy where that cannot be run as it is.

    That is so for nodes in functions, whose values have no names outside, and for nodes that
    normalise queries and keys.
    """
    in_functions = not model.outside_functions.issuperset(values)
    has_norms = any(map(has_norm, model.proto.graph.node))
    if not in_functions and not has_norms:
        return model.path.resolve()
    whole = onnx.load(model.path, load_external_data=False)
    if in_functions:
        whole = inliner.inline_local_functions(whole)
    if has_norms:
        put_norm_outside(whole.graph)
    copy = folder / "model.onnx"
    try:
        copy.write_bytes(whole.SerializeToString())
    except OSError as error:
        raise CaptureError(f"Cannot write {copy}: {error.strerror}.") from None
    return copy


def _outputs(values: Iterator[str]) -> bytes:
    """A serialized model that has these outputs and nothing else."""
    outputs = [onnx.ValueInfoProto(name=value) for value in values]
    return bytes(onnx.ModelProto(graph=onnx.GraphProto(output=outputs)).SerializeToString())


def _answer(plan: Mapping[str, Any], python: str) -> dict[str, Any]:
    program = data_path("runners") / "onnxruntime" / "capture.py"
    try:
        done = ask((python, program), given=json.dumps(plan).encode())
    except OSError as error:
        raise CaptureError(f"{python} cannot be started: {error.strerror}.") from None
    if done.returncode == 0:
        with suppress(ValueError):
            answer: dict[str, Any] = json.loads(done.stdout)
            return answer
    said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
    last = f": {said[-1][:_MOST_STDERR]}" if said else ""
    how = f"exit status {done.returncode}"
    if done.returncode < 0:
        how = f"a crash, {signal.Signals(-done.returncode).name}"
        if done.returncode == -signal.SIGKILL:
            how += ", perhaps since memory was short"
    raise CaptureError(f"The process that ran the model, of {python}, ended with {how}{last}.")


def _failure(model: ReadModel, place: str, message: str, folder: Path) -> str:
    if place == "write":
        return f"The captured values cannot be written to {folder}: {message}."
    where = "cannot load it" if place == "load" else f"fails in its call {int(place) + 1}"
    return f"{shown(model.path)}: ONNX Runtime {where}: {short(message)}"


def _array(file: Path) -> Array:
    tensor = onnx.load_tensor(str(file))
    dtype = NUMPY[WORD_OF_ONNX[tensor.data_type]]
    return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
