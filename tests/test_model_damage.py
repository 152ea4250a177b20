"""Whatever a model says of itself, its reading ends in an answer or in one sentence."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import onnx
import pytest
from attention_models import GEMMA, Layer, decoder, saved
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from conformance.base.explain import reason_of
from conformance.base.paths import data_path
from conformance.case.load import load_file
from conformance.cli.check import write_cases
from conformance.model.reading import ModelError, told_of
from conformance.model.stages import Lengths
from conformance.model.subject import subject_of

NUMBERS = (0, 1, -1, 3, 1500, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -1.0, float("nan"), float("inf"), 1e38)
TEXTS = ("", "a\0b", "é", "x" * 5000, "[red]", "com.microsoft", "If", "hidden")
#: Seconds after which a model is taken for one that hangs.
PATIENCE = 60


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


def late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_model_is_an_answer_or_a_sentence(tmp_path: Path, seed: int) -> None:
    chance, whole = random.Random(seed), graphs()
    before = signal.signal(signal.SIGALRM, late)
    said: list[str] = []
    answers = 0
    try:
        for _ in range(30):
            file = tmp_path / "model.onnx"
            file.write_bytes(damaged(chance.choice(whole), chance))
            signal.alarm(PATIENCE)
            try:
                subject = subject_of(file, Lengths())
            except ModelError as error:
                said.append(str(error))
                continue
            write_cases(tmp_path / "cases.yaml", subject.files)
            assert load_file(tmp_path / "cases.yaml")
            answers += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert answers
    assert [each for each in said if str(tmp_path) not in each or "Error in " in each] == []


def test_an_error_that_nobody_foresaw_says_where_it_was_raised(tmp_path: Path) -> None:
    """So a fault of the suite is not taken for one of the model."""
    with pytest.raises(ModelError) as caught, told_of(tmp_path / "model.onnx"):
        print({}["past_key"])
    assert caught.match(
        r"cannot be understood: 'past_key' \(KeyError in test_model_damage.py, line \d+\)\.$"
    )
    assert isinstance(caught.value.__cause__, KeyError)
    assert reason_of(ModelError("it is empty")) == "it is empty"


def test_sizes_that_no_tensor_has_are_told_of_the_node(tmp_path: Path) -> None:
    model = decoder(Layer(size=1 << 31))
    with pytest.raises(
        ModelError, match=r"GroupQueryAttention: head_size 2147483648: Input should be less"
    ):
        subject_of(saved(model, tmp_path), Lengths())
