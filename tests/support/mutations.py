"""A results file with everything in it, and what can happen to one."""

from __future__ import annotations

import copy
import json
import lzma
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from reported import HOSTILE
from synthetic_runs import case, error, expected, result, target, write

from conformance.base.paths import data_path
from conformance.case.load import load_file
from conformance.results.descriptions import case_record
from conformance.results.records import (
    RECORD_LINE,
    BeyondBudget,
    ErrorMap,
    HeadMap,
    InfrastructureRecord,
    InstabilityRecord,
    RelationBroken,
    RelationRecord,
    RunsDiffer,
    TargetDescription,
    UncalledParts,
    WrongDtype,
    WrongShape,
)
from conformance.results.verdicts import VERDICTS


def whole(path: Path) -> Path:
    """A results file with each kind of record and field, and the recipes of real cases."""
    shipped = [case_record(each) for each in load_file(data_path("cases") / "smoke.yaml")][:8]
    cases = [*shipped, case(), case("decode/one_token")]
    numbers = {"index": (0, 1, 2), "got": 1.5, "budget": 1e-6, "share": 9.0}
    faults = (
        RunsDiffer(output="output"),
        WrongDtype(output="output", got="float16", want="float32"),
        WrongShape(output="present_key", step=1, got=(1, 2), want=(1, 3)),
        BeyondBudget(output="output", want=float("nan"), **numbers),
        RelationBroken(output="output", name="packed_qkv", other=2.0, **numbers),
    )
    head = HeadMap(batch=0, head=1, rows=("0X", ".."), tokens=2, elements=2)
    edges = {"end": (3, 2), "window": (0, 1)}
    mapped = ErrorMap(
        rows=("019.", "...."), heads=2, positions=4, lengths=(4, 3), edges=edges, worst=head
    )
    where = error(where=mapped)
    relation = RelationRecord(name="packed_qkv", what="x", share=2, identical=False, sentence="x")
    names = ("cpu@1.31.1", "webgpu@1.30.0+lavapipe", "tract@0.23.9", "wasm@1.30.0")
    results = [
        result(each.id, name, VERDICTS[(number + at) % len(VERDICTS)])
        for number, each in enumerate(cases)
        for at, name in enumerate(names)
    ]
    results[0] = result(cases[0].id, names[0], "wrong", faults=faults, errors=(where,))
    results[4] = result(cases[1].id, names[0], "wrong", relation=relation, expectation=expected())
    results[8] = result(cases[2].id, names[0], "wrong", unexpected=False, expectation=expected())
    trouble = InfrastructureRecord(target=names[0], case=cases[0].id, message="x", fix="y")
    unstable = InstabilityRecord(
        target=names[0], case=cases[0].id, verdict="crash", message="x", expectation=expected()
    )
    parts = UncalledParts(declared_by="x", inputs=("x",), types={"x": ("y",)})
    targets = [target("cuda", unavailable="x", fix="y"), *map(target, names)]
    described = TargetDescription(runtime="x", version="1", uncalled=parts)
    targets[1] = targets[1].model_copy(update={"describe": described})
    return write(path, cases, results, targets=targets, problems=[trouble], instability=[unstable])


#: Values that no field expects, or only some.
_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 1.5, 2**63, 10**4000, 1e308, [], {}, [None], [0] * 1000, ["n", 2]),
    *("", "nan", "x" * 100_000, HOSTILE, "\ud800", "\x00", "\x1b[31m", "..", {"kind": "uniform"}),
    *({str(n): n for n in range(100)}, [300_000_000, 1, 1], [10**9] * 30, [-1]),
)
_TOKENS: Final = (
    *(b"1e400", b"NaN", b"Infinity", b"9" * 5000, b"01", b"-", b"\\ud800", b"\x00", b"\xff"),
    *(b"\n", b"\r\n", b'"', b"{", b"]", b",", b"[" * 3000, b'{"a":' * 3000, b"null"),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a JSON value with each of its keys or indices."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def strange(content: bytes, change: Callable[[str], str]) -> bytes:
    """The records with every text changed, keys too, except where only some texts are valid."""
    return b"".join(_with_every_text(json.loads(line), change) for line in content.splitlines())


def _with_every_text(record: Any, change: Callable[[str], str]) -> bytes:
    def line() -> bytes:
        return json.dumps(record).encode()

    def is_valid() -> bool:
        with suppress(ValidationError):
            return bool(RECORD_LINE.validate_json(line()))
        return False

    for container, key in [*places(record)]:
        if isinstance(was := container[key], str):
            container[key] = change(was)
            if not is_valid():
                container[key] = was
        if isinstance(key, str):
            container[change(key)] = container.pop(key)
            if not is_valid():
                container[key] = container.pop(change(key))
    return line() + b"\n"


def _changed(line: bytes, chance: random.Random) -> bytes:
    """The record with another value, without one, with a further one, or with one elsewhere."""
    try:
        record = json.loads(line)
        for _ in range(chance.choice((1, 1, 1, 3))):
            everywhere = list(places(record))
            container, key = chance.choice(everywhere)
            other, place = chance.choice(everywhere)
            value = copy.deepcopy(other[place])
            match chance.randrange(6):
                case 0 | 1 | 2:
                    same = [other for other in _VALUES if type(other) is type(container[key])]
                    container[key] = copy.deepcopy(
                        chance.choice(same if same and chance.random() < 0.7 else _VALUES)
                    )
                case 3:
                    del container[key]
                case 4 if isinstance(container, dict):
                    container[str(chance.choice(_VALUES))[:100]] = value
                case _:
                    container[key] = value
        return json.dumps(record, ensure_ascii=chance.random() < 0.5).encode() + b"\n"
    except (ValueError, TypeError, IndexError):  # no JSON any more, or nothing left to change
        return b'{"kind":"result"}\n'


def _bytes(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _token(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + chance.choice(_TOKENS) + content[at + chance.choice((0, 0, 1, 9)) :]


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _lines(change: Callable[[list[bytes], random.Random], None]) -> Mutation:
    def changed(content: bytes, chance: random.Random) -> bytes:
        lines = content.splitlines(keepends=True)
        change(lines, chance)
        return b"".join(lines)

    return changed


def _double(lines: list[bytes], chance: random.Random) -> None:
    line = chance.choice(lines)
    lines[(at := chance.randrange(len(lines) + 1)) : at] = [line] * chance.choice((1, 2, 50))


def _drop(lines: list[bytes], chance: random.Random) -> None:
    del lines[(at := chance.randrange(len(lines))) : at + chance.choice((1, 5))]


def _record(lines: list[bytes], chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 4))):
        at = chance.randrange(len(lines))
        lines[at] = _changed(lines[at], chance)


def _nested(lines: list[bytes], chance: random.Random) -> None:
    """A recipe with parts of parts of parts."""
    depth = chance.choice((50, 150, 1000, 20_000))
    recipe = b'{"kind":"packed","parts":[' * depth + b"]}" * depth
    at = chance.randrange(len(lines))
    lines[at] = lines[at].replace(b'"recipe":{', b'"recipe":' + recipe + b',"x":{', 1)


Mutation = Callable[[bytes, random.Random], bytes]

MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(_bytes, _token, _token, _cut, _lines(_double), _lines(_drop)),
    *(_lines(_nested), *[_lines(_record)] * 8),
)


def mutant(content: bytes, seed: int, path: Path) -> Path:
    """``content``, changed as ``seed`` says, in a file beside ``path``; some are compressed."""
    chance = random.Random(seed)
    for _ in range(chance.choice((1, 1, 1, 2))):
        content = chance.choice(MUTATIONS)(content, chance) or b"\n"
    if chance.random() < 0.1:
        content = lzma.compress(content, preset=0)
        content = chance.choice((_bytes, _cut, lambda same, _: same))(content, chance)
        path = path.with_suffix(".jsonl.xz")
    path.write_bytes(content)
    return path
