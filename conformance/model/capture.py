"""Runs a model with its weights, and keeps the inputs of each of its attention nodes.

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
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import inliner

from conformance.base.array_types import NUMPY, WORD_OF_ONNX, Array
from conformance.base.paths import data_path, shown
from conformance.base.processes import ask
from conformance.base.text import one_line
from conformance.case.given import GivenError, npz_types
from conformance.graph.nodes import AttentionNode
from conformance.graph.reading import ModelError, ReadModel, value_names
from conformance.graph.walks import make_names_safe
from conformance.model.answers import short
from conformance.model.feeds import Feeder, Interface, ProgramCall, tensor_file, word_of
from conformance.model.groups import Group
from conformance.model.outer_norm import has_norm, put_norm_outside

#: The values of all cases together: they are kept twice, and the oracle's in float64 besides.
MOST_BYTES: Final = 2 << 30
#: The largest batch of a user's own inputs.
_MOST_BATCH: Final = 1 << 12
#: The number of rows of a static cache is a multiple of this if the graph leaves it open.
_ROWS: Final = 64
#: The most characters of standard error that are quoted if the process gives no reason.
_MOST_STDERR: Final = 400


class CaptureError(ModelError):
    """The model could not be run; the message gives the reason and the remedy."""


@dataclass(frozen=True)
class PromptTokens:
    """A prompt, and the number of tokens that the model chooses after it."""

    prompt: tuple[int, ...]
    steps: int

    @property
    def total(self) -> int:
        """Tokens in the cache at the end; the last chosen token is not fed."""
        return len(self.prompt) + self.steps


@dataclass(frozen=True)
class Captured:
    """The values that the nodes got in a run.

    ``files`` maps the name of a value to its file in each call; ``constants`` maps the name of a
    constant to its only file. ``ids`` are the tokens that the model chose, ``seconds`` the time for
    loading the model, running it and writing the values, and ``version`` is the version of ONNX
    Runtime.
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
        """The arrays of the constants. Rotary tables can be large, and all layers share them."""
        return {value: _array(file) for value, file in self.constants.items()}


def capturable(
    model: ReadModel, groups: Sequence[Group]
) -> tuple[list[AttentionNode], dict[str, str]]:
    """The nodes whose values can be captured, and for each other node, by name, why not."""
    outside = {*value_names(model.proto.graph)}
    nodes: list[AttentionNode] = []
    faults: dict[str, str] = {}
    for group in groups:
        for node in group.nodes:
            if outside.issuperset((*node.inputs.values(), node.outputs.get("output", ""))):
                nodes.append(node)
            else:
                faults[node.name] = "it is in a subgraph, whose values cannot be captured"
    return sorted(nodes, key=lambda node: node.layer), faults


def capture(
    model: ReadModel,
    nodes: Sequence[AttentionNode],
    interface: Interface,
    tokens: PromptTokens | None,
    folder: Path,
    python: str | None = None,
    given: Path | None = None,
) -> Captured:
    """Run the model and keep the inputs of ``nodes`` in the empty ``folder``.

    ``python`` is the interpreter whose onnxruntime runs it, by default this one. ``given`` is the
    file with the inputs of a single call. Raises :class:`ModelError`.
    """
    graph = model.proto.graph
    values = dict.fromkeys(value for node in nodes for value in node.inputs.values())
    fixed = {tensor.name for tensor in graph.initializer}
    fixed |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
    once = [value for value in values if value in fixed]
    each = [value for value in values if value not in fixed]
    known = {*interface.inputs, *(output.name for output in graph.output)}
    feeds = [*_feeds(interface, tokens, given, folder)]
    plan = {
        "model": str(_file_with(model, values, folder)),
        "append": base64.b64encode(_outputs(v for v in values if v not in known)).decode(),
        "folder": str(model.path.resolve().parent),
        "types": interface.types,
        "feeds": feeds,
        "given": None if given is None else str(given.resolve()),
        "given_names": [] if given is None else [*check_inputs(interface, given)],
        "ids": [name for name in interface.inputs if interface.kind(name) == "ids"],
        "states": interface.states if len(feeds) > 1 else {},
        "logits": interface.logits(),
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
        value: [folder / f"{call}_{index}.pb" for call in range(len(feeds))]
        for index, value in enumerate(each, start=len(once))
    }
    constants = {value: folder / f"0_{index}.pb" for index, value in enumerate(once)}
    return Captured(
        len(feeds), files, constants, answer["ids"], answer["seconds"], answer["version"]
    )


def _feeds(
    interface: Interface, tokens: PromptTokens | None, given: Path | None, folder: Path
) -> Iterator[dict[str, str | None]]:
    """For each call the files with the values of inputs; None for those that the user gives."""
    own = {} if given is None else check_inputs(interface, given)
    batch = next((shape[0] for shape in own.values() if shape), 1)
    if batch > _MOST_BATCH:
        raise CaptureError(f"{given}: a batch of {batch:,}; at most {_MOST_BATCH:,} is run.")
    calls = [ProgramCall("the given inputs", 0, (0,) * batch)]
    if tokens is not None:
        new = [len(tokens.prompt), *[1] * tokens.steps]
        calls = [
            ProgramCall("", n, (total,)) for n, total in zip(new, accumulate(new), strict=True)
        ]
    rows = rows_for(tokens.total if tokens else 0)
    for number, call in enumerate(calls):
        feeder = Feeder(interface, interface.inputs, rows, call)
        files: dict[str, str | None] = {}
        for index, name in enumerate(interface.inputs):
            if name in own or (number and name in interface.states):
                files |= {name: None} if name in own else {}
                continue
            past = interface.is_past(name)
            if not past and (given is not None or interface.kind(name) is None):
                raise _unknown(interface, name, given)
            array = feeder.array(name)
            if interface.kind(name) == "ids" and not number and tokens is not None:
                array[...] = tokens.prompt
            file = folder / f"feed_{number}_{index}.pb"
            _write(file, tensor_file(array, name))
            files[name] = str(file)
        yield files


def rows_for(tokens: int) -> int:
    """Rows of a buffer for this many tokens, if the graph leaves the number of rows open."""
    return -(-tokens // _ROWS) * _ROWS


def _unknown(interface: Interface, name: str, given: Path | None) -> CaptureError:
    if given is not None:
        why = f"there are no values for its input {interface.describe(name)}"
    else:
        why = (
            f"nothing tells what its input {interface.describe(name)} is; give the inputs of one"
            " call with --capture FILE.npz"
        )
    return CaptureError(f"{interface.path}: {why}.")


def check_tokens(model: Interface, tokens: PromptTokens) -> None:
    """Raises :class:`CaptureError` for tokens that are unknown or that cannot be continued."""
    logits = model.logits()
    most = (model.outputs[logits].size(-1) if logits else None) or model.configuration.vocabulary
    wrong = next((i for i in tokens.prompt if most is not None and i >= most), None)
    why = ""
    if wrong is not None:
        why = f"the token {wrong} is not in its vocabulary of {most}, 0 to {(most or 0) - 1}"
    elif tokens.steps and logits is None:
        why = "no output is known to be the logits, so no next token can be chosen; give --steps 0"
    elif tokens.steps:
        pasts = filter(model.is_past, model.inputs)
        lost = next((name for name in pasts if name not in model.states), None)
        if lost is not None:
            why = f"nothing tells which output its input {lost} is in the next call; give --steps 0"
    if why:
        raise CaptureError(f"{model.path}: {why}.")


def check_inputs(model: Interface, file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays in the user's ``file``, which must be inputs of the model.

    Raises :class:`CaptureError`.
    """
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
    for name, (_, dtype) in found.items():
        if name not in model.inputs:
            inputs = ", ".join(model.inputs)
            raise CaptureError(
                f"{shown(file)}: the model has no input {name}; its inputs are {inputs}."
            )
        kind = model.types[name]
        if kind and dtype != onnx.helper.tensor_dtype_to_np_dtype(kind):
            raise CaptureError(
                f"{shown(file)}: {name} is {dtype}; the model takes {word_of(kind)}."
            )
    return {name: shape for name, (shape, _) in found.items()}


def _file_with(model: ReadModel, values: Mapping[str, None], folder: Path) -> Path:
    """The file of the model, or a changed copy if the file cannot be run as it is.

    A copy is needed for nodes in functions, whose values have no names outside, for nodes that
    normalise queries and keys, and for names that are not safe to show.
    """
    in_functions = not model.outside_functions.issuperset(values)
    has_norms = any(map(has_norm, model.proto.graph.node))
    if not in_functions and not has_norms and not model.renamed:
        return model.path.resolve()
    whole = onnx.load(model.path, load_external_data=False)
    make_names_safe(whole)
    if in_functions:
        whole = inliner.inline_local_functions(whole)
    if has_norms:
        put_norm_outside(whole.graph)
    copy = folder / "model.onnx"
    _write(copy, whole.SerializeToString())
    return copy


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise CaptureError(f"Cannot write {file}: {error.strerror}.") from None


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
    last = f": {one_line(said[-1], _MOST_STDERR)}" if said else ""
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
