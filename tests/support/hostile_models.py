"""Exported graphs and small models, changed as no exporter changes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import onnx
from attention_models import GEMMA, Layer, decoder
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto

from conformance.base.paths import data_path

#: What a text that leaves its place begins a line with.
MARK: Final = "EVIL"
TEXTS: Final = (
    *(f"x\n  fix: {MARK}", f"\n{MARK}", f"\r\n{MARK}\r", f"\x1b[1A\x1b[2K{MARK}", f"\u2028{MARK}"),
    *(f"x\x85{MARK}\x0b{MARK}", "[/red][bold]x", "%s%n{0}", "../../x", "-" * 9, "", "\u202e"),
    *(f"model.layers.{'9' * 5000}.attn", "x" * 100_000, "\x00", f"key\n{MARK}\n", "' or \"", "é\t"),
    *("past_key_values.-1.key", "layers.٣", "layers." + "0" * 40, "input_ids", "present", "//"),
)
#: A configuration beside the model, whose texts are strange.
CONFIGURATION: Final = {
    "model_type": f"gemma3\n  fix: {MARK}",
    "architectures": [f"x\n{MARK}"],
    "num_hidden_layers": 10**9,
    "head_dim": f"\n{MARK}",
    "sliding_window": 1e400,
    "layer_types": [f"\n{MARK}", None],
    f"\n{MARK}": f"\n{MARK}",
}


NUMBERS = (0, 1, -1, 3, 1500, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38)
ODD_TEXTS = ("", "a\0b", "é", "x" * 5000, "[red]", "com.microsoft", "If", "hidden")


def graphs() -> list[bytes]:
    shipped = sorted((data_path("cases") / "exported" / "graphs").rglob("*.onnx"))
    small = [file.read_bytes() for file in shipped if file.stat().st_size < 20_000]
    return [*small, decoder(*GEMMA).SerializeToString(), decoder(Layer()).SerializeToString()]


def parts(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if hasattr(value, "append") else [value]:
                yield from parts(part)


def change_field(message: Message, chance: random.Random) -> None:
    """One field of a part of the message gets another value, or goes."""
    part = chance.choice([*parts(message)])
    present = [field for field, _ in part.ListFields()]
    if not present:
        return
    field = chance.choice(present)
    value = getattr(part, field.name)
    kinds = FieldDescriptor
    values = {
        kinds.TYPE_STRING: ODD_TEXTS,
        kinds.TYPE_FLOAT: FLOATS,
        kinds.TYPE_INT64: NUMBERS,
        kinds.TYPE_INT32: (0, 1, 7, 99, -1),
        kinds.TYPE_ENUM: field.enum_type and [each.number for each in field.enum_type.values],
    }.get(field.type)
    if values is None or chance.random() < 0.2:
        if hasattr(value, "append") and len(value) and chance.random() < 0.7:
            del value[chance.randrange(len(value))]
        else:
            part.ClearField(field.name)
    elif hasattr(value, "append"):
        value[chance.randrange(len(value))] = chance.choice(values)
    else:
        setattr(part, field.name, chance.choice(values))


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """The model with other bits, cut off, with noise in it, or with other values in its fields."""
    how = chance.randrange(4)
    if how == 0:
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return bytes(content)
    if how == 1:
        at = chance.randrange(len(whole))
        return whole[:at] + chance.choice((b"", chance.randbytes(90) + whole[at:]))
    model = onnx.ModelProto.FromString(whole)
    for _ in range(chance.choice((1, 1, 2, 4))):
        change_field(model, chance)
    return bytes(model.SerializeToString())


def renamed(model: onnx.ModelProto, chance: random.Random) -> None:
    """Give names of the model strange ones: a few fields, or a value wherever it is named."""
    fields = [
        (part, field)
        for part in parts(model)
        for field, _ in part.ListFields()
        if field.type == FieldDescriptor.TYPE_STRING
    ]
    names = {text for part, field in fields for text in texts(part, field)}
    old = chance.choice(sorted(names))
    everywhere = chance.random() < 0.6
    new = {old: chance.choice(TEXTS)} if everywhere else {}
    for part, field in fields:
        value = getattr(part, field.name)
        change = chance.random() < 0.1
        made = [
            chance.choice(TEXTS) if change and not new else new.get(t, t)
            for t in texts(part, field)
        ]
        if isinstance(value, str):
            setattr(part, field.name, made[0])
        else:
            value[:] = made


def texts(part: Message, field: FieldDescriptor) -> list[str]:
    value = getattr(part, field.name)
    return [value] if isinstance(value, str) else [*value]


def doubled(model: onnx.ModelProto, chance: random.Random) -> None:
    """Nodes, inputs, outputs or initialisers twice, or many times."""
    graph = model.graph
    kind = chance.choice(("node", "input", "output", "initializer", "value_info"))
    each = getattr(graph, kind)
    for _ in range(chance.choice((1, 2, 60))):
        if each:
            each.append(chance.choice(each))


def odd_initializer(model: onnx.ModelProto, chance: random.Random) -> None:
    """An initialiser whose data is not what its dims say, or is elsewhere."""
    graph = model.graph
    if not graph.initializer or chance.random() < 0.3:
        names = [name for node in graph.node for name in node.input if name]
        graph.initializer.append(TensorProto(name=chance.choice(names), data_type=7, dims=[2]))
    tensor = chance.choice(graph.initializer)
    for _ in range(chance.choice((1, 2))):
        match chance.randrange(6):
            case 0:
                tensor.dims[:] = chance.choice(
                    ([], [0], [-1], [2**62, 2**62], [2**40], [1] * 300, [3, -(2**63)])
                )
            case 1:
                tensor.raw_data = chance.randbytes(chance.choice((0, 1, 7, 8, 4096)))
            case 2:
                tensor.data_type = chance.choice((0, 1, 7, 8, 9, 14, 16, 20, 22, 99, -5))
            case 3:
                tensor.int64_data[:] = [chance.choice((-(2**63), 0, 2**63 - 1))] * chance.choice(
                    (0, 1, 9)
                )
            case 4:
                tensor.data_location = TensorProto.EXTERNAL
                where = (
                    "../../../etc/passwd",
                    "/etc/passwd",
                    "/dev/zero",
                    "x\n" + MARK,
                    "",
                    "gone",
                    "/dev/stdin",
                    ".",
                )
                for key, value in (
                    ("location", chance.choice(where)),
                    ("offset", chance.choice(("0", "-1", "9" * 5000, "x"))),
                    ("length", chance.choice(("0", "-1", "9" * 5000, "1e9"))),
                ):
                    tensor.external_data.add(key=key, value=value)
            case _:
                tensor.ClearField("raw_data")


def mutant(wholes: list[bytes], seed: int) -> bytes:
    """One of ``wholes``, changed as ``seed`` says."""
    chance = random.Random(seed)
    whole = chance.choice(wholes)
    how: list[Callable[[onnx.ModelProto, random.Random], None]] = [
        renamed,
        doubled,
        odd_initializer,
    ]
    if chance.random() < 0.3:
        return damaged(whole, chance)
    model = onnx.ModelProto.FromString(whole)
    for _ in range(chance.choice((1, 1, 2, 3))):
        chance.choice(how)(model, chance)
    return bytes(model.SerializeToString())


def write(folder: Path, wholes: list[bytes], seed: int) -> Path:
    """A mutant as a file, at times with a configuration beside it."""
    file = folder / "model.onnx"
    file.write_bytes(mutant(wholes, seed))
    beside = folder / "config.json"
    beside.unlink(missing_ok=True)
    if seed % 5 == 0:
        beside.write_text(json.dumps(CONFIGURATION), encoding="utf-8")
    return file


__all__ = ["MARK", "graphs", "mutant", "write"]
