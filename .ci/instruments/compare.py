#!/usr/bin/env python3
"""Says whether two folders of take.py are the same, or the first differences.

Exit status: 0 the same, 1 different, 2 nothing to compare.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

MANY = 10


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two values differ, with both."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            place = f"{path}.{key}" if path else key
            yield from differences(before.get(key, "(none)"), after.get(key, "(none)"), place)
    elif isinstance(before, list) and isinstance(after, list):
        for number, (one, other) in enumerate(zip_longest(before, after, fillvalue="(none)")):
            yield from differences(one, other, f"{path}[{number}]")
    elif json.dumps(before) != json.dumps(after):
        yield path, before, after


def clip(value: Any, at: int = 0) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[max(0, at - 60) : at + 100].rstrip("\n")


def differing_lines(before: Path, after: Path) -> Iterator[tuple[str, str, str]]:
    """The first lines in which two compressed texts differ, from shortly before the difference."""
    with gzip.open(before, "rt", newline="\n") as one, gzip.open(after, "rt", newline="\n") as two:
        pairs = enumerate(zip_longest(one, two, fillvalue="(no line)"), 1)
        for number, (old, new) in islice((pair for pair in pairs if pair[1][0] != pair[1][1]), 3):
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            yield f"line {number}", clip(old, at), clip(new, at)


def compare(name: str, folders: list[Path], ignored: list[str]) -> bool:
    """Whether the lines of an instrument are the same; prints how they differ."""
    texts = [gzip.decompress((folder / f"{name}.jsonl.gz").read_bytes()) for folder in folders]
    old, new = ({line["id"]: line for line in map(json.loads, t.splitlines())} for t in texts)
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for id in sorted({*old, *new}):
        if id in old and id in new:
            all_of_it = differences(old[id], new[id])
            found[id] = [d for d in all_of_it if not any(f"{d[0]}.".startswith(i) for i in ignored)]
        else:
            found[id] = [("(whether there is such a line)", id in old, id in new)]
    different = {id: those for id, those in found.items() if those}
    print(f"{name}: {len(different) or 'none'} of {len(found)} lines differ")
    fields = Counter(path.partition("[")[0] for those in different.values() for path, *_ in those)
    for field, count in fields.most_common(20):
        print(f"  {count} in {field}")
    for id, those in islice(different.items(), MANY):
        print(f"  {id}")
        stored = [folder / f"{name}.texts" / f"{id}.gz" for folder in folders]
        lines = differing_lines(*stored) if all(file.is_file() for file in stored) else ()
        for path, one, two in [*those[:3], *lines]:
            print(f"    {path}\n      - {clip(one)}\n      + {clip(two)}")
    return not different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs=2, metavar="FOLDER")
    parser.add_argument("--ignore", default="", help="fields: title,why or record.links")
    options = parser.parse_args()
    taken = [{file.name for file in folder.glob("*.jsonl.gz")} for folder in options.folders]
    names = [file.removesuffix(".jsonl.gz") for file in sorted(taken[0] & taken[1])]
    for file in sorted(taken[0] ^ taken[1]):
        print(f"{file}: in one folder only, not compared")
    ignored = [f"{field}." for field in options.ignore.split(",") if field]
    same = [compare(name, options.folders, ignored) for name in names]
    if not same:
        return 2
    print("same" if all(same) else "different")
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
