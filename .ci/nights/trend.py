"""Keeps the counts of each night, and prints their trend as Markdown.

Usage: python3 trend.py OLD NEW [RESULTS]...

OLD has a JSON line for each target of each earlier night; it may be missing. NEW gets these, and a
line for each of the RESULTS of tonight: files of one target that `gqa run` or `gqa merge` wrote,
with its name in each night (`cpu@latest.jsonl`).
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

#: Nights that are kept, and those of the trend that is printed.
KEPT: Final = 400
SHOWN: Final = 14

_BARS: Final = "▁▂▃▄▅▆▇█"


def earlier(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the earlier nights; what is no such line is left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        try:
            night = json.loads(line)
            if {"date", "target", "release", "counts", "unexpected"} <= night.keys():
                yield night
        except (ValueError, AttributeError):
            continue


def tonight(path: Path) -> Iterator[dict[str, Any]]:
    """A line for each target of a results file; none if it is not complete."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.readline())
            footer = json.loads(_last_line(file.fileno()))
        if footer["kind"] != "footer" or not footer["complete"]:
            return
        for target in header["targets"]:
            yield {
                "date": header["start"][:10],
                "target": path.stem,
                "release": target["name"],
                "counts": footer["counts"].get(target["name"], {}),
                "unexpected": footer["unexpected"],
            }
    except (OSError, ValueError, KeyError, TypeError):
        return


def _last_line(descriptor: int) -> bytes:
    """The last line of a file, if it is no longer than a footer can be."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, 1 << 20, max(0, size - (1 << 20))).splitlines()[-1]


def joined(nights: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The nights of each target, oldest first; of two of one date the later one."""
    of: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for night in nights:
        of[night["target"]][night["date"]] = night
    return {target: [by[date] for date in sorted(by)][-KEPT:] for target, by in of.items()}


def table(trend: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """The trend as a Markdown table."""
    if not trend:
        return
    yield "## Trend\n"
    yield f"| target | nights | passed | last {SHOWN} nights | unexpected | last {SHOWN} nights |"
    yield "| --- | ---: | ---: | --- | ---: | --- |"
    for target, nights in trend.items():
        passed = [night["counts"].get("pass", 0) for night in nights]
        unexpected = [night["unexpected"] for night in nights]
        yield (
            f"| `{target}` | {len(nights)} | {passed[-1]:,} | {_bars(passed)} "
            f"| {unexpected[-1]:,} | {_bars(unexpected)} |"
        )


def _bars(values: Sequence[int]) -> str:
    """A character for each of the newest values, between their least and their largest."""
    shown = values[-SHOWN:]
    least, most = min(shown), max(shown)
    step = (most - least) / (len(_BARS) - 1)
    return "".join(_BARS[round((value - least) / step) if step else 0] for value in shown)


def main(old: str, new: str, *results: str) -> int:
    """Write NEW and print the table; the exit status."""
    nights = [*earlier(Path(old)), *(line for file in results for line in tonight(Path(file)))]
    trend = joined(nights)
    if trend:
        lines = (json.dumps(night) for those in trend.values() for night in those)
        Path(new).write_text("\n".join(lines) + "\n", encoding="utf-8")
    for line in table(trend):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
