"""How much faster several jobs are, where the runner and not the processor is waited for.

    python benchmarks/scaling.py [--jobs 2,4,8,16] [--ms 150] [--markdown] [PATH]...

The runner sleeps for each case (``sleeping_runner.py``), so that the number of cores is no limit
while the work of the suite itself fits on them; it shows what the suite's processes make of N jobs.
The figure is that of N jobs as a share of N times one job; the ratio is its inverse, at most 1.25
to 4 jobs (0.8 N) and 1.67 beyond (0.6 N). On real cores, ``overhead.py`` measures one and two jobs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ratio import Ratio, parser_for, print_table, seconds_of_run

RUNNER: Final = Path(__file__).with_name("sleeping_runner.py")


def measure(paths: Sequence[Path], jobs: Sequence[int], ms: float) -> Iterator[Ratio]:
    """Each number of jobs, beside one job on the same cases."""
    with tempfile.TemporaryDirectory() as name:
        results = Path(name, "results.jsonl")
        program = Path(name, "sleeper")
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{RUNNER}"\n')
        program.chmod(0o755)

        def seconds(number: int) -> float:
            arguments: list[str | Path] = [
                "--ep",
                f"exec:{program}",
                "-k",
                "float32",
                "--jobs",
                str(number),
                *paths,
            ]
            return seconds_of_run(arguments, results, {"SLEEP_MS": str(ms)})

        seconds(16)  # fills the cache
        one = seconds(1)
        for number in jobs:
            share = one / seconds(number) / number
            goal = 1 / 0.8 if number <= 4 else 1 / 0.6
            what = f"`--jobs {number}`, runners that sleep {ms:g} ms"
            yield Ratio(what, 1 / share, goal, f"{share:.2f} of {number} times")


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__, paths=True)
    parser.add_argument("--jobs", default="2,4,8,16")
    parser.add_argument("--ms", type=float, default=150)
    options = parser.parse_args()
    jobs = [int(number) for number in options.jobs.split(",")]
    print_table(measure(options.paths, jobs, options.ms), markdown=options.markdown)


if __name__ == "__main__":
    main()
