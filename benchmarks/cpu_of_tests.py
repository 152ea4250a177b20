"""The CPU seconds of a run of the tests, by file: ``python benchmarks/cpu_of_tests.py [ARGUMENT…]``.

Arguments are pytest's; without any, it is README's command. CPU seconds are those of all processes,
the runners and commands that tests start included: a busy machine hardly changes them. The time of
a fixture that several files share is the first one's.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Names the folder into which each pytest process writes what its tests took.
FOLDER = "GQA_CPU_OF_TESTS"


def cpu_seconds() -> float:
    """What this process and the ended ones that it started have taken."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note what the test took."""
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(f"{cpu_seconds() - before:.4f} {item.nodeid.partition('::')[0]}\n")


def measured(arguments: list[str]) -> tuple[Counter[str], float, int]:
    """The CPU seconds by file and in all, and pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
        environment: dict[str, Any] = {**os.environ, FOLDER: folder, "PYTHONPATH": path}
        command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, *arguments]
        before = cpu_seconds()
        done = subprocess.run(command, env=environment)
        total = cpu_seconds() - before
        files: Counter[str] = Counter()
        for line in (line for part in Path(folder).iterdir() for line in part.open()):
            seconds, file = line.split(maxsplit=1)
            files[file.strip()] += float(seconds)  # type: ignore[assignment]
    return files, total, done.returncode


def main() -> None:
    """Print the table, the largest first."""
    files, total, status = measured(sys.argv[1:] or ["-n", "auto"])
    for file, seconds in files.most_common():
        print(f"{seconds:8.1f}  {file}")
    print(f"{total - sum(files.values()):8.1f}  collecting, and what is outside tests")
    print(f"{total:8.1f}  CPU seconds in all")
    sys.exit(status)


if __name__ == "__main__":
    main()
