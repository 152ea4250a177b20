"""How long short commands take from start to end, beside a Python that imports their libraries.

    python benchmarks/start.py [--repeat 5] [--markdown]

The floor is a Python that imports NumPy, ONNX and pydantic and does nothing. Every figure is the
minimum of the repeats, after one that fills the caches; the ratios are to the floor of the same
run, since machines are noisy. Python may write bytecode, even where the environment forbids it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ratio import GQA, PYTEST, Ratio, parser_for, print_table, timed

CASE: Final = "smoke/prompt[dtype=float32,sequence_length=5]"
FEW: Final = "smoke and prompt and float32"
#: Some 70 cases.
SOME: Final = "decode_shapes"

FLOOR: Final = "import NumPy, ONNX and pydantic"

#: What is measured; the first is the floor.
COMMANDS: Final[Mapping[str, Sequence[str | Path]]] = {
    FLOOR: (sys.executable, "-c", "import numpy, onnx, pydantic"),
    "`gqa --help`": (*GQA, "--help"),
    "`gqa models gemma4`": (*GQA, "models", "gemma4"),
    "`gqa list window`": (*GQA, "list", "window"),
    "`gqa list`": (*GQA, "list"),
    f"`gqa run '{CASE}'`": (*GQA, "run", "--ep", "cpu", CASE),
    f"`gqa run -k '{FEW}'`": (*GQA, "run", "--ep", "cpu", "-k", FEW),
    f"`pytest --ep cpu -k '{FEW}'`": (*PYTEST, "-k", FEW),
}


def seconds(command: Sequence[str | Path], repeat: int) -> float:
    """The least time of a command, of ``repeat`` and one that fills the caches."""
    return min([timed(command) for _ in range(repeat + 1)][1:])


def measure(repeat: int) -> Iterator[Ratio]:
    """Each command; the ratios are to the floor, that of several processes is to one."""
    floor = 0.0
    for name, command in COMMANDS.items():
        taken = seconds(command, repeat)
        floor = floor or taken
        yield Ratio(name, taken / floor, None, f"{taken:.2f} s")
    one, four = (seconds((*PYTEST, "-k", SOME, *more), repeat) for more in ((), ("-n", "4")))
    what = f"`pytest --ep cpu -k '{SOME}'"
    yield Ratio(f"{what}`", one / floor, None, f"{one:.2f} s")
    yield Ratio(f"{what} -n 4`, to one process", four / one, 1.0, f"{four:.2f} s")


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    print_table(measure(arguments.repeat), markdown=arguments.markdown)


if __name__ == "__main__":
    main()
