"""Case files that ask for more than they seem to: each is small and valid YAML, or nearly so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from case_files import HEAD

#: The most bytes of a bomb; a file may have a mebibyte.
_ROOM: Final = 1_000_000


def _cases(lines: Iterable[str]) -> str:
    return HEAD + "\n".join(f"  - {line}" for line in lines) + "\n"


def _aliases(count: int, first: str, rest: str) -> str:
    """One entry with anchors, and ``count`` entries that alias its parts."""
    return _cases([first, *(rest.replace("#", str(n)) for n in range(count))])


def _numbers(count: int, separator: str = ",") -> str:
    return separator.join(map(str, range(count)))


def bombs() -> dict[str, str]:
    """What each bomb is, and its text."""
    data = f"[{','.join(['0'] * 9_000)}]"
    grid = "{seed: [1,2,3,4,5], head_size: [8,16,24,32,40], causal: [0,1]}"
    labels = ", ".join(f"l{n}: {{seed: {n}}}" for n in range(3_900))
    levels = [f"a0: &a0 [{', '.join(['x'] * 10)}]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 15)]
    number = "9" * 4_999
    axes = ", ".join(f"x{n}: {{a: {{}}, b: {{}}}}" for n in range(9_000))
    return {
        "3,000 entries with one matrix": _aliases(
            3_000,
            f"{{name: a, matrix: &m {grid}}}",
            "{name: a#, matrix: *m}",
        ),
        "aliases of aliases": HEAD + "  - name: a\n" + "\n".join(levels) + "\n",
        "axes without end": _cases([f"{{name: a, matrix: {{{axes}}}}}"]),
        "a matrix of 10^150": _cases(
            [
                "{name: a, matrix: {"
                + ", ".join(f"x{n}: &x {{{labels[:9_000].rpartition(',')[0]}}}" for n in range(1))
                + ", "
                + ", ".join(f"y{n}: *x" for n in range(50))
                + "}}"
            ]
        ),
        "data in every case": _cases(
            [f"{{name: a, inputs: {{head_sink: {{data: {data}}}}}, matrix: {{own: {{{labels}}}}}}}"]
        ),
        "data aliased by every entry": _aliases(
            5,
            f"{{name: a, inputs: &i {{head_sink: {{data: {data}}}}}, matrix: {grid}}}",
            f"{{name: a#, inputs: *i, matrix: {grid}}}",
        ),
        "values that differ in nothing seen": _cases(
            [
                "{name: a, matrix: {own: {"
                + ", ".join(
                    f"l{n}: {{inputs: {{query: {{values: {{low: -{n}, high: {n}}}}}}}}}"
                    for n in range(1, 3_900)
                )
                + "}}}"
            ]
        ),
        "a loop of 40,000 steps": _cases([f"{{name: a, loop: [{','.join(['1'] * 40_000)}]}}"]),
        "loops of 300 steps": _cases(
            [f"{{name: a, loop: [{','.join(['1'] * 300)}], matrix: {{seed: [{_numbers(200)}]}}}}"]
        ),
        "a batch of two billion": _cases(["{name: a, batch_size: 2147483647, sequence_length: 0}"]),
        "large batches": _cases(
            [
                "{name: a, batch_size: 65536, num_heads: 1, kv_num_heads: 1, head_size: 1,"
                f" matrix: {{seed: [{_numbers(3_900)}]}}}}"
            ]
        ),
        "loops of large batches": _cases(
            [
                "{name: a, batch_size: 65536, num_heads: 1, kv_num_heads: 1, head_size: 1,"
                f" loop: [{','.join(['1'] * 400)}]}}"
            ]
        ),
        "terabytes of inputs": _cases(
            [
                "{name: a, past_sequence_length: 100000, num_heads: 64, kv_num_heads: 8,"
                f" head_size: 64, matrix: {{seed: [{_numbers(3_900)}]}}}}"
            ]
        ),
        "an input of too many dims": _cases(
            ["{name: a, inputs: {query: {shape: [" + ",".join(["1"] * 20_000) + "]}}}"]
        ),
        "excludes times combinations": _cases(
            [
                f"{{name: a, matrix: {{seed: [{_numbers(4_000)}]}}, exclude: ["
                + ", ".join(f"{{seed: {n}}}" for n in range(3_990))
                + "]}"
            ]
        ),
        "excludes of no value": _cases(
            [
                f"{{name: a, matrix: {{seed: [{_numbers(4_000)}]}}, exclude: ["
                + ", ".join(f"{{seed: {n}}}" for n in range(5_000, 25_000))
                + "]}"
            ]
        ),
        "one value 40,000 times": _cases(
            [f"{{name: a, matrix: {{seed: [{','.join(['1'] * 40_000)}]}}}}"]
        ),
        "an axis of 45,000 values": _cases(
            [f"{{name: a, matrix: {{seed: [{_numbers(45_000)}]}}}}"]
        ),
        "20,000 unknown fields": _cases(
            ["{name: a, " + ", ".join(f"num_head{n}: 1" for n in range(20_000)) + "}"]
        ),
        "unknown fields of 4,000 characters": HEAD
        + "  - name: a\n"
        + "".join(f"    ? {n}{'num_heads' * 440}\n    : 1\n" for n in range(240)),
        "20,000 unknown axes": _cases(
            ["{name: a, matrix: {" + ", ".join(f"num_head{n}: [1]" for n in range(20_000)) + "}}"]
        ),
        "20,000 entries without a name": _cases(["{}"] * 20_000),
        "20,000 entries of one name": _cases(["{name: a}"] * 20_000),
        "20,000 wrong values": _cases(f"{{name: a{n}, dtype: float6{n}}}" for n in range(15_000)),
        "a long name times many labels": _cases(
            [f"{{name: {'a' * 4_999}, matrix: {{seed: [{_numbers(3_900)}]}}}}"]
        ),
        "a long reason times many cases": _cases(
            [f"{{name: a, why: '{' x' * 2_400} ', matrix: {{seed: [{_numbers(3_900)}]}}}}"]
        ),
        "tags times many cases": (
            "format: gqa-cases/2\nquestion: Q?\ndefaults: {contract: {source: x}}\n"
            f"tags: [{', '.join(f't{n}' for n in range(20_000))}]\n"
            f"cases:\n  - {{name: a, matrix: {{seed: [{_numbers(3_900)}]}}}}\n"
        ),
        "the format before, renamed everywhere": HEAD.replace("cases/2", "cases/1")
        + "".join(
            f"  - {{name: a{n}, indifferent: [], inputs: {{query: {{but: []}}}}}}\n"
            for n in range(9_000)
        ),
        "a number of a million digits": _cases([f"{{name: a, seed: {'9' * _ROOM}}}"]),
        "a hexadecimal number of a million digits": _cases([f"{{name: a, seed: 0x{'f' * _ROOM}}}"]),
        "a sexagesimal number": _cases([f"{{name: a, seed: 1{':1' * (_ROOM // 2)}}}"]),
        "sexagesimal numbers": _cases([f"{{name: a, seed: [{('1' + ':1' * 499 + ',') * 900}]}}"]),
        "numbers of 4,999 digits": _cases([f"{{name: a, seed: [{(number + ',') * 190}]}}"]),
        "a date of a million digits": _cases([f"{{name: a, seed: 2001-01-01 {'0' * _ROOM}}}"]),
        "a key of a million characters": HEAD + f"  - {{? {'k' * _ROOM} : 1}}\n",
        "a text of a million characters": _cases([f"{{name: a, why: {'w' * _ROOM}}}"]),
        "a tag of a million characters": _cases([f"{{name: a, why: !{'t' * _ROOM} x}}"]),
        "an anchor of a million characters": _cases([f"{{name: a, why: &{'t' * _ROOM} x}}"]),
        "an unknown alias of a million characters": _cases([f"{{name: a, why: *{'t' * _ROOM}}}"]),
        "70,000 tag directives": "".join(f"%TAG !{n:x}! b\n" for n in range(70_000))
        + "---\na: 1\n",
        "100,000 anchors": _cases(f"&a{n} x" for n in range(60_000)),
        "an alias to itself": _cases(["&a {name: a, why: *a}"]),
        "brackets": "[" * _ROOM,
        "braces": "{" * _ROOM,
        "dashes": "- " * (_ROOM // 2),
        "questions": "? " * (_ROOM // 2),
        "documents": "---\n" * (_ROOM // 4),
        "colons": ":" * _ROOM,
        "quotes": '"' * _ROOM,
        "empty lines": "\n" * _ROOM,
        "comments": "#\n" * (_ROOM // 2),
        "half a million values": f"[{'0,' * (_ROOM // 2)}]",
        "half a million keys": "{" + ",".join(f"{n:x}" for n in range(160_000)) + "}",
        "deep block lists": "".join(f"{' ' * n}-\n" for n in range(1_000)),
        "escapes": '"' + "\\U0001F600" * (_ROOM // 10) + '": 1',
        "merge keys": _cases(["{" + ", ".join(["<<: {}"] * 20_000) + "}"]),
        "one key 20,000 times": _cases(["{" + ", ".join(["seed: 1"] * 20_000) + "}"]),
        "a mapping of lists as keys": _cases(["{" + ", ".join(["[]: 1"] * 20_000) + "}"]),
        "format placeholders": _cases(
            ["{name: '{x}', tags: ['{y}', skip], dtype: '{z}', features: {}}"]
        ),
    }
