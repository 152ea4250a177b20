"""Mutants of the shipped case files, and a program that loads many of them within limits.

``python mutants_of_case_files.py SEED COUNT FOLDER`` prints what became of them as JSON.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml
from memory import peak_kib

from conformance.base.paths import data_path
from conformance.base.yaml_source import InputError
from conformance.case.corpus import shipped_files
from conformance.case.load import load
from conformance.judge.expectations import load_expectations
from conformance.run.records import case_record

#: A mutant may take so many seconds of processor time, and its process so much memory.
SECONDS: Final = 5.0
MEMORY_BYTES: Final = 1 << 30

_NASTY: Final = (
    "9" * 4_000,
    "-" + "9" * 30,
    "0x" + "f" * 800,
    "1" + ":59" * 200,
    "1:59.5",
    "0b1" + "_" * 50,
    "1e999",
    "-1e999",
    ".nan",
    ".inf",
    "2147483647",
    "9223372036854775808",
    "-1",
    "0",
    "2001-01-01",
    "2001-99-99",
    "2001-12-14t21:59:43.10-05:00",
    "!!binary gIGC",
    "!!binary '*'",
    "!!timestamp x",
    "!!set {a, b}",
    "!!omap [a: 1]",
    "!!python/object/apply:os.system ['true']",
    "!own x",
    "&a ",
    "*a",
    "<<: *a",
    "{",
    "}",
    "[",
    "]",
    "? ",
    "- ",
    ": ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "%TAG ! x:\n",
    "%YAML 9.9\n",
    "\t",
    "#",
    "null",
    "true",
    "~",
    "''",
    "[]",
    "{}",
    "[[[[1]]]]",
    "{a: {b: {c: {}}}}",
    "{__class__: 1, 'a.b': 2}",
    "n" * 6_000,
    "n" * 600,
    "'{0.__class__} %s {x!r}'",
    '"\\e[31m\\a\\0"',
    '"\\u202e\\u2028\\ufeff"',
    '"\\ud800"',
    "\u202eabc",
    "\U0001f600",
    "é",
    "\x85",
    "\u2028",
    "[" * 50,
    "- " * 50,
    "PER_CHANNEL",
    "sequence_length*999999999",
    "sequence_length - 9",
    "float8e4m3fn",
    "inputs",
    "matrix",
    "exclude",
    "loop",
)
_OTHER_VALUES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 2**31, 10**25, 1e300, float("nan"), "", "x" * 300, [], {}, [[]], b"x"),
    *([1] * 400, {"a": {}}, {"connected": 1}, "omitted", [1, "a", None]),
)
_TOKEN: Final = re.compile(r"[\w.+-]+|\s+|.")
Draw = random.Random


@cache
def _texts(kind: str) -> tuple[str, ...]:
    of_kind = {"cases": shipped_files().values()}
    files = of_kind.get(kind) or sorted(data_path(kind).glob("*.yaml"))
    return tuple(file.read_text("utf-8") for file in files)


def _excerpt(draw: Draw, kind: str) -> str:
    """The head of a shipped file with a few of its entries, so that it loads fast."""
    head, *items = re.split(r"(?m)^(?=  - )", draw.choice(_texts(kind)))
    at = draw.randrange(len(items))
    return head + "".join(items[at : at + draw.randint(1, 3)])


def _bytes(draw: Draw, text: str) -> bytes:
    """Some bytes flipped, inserted, removed."""
    raw = bytearray(text.encode())
    for _ in range(draw.choice((1, 1, 2, 5, 40))):
        at = draw.randrange(len(raw))
        how = draw.randrange(4)
        if how == 0:
            raw[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            raw[at:at] = draw.randbytes(draw.randint(1, 4))
        elif how == 2:
            del raw[at : at + draw.randint(1, 20)]
        else:
            raw[at:at] = raw[at : at + draw.randint(1, 200)]
        raw = raw or bytearray(b"a")
    return bytes(raw)


def _tokens(draw: Draw, text: str) -> str:
    """Tokens swapped, removed, repeated, or replaced by nasty ones."""
    tokens = _TOKEN.findall(text)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 10))):
        a, b = draw.randrange(len(tokens)), draw.randrange(len(tokens))
        how = draw.randrange(5)
        if how == 0:
            tokens[a], tokens[b] = tokens[b], tokens[a]
        elif how == 1:
            tokens[a] = ""
        elif how == 2:
            tokens[a] *= draw.choice((2, 50, 3_000))
        else:
            tokens[a] = draw.choice(_NASTY)
    return "".join(tokens)


def _numbers(draw: Draw, text: str) -> str:
    """Other numbers, and words of the same kind: most of these files load."""
    words = ("num_heads", "loop", "static", "int8", "packed", "PER_CHANNEL", "float16", "trailing")
    numbers = (0, 1, 2, 3, 7, 64, 1_000, 65_536, 2**31 - 1, 2**63, -1, 0.5, 1e-300, *words)

    def other(match: re.Match[str]) -> str:
        return str(draw.choice(numbers)) if draw.random() < chance else match[0]

    chance = draw.choice((0.02, 0.1, 0.5))
    head, *items = re.split(r"(?m)^(?=  - )", text)
    return head + re.sub(r"\b\d+(\.\d+)?\b", other, "".join(items))


def _lines(draw: Draw, text: str) -> str:
    """Lines removed, repeated, moved, indented."""
    lines = text.splitlines(keepends=True)
    for _ in range(draw.choice((1, 1, 2, 4))):
        a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
        how = draw.randrange(5)
        if how == 0 and len(lines) > 1:
            del lines[a]
        elif how == 1:
            lines[b:b] = lines[a : a + draw.randint(1, 4)] * draw.choice((1, 2, 500))
        elif how == 2:
            lines[a], lines[b] = lines[b], lines[a]
        elif how == 3:
            lines[a] = draw.choice((" ", "  ", "\t", "- ")) + lines[a]
        else:
            lines[a] = lines[a].lstrip(" ")
    return "".join(lines)


def _structure(draw: Draw, text: str) -> str:
    """Values of other types, keys removed, renamed and moved."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError:  # an alias whose anchor was left out
        return _lines(draw, text)
    for _ in range(draw.choice((1, 1, 2, 5))):
        places: list[tuple[Any, Any]] = []
        _collect(data, places)
        holder, key = draw.choice(places)
        other, name = draw.choice(places)
        how = draw.randrange(5)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = other[name] if name in _keys(other) else None
        elif how == 2 and isinstance(holder, dict):
            holder[draw.choice((str(name), str(key)[:-1], f"{key}.x", "", "inputs.query"))] = 1
        elif how == 3:
            holder[key] = [holder[key]] * draw.choice((0, 1, 3, 300))
        else:
            holder[key] = draw.choice(_OTHER_VALUES)
        if not isinstance(data, dict) or not data:
            break
    return yaml.dump(data, allow_unicode=bool(draw.randrange(2)), default_flow_style=None)


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _collect(data: Any, places: list[tuple[Any, Any]], depth: int = 0) -> None:
    if depth < 12 and len(places) < 5_000:
        for key in _keys(data):
            places.append((data, key))
            if isinstance(data[key], dict | list):
                _collect(data[key], places, depth + 1)


def _repeats(draw: Draw, text: str) -> str:
    """Entries in great number, some that alias a part of the first."""
    count = draw.choice((10, 300, 3_000, 20_000))
    head, first, *_ = [*re.split(r"(?m)^(?=  - )", text), ""]
    if draw.randrange(2):
        return head + first * count
    matrix = "{seed: [" + ",".join(map(str, range(draw.choice((2, 40, 900))))) + "]}"
    anchored = f"  - {{name: a, matrix: &m {matrix}, why: &w '{'w' * draw.choice((1, 4_000))}'}}\n"
    return (
        head
        + anchored
        + "".join(f"  - {{name: a{n}, matrix: *m, why: *w}}\n" for n in range(count))
    )


HOWS: Final[tuple[Callable[[Draw, str], str | bytes], ...]] = (
    _bytes,
    _tokens,
    _tokens,
    _numbers,
    _numbers,
    _lines,
    _structure,
    _structure,
    _repeats,
)


def mutant(seed: int, kind: str = "cases") -> bytes:
    """The mutant number ``seed`` of a file of this ``kind`` (a folder of `data_path`)."""
    draw = random.Random(seed)
    how = HOWS[seed % len(HOWS)]
    if how is _repeats and draw.randrange(4):
        how = _tokens  # they take longest
    text = how(draw, _excerpt(draw, kind))
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


class _Hang(BaseException):
    """A mutant took too long."""


def _too_long(number: int, frame: object) -> None:
    raise _Hang


def try_one(folder: Path, seed: int) -> str:
    """What became of a mutant: ``loaded``, ``refused``, or what is wrong."""
    kind = "expectations" if seed % 10 == 9 else "cases"
    file = folder / ("theme.yaml" if kind == "cases" else "cpu.yaml")
    file.write_bytes(mutant(seed, kind))
    place = re.escape(file.as_posix())
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        if kind == "cases":
            for case in load([file])[:3]:
                case_record(case).model_dump_json()
        else:
            for line in load_expectations([file]):
                line.on("lavapipe")
                line.holds_for("1.31.1")
        return "loaded"
    except InputError as error:
        *lines, last = str(error).split("\n")
        told = lines if last.startswith("… ") else [*lines, last]
        wrong = [line for line in told if not re.fullmatch(rf"{place}(:\d+:\d+)?: \S.*", line)]
        return f"untidy: {wrong[0][:300]!r}" if wrong or not told else "refused"
    except _Hang:
        return "hang"
    except MemoryError:
        return "memory"
    except Exception:
        return f"traceback: {traceback.format_exc()[-1500:]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _main(first: int, count: int, folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _too_long)
    became: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    slowest = (0.0, first)
    for seed in range(first, first + count):
        start = time.process_time()
        result = try_one(folder, seed)
        slowest = max(slowest, (time.process_time() - start, seed))
        became[result.partition(":")[0]] += 1
        if result not in ("loaded", "refused"):
            wrong[seed] = result
    told = {"became": became, "wrong": wrong, "slowest": slowest, "memory": peak_kib()}
    print(json.dumps(told))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
