"""How long short commands take from start to end, beside a Python that imports their libraries.

    python benchmarks/start.py [--repeat 5] [--markdown]

The floor is a Python that imports NumPy, ONNX and pydantic and does nothing. Every figure is the
minimum of the repeats, after one that fills the caches; the ratios are to the floor of the same
run, since machines are noisy. Python may write bytecode, even where the environment forbids it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Final

CASE: Final = "smoke/prompt[dtype=float32,sequence_length=5]"
FEW: Final = "smoke and prompt and float32"
GQA: Final = (sys.executable, "-m", "conformance")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "--ep", "cpu")

#: What is measured; the first is the floor.
COMMANDS: Final = {
    "import NumPy, ONNX and pydantic": (sys.executable, "-c", "import numpy, onnx, pydantic"),
    "`gqa --help`": (*GQA, "--help"),
    "`gqa list window`": (*GQA, "list", "window"),
    "`gqa list`": (*GQA, "list"),
    f"`gqa run '{CASE}'`": (*GQA, "run", "--ep", "cpu", CASE),
    f"`gqa run -k '{FEW}'`": (*GQA, "run", "--ep", "cpu", "-k", FEW),
    f"`pytest --ep cpu -k '{FEW}'`": (*PYTEST, "-k", FEW),
}


def seconds(command: tuple[str, ...], repeat: int) -> float:
    """The least time of a command, of ``repeat`` and one that fills the caches."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        times.append(time.perf_counter() - start)
        if done.returncode:
            sys.exit(f"{command} ended with status {done.returncode}: {done.stderr}")
    return min(times[1:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if arguments.markdown:
        print("| command | seconds | ratio to the floor |\n| --- | ---: | ---: |")
    floor = 0.0
    for name, command in COMMANDS.items():
        taken = seconds(command, arguments.repeat)
        floor = floor or taken
        row = (name, f"{taken:.2f}", f"{taken / floor:.1f}")
        print(
            f"| {' | '.join(row)} |"
            if arguments.markdown
            else f"{row[1]:>6} s {row[2]:>5} ×  {name}"
        )


if __name__ == "__main__":
    main()
