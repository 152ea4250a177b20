"""Results files: their size, and the time and memory of reading, merging and comparing many.

    python benchmarks/results.py [--results 20000,80000] [--markdown] [PATH]...

The results of a real run are repeated under the names of other targets until there are as many, one
file for each target. They are merged (`gqa merge --compact`), and the merged file is compared with
itself (`gqa diff`). The figures are microseconds for each result, the start of the program left
out, and the peak of memory. The ratio of the first number of results is to reading one file, a
result at a time; those of further numbers are to the first: 1 if the time is linear. The size is in
kB for each result.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ratio import GQA, Ratio, parser_for, print_table, records, timed

from conformance.results.reader import MOST_BYTES, MOST_LINES, stream


def renamed(results: Path, number: int, folder: Path) -> Path:
    """A copy of a results file under the name of another target."""
    new = folder / f"{number}.jsonl"
    with results.open() as lines, new.open("w") as out:
        for line in lines:
            record = json.loads(line)
            if record["kind"] == "header":
                old = record["targets"][0]["name"]
                name = f"{old}.{number}"
                record["targets"][0]["name"] = name
                line = json.dumps(record) + "\n"
            elif record["kind"] != "case":
                line = line.replace(json.dumps(old), json.dumps(name))
            out.write(line)
    return new


def measure(paths: Sequence[Path], numbers: Sequence[int]) -> Iterator[Ratio]:
    """Each command at each number of results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = [*GQA, "run", "--ep", "cpu", "--results", folder / "run.jsonl", *paths]
        timed(run, statuses=(0, 1))
        of_one = sum(record["kind"] == "result" for record in records(folder / "run.jsonl"))
        size = (folder / "run.jsonl").stat().st_size
        kilobytes = size / of_one / 1000
        yield Ratio(
            "a results file, for each result", kilobytes, 5000 / 3808, f"{kilobytes:.1f} kB"
        )
        begin = time.perf_counter()
        for _ in stream(folder / "run.jsonl", [], MOST_LINES, MOST_BYTES):
            pass
        read = (time.perf_counter() - begin) / of_one
        yield Ratio("reading it, for each result", 1.0, None, f"{read * 1e6:.0f} µs")
        start = timed([*GQA, "merge", "--help"]).seconds
        first: dict[str, float] = {}
        for number in numbers:
            files = [renamed(folder / "run.jsonl", n, folder) for n in range(-(-number // of_one))]
            count = len(files) * of_one
            merged = folder / "merged.jsonl"
            commands: dict[str, list[str | Path]] = {
                "merge --compact": ["merge", "--compact", "-o", merged, *files],
                "diff": ["diff", merged, merged],
            }
            for what, command in commands.items():
                done = timed([*GQA, *command])
                each = (done.seconds - start) / count
                words = f"{each * 1e6:.0f} µs, {done.megabytes:,.0f} MB"
                ratio = each / first.get(what, read)
                first.setdefault(what, each)
                yield Ratio(f"`gqa {what}`, {number:,} results", ratio, None, words)


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__, paths=True)
    parser.add_argument("--results", default="20000,80000")
    options = parser.parse_args()
    numbers = [int(number) for number in options.results.split(",")]
    print_table(measure(options.paths, numbers), markdown=options.markdown)


if __name__ == "__main__":
    main()
