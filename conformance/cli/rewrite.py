"""``gqa rewrite``: a model in standard operators, for runtimes that do not take the operator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import click
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper

from conformance.base.paths import shown
from conformance.base.text import visible
from conformance.base.words import plural
from conformance.cli.common import BadArgument, Status, check_separate, check_writable, write_file
from conformance.graph.reading import ModelError, as_model_errors, read_model
from conformance.results.results_error import ResultsError
from conformance.rewriting.dense import CannotRewrite
from conformance.rewriting.standard import StandardModel, standard_model


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="File to write; in the folder of the model, it uses the same external data.",
)
@click.option("--copy-data", is_flag=True, help="Copy external data into the folder of the output.")
def rewrite(model: Path, output: Path, copy_data: bool) -> int:
    """Write your model in ONNX's standard operators instead.

    For a runtime that refuses the operator, or computes it wrong. Each node becomes products, a
    softmax and what else it needs, in the operators of ONNX's operator set 13, which all runtimes
    have: borrowed, growing and static caches, batches of different lengths, windows, biases, sinks,
    rotary positions, norms and caches of int8 and 4 bits. Weights, names, inputs and outputs stay.
    It is slower than a runtime's own kernel.

    \b
    Exit status: 0 every node was rewritten   1 some were left   2 bad input   3 cannot be written
    """
    path = read_model(model).path
    check_separate([path], [("--output", output)])
    check_writable(output, "the model")
    with as_model_errors(path):
        proto = onnx.ModelProto.FromString(path.read_bytes())
        try:
            made = standard_model(proto)
        except CannotRewrite as error:
            raise ModelError(f"{shown(path)}: {error}") from None
        if not made.rewritten and not made.left:
            raise ModelError(f"{shown(path)}: it has no GroupQueryAttention.")
        if not _fault(proto) and (fault := _fault(made.model)):
            raise ModelError(f"{shown(path)}: its form in standard operators is invalid: {fault}.")
    data = sorted({*_external_files(made.model)})
    if copy_data:
        _copy(data, path.parent, output.parent)
    write_file(output, "the model", made.model.SerializeToString())
    for line in _said(made, output):
        click.echo(line)
    if data and not copy_data and output.parent.resolve() != path.parent.resolve():
        names = ", ".join(map(visible, data))
        click.echo(f"Beside it must lie {names}, from {shown(path.parent)}: --copy-data copies.")
    return Status.UNEXPECTED if made.left else Status.AS_EXPECTED


def _said(made: StandardModel, output: Path) -> Iterator[str]:
    yield f"Rewritten: {plural(len(made.rewritten), 'node')}"
    for name, why in made.left:
        yield f"Left:      {visible(name)}: {visible(why)}"
    yield f"Model:     {output}"


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Every tensor in a message."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                yield from _tensors(each)


def _external_files(model: onnx.ModelProto) -> Iterator[str]:
    """The files with external data, relative to the model's folder."""
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from (each.value for each in tensor.external_data if each.key == "location")


def _fault(model: onnx.ModelProto) -> str:
    """What ONNX's checker says against the model, which may have operators that it does not know;
    "" if nothing."""
    try:
        onnx.checker.check_model(_without_weights(model))
    except onnx.checker.ValidationError as error:
        return str(error).splitlines()[0]
    return ""


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with inputs in place of weights, whose data the checker would look for."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    given = {each.name for each in light.graph.input}
    light.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in light.graph.initializer
        if each.name not in given
    )
    del light.graph.initializer[:]
    return light


def _copy(names: list[str], source: Path, folder: Path) -> None:
    """Copy files of external data. A model of a stranger may name a file in another folder."""
    for name in names:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not (source / place).is_file():
            raise BadArgument(f"Its external data {visible(name)} is no file beside the model.")
        if (source / place).resolve() == (folder / place).resolve():
            continue
        try:
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / place, folder / place)
        except OSError as error:
            raise ResultsError(f"Cannot copy {visible(name)}: {error.strerror}.") from None
