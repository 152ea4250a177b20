"""A figure as a ratio to a floor that was measured in the same run, and programs that are timed."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from conformance.base.paths import data_path

#: The command line, without a dependence on PATH.
GQA: Final[tuple[str | Path, ...]] = (sys.executable, "-P", "-m", "conformance")
#: pytest on the CPU.
PYTEST: Final[tuple[str | Path, ...]] = (sys.executable, "-m", "pytest", "-q", "--ep", "cpu")


class Ratio(NamedTuple):
    """A figure of a run: how many times its floor it is, and what it shall be at most.

    ``measured`` is the figure in words, with its unit. ``goal`` is None for a figure without one.
    """

    what: str
    ratio: float
    goal: float | None
    measured: str


def timed(
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    statuses: Iterable[int] = (0,),
) -> float:
    """Seconds of a program. Python may write bytecode, even where the environment forbids it.

    Exits with one sentence if its status is none of ``statuses``.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(
        [*map(str, command)],
        env={**inherited, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode not in statuses:
        said = f"{' '.join(map(str, command))} ended with {done.returncode}"
        sys.exit(f"{said}: {done.stdout[-2000:]}")
    return seconds


def records(results: Path) -> list[dict[str, Any]]:
    """The records of a results file."""
    with results.open() as lines:
        return [json.loads(line) for line in lines]


def seconds_of_run(
    arguments: Sequence[str | Path], results: Path, environment: Mapping[str, str] | None = None
) -> float:
    """Seconds of ``gqa run`` from the header of ``results`` to its footer."""
    timed([*GQA, "run", *arguments, "--results", results], environment, (0, 1))
    return float(json.loads(results.read_bytes().splitlines()[-1])["seconds"])


def parser_for(doc: str | None, *, paths: bool = False) -> argparse.ArgumentParser:
    """A parser with ``--markdown``, and with case files if ``paths``; ``doc`` is the module's."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--markdown", action="store_true")
    if paths:
        parser.add_argument("paths", nargs="*", type=Path, default=[data_path("cases")])
    return parser


def print_table(ratios: Iterable[Ratio], *, markdown: bool) -> None:
    """Print ratios, each as soon as it is measured."""
    if markdown:
        print("| what | measured | ratio | goal |\n| --- | ---: | ---: | ---: |")
    for ratio in ratios:
        goal = "" if ratio.goal is None else f"{ratio.goal:.2f}"
        cells = (ratio.what, ratio.measured, f"{ratio.ratio:.2f}", goal)
        line = f"| {' | '.join(cells)} |" if markdown else "{:<52} {:>24} {:>8} {:>6}"
        print(line if markdown else line.format(*cells), flush=True)
