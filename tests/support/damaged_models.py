"""Models with bits, bytes or fields changed at random."""

from __future__ import annotations

import random
from collections.abc import Iterator

import onnx
from attention_models import GEMMA, Layer, decoder
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from conformance.base.paths import data_path

NUMBERS = (0, 1, -1, 3, 1500, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))


FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38)


TEXTS = ("", "a\0b", "é", "x" * 5000, "[red]", "com.microsoft", "If", "hidden")


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
        kinds.TYPE_STRING: TEXTS,
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
