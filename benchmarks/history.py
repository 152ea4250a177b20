"""Every benchmark of the suite itself on a part of the corpus, compared with earlier ones.

    python benchmarks/history.py FILE [--markdown] [--every 6] [--without NAME]...

Prints all ratios, and appends them to FILE as a line of JSON. Names each ratio that is worse by
more than a fifth than the median of the last seven lines that have it, of which there must be three
at least, and then ends with status 1: machines are noisy, and so is a single night. The part of the
corpus is about each sixth case file, chosen by their names: the same every night, and new files
change little.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import overhead
import start
from ratio import Ratio, parser_for, print_table

from conformance.base.paths import ROOT
from conformance.case.corpus import shipped_files

#: A ratio is worse if it is more than this many times the median of earlier ones.
WORSE: Final = 1.2
#: The median is of this many lines, the newest …
LINES: Final = 7
#: … or of fewer, but at least this many.
FEWEST: Final = 3

#: The benchmarks by name, on these case files.
BENCHMARKS: Final[Mapping[str, Callable[[Sequence[Path]], Iterator[Ratio]]]] = {
    "start": lambda paths: start.measure(3),
    "overhead": lambda paths: overhead.measure(paths, 3),
    "report": lambda paths: _report(),
}


def _report() -> Iterator[Ratio]:
    import report  # needs a browser

    recorded = sorted((ROOT / "reports" / "recorded" / "history").glob("tract*.xz"))
    yield from report.measure(recorded, [100_000], 0)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a history, oldest first; none where there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def worse(ratios: Mapping[str, float], earlier: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A sentence for each ratio that is worse than in the ``earlier`` lines."""
    for what, ratio in ratios.items():
        known = [line["ratios"][what] for line in earlier if what in line["ratios"]][-LINES:]
        if len(known) >= FEWEST and ratio > WORSE * (usual := statistics.median(known)):
            yield f"{what}: {ratio:.2f}, usually {usual:.2f}."


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Print the table, append a line, and say what is worse."""
    parser = parser_for(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--without", action="append", default=[], choices=BENCHMARKS)
    options = parser.parse_args()
    files = list(shipped_files().values())
    paths = [file for file in files if zlib.crc32(file.name.encode()) % options.every == 0]
    earlier = lines_of(options.file)
    ratios: dict[str, float] = {}
    failures: list[str] = []

    def measured() -> Iterator[Ratio]:
        for name in [name for name in BENCHMARKS if name not in options.without]:
            try:
                for ratio in BENCHMARKS[name](paths):
                    ratios[ratio.what] = round(ratio.ratio, 3)
                    yield ratio
            except SystemExit as error:  # the others have their figures
                failures.append(f"{name}: {error}")

    print_table(measured(), markdown=options.markdown)
    line = {
        "date": datetime.now(UTC).date().isoformat(),
        "revision": _revision(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "ratios": ratios,
    }
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("a") as file:
        file.write(json.dumps(line) + "\n")
    found = list(worse(ratios, earlier))
    for title, lines in (("Worse by more than a fifth than usual", found), ("Failed", failures)):
        if lines:
            print(f"\n{title}:\n", *(f"- {line}" for line in lines), sep="\n")
    return 1 if found or failures else 0


if __name__ == "__main__":
    sys.exit(main())
