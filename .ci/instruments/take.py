#!/usr/bin/env python3
"""Writes down what the package does, to be compared with what it does after a change.

    take.py OUT [fingerprint|targets|forms|miniatures|walk …] [--root CHECKOUT]

OUT is outside the repository. The package is that of this checkout or of the other one; so is
package/adapter.py, which knows the package's inside, and tests/walked.py, if they are there. All
else is beside this file. compare.py compares two folders.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
ADAPTER = ".ci/instruments/package"
INSTRUMENTS = ("fingerprint", "targets", "forms", "miniatures", "walk")


def take_walk(root: Path, out: Path) -> None:
    from common import scratch, write
    from walked import walk_of_a_case

    with scratch() as cache, patch.dict(os.environ, GQA_CACHE=str(cache)):
        functions, types = walk_of_a_case()
    found = [f"function {name}" for name in functions] + [f"type {name}" for name in types]
    counts = {"id": "(counts)", "functions": len(functions), "types": len(types)}
    write(out, "walk", [counts, *({"id": name} for name in found)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="INSTRUMENT")
    parser.add_argument("--root", type=Path, default=HERE.parents[1])
    options = parser.parse_args()
    root = options.root.resolve()
    unknown = {*options.names} - {*INSTRUMENTS}
    if unknown or not (root / "conformance").is_dir():
        parser.error(f"not an instrument, or not a checkout: {unknown or root}")
    options.out.mkdir(parents=True, exist_ok=True)
    names = options.names or INSTRUMENTS
    if len(names) > 1:  # each in a process of its own, so that none finds what another has loaded
        for name in names:
            command = (sys.executable, __file__, str(options.out), name, "--root", str(root))
            subprocess.run(command, check=True)
        return
    os.environ |= {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    # What knows the package's inside is of the checkout that is looked at, if it has that.
    inside = [here / name for here in (root, HERE.parents[1]) for name in (ADAPTER, "tests")]
    sys.path[1:1] = map(str, (root, *inside))
    start = time.monotonic()
    take = take_walk if names[0] == "walk" else importlib.import_module(names[0]).take
    take(root, options.out.resolve())
    print(f"{names[0]}: {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
