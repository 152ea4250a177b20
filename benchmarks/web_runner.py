"""The overhead of the runner for onnxruntime-web over onnxruntime-web itself, measured in one go.

    python benchmarks/web_runner.py [--ep EP] [--adapter WORD|PATH] [-k EXPR] [--repeat 3] [PATH]...

Each case is run twice, as in the suite. The floor is a bare loop in Node (``web_loop.mjs``) on the
same adapter, which reads the same bundles, creates a session, runs it twice and releases it, and
writes nothing. The runner is measured through the harness, without judging. Both are one
process each that has built every shader before; a case's time is the minimum of the repeats, both
measured right after each other, and the table has the mean.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from beside_a_loop import Bare, print_times

from conformance.base.paths import data_path
from conformance.targets.catalogue import Programs
from conformance.targets.registry import Target, target_for

LOOP = Path(__file__).with_name("web_loop.mjs")

#: The entry of the package that has each target's kernels.
ENTRIES = {"webgpu": "webgpu", "webgpu-jsep": "all", "wasm": "wasm"}


def bare_loop(target: Target, adapter: str | None) -> Bare:
    """The bare loop in Node, on the target's package."""
    argv = list(target.command.argv)
    environment = dict(os.environ)
    if "--shaders" in argv:  # so that it finds the shaders that the runner has built
        environment["MESA_SHADER_CACHE_DIR"] = argv[argv.index("--shaders") + 1]
    node = shutil.which("node")
    assert node is not None
    assert target.program is not None
    entry = ENTRIES[target.ep]
    command = (node, "--liftoff-only", str(LOOP), str(target.program.path), entry)
    return Bare((*command, *([adapter] if adapter else [])), environment)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[data_path("cases")])
    parser.add_argument("--ep", choices=sorted(ENTRIES), default="webgpu")
    parser.add_argument("--adapter", help="as in gqa run")
    parser.add_argument("-k", dest="expression", default="", metavar="EXPR", help="as in gqa run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    target = target_for(arguments.ep, Programs(adapter=arguments.adapter))
    print_times(
        target,
        lambda: bare_loop(target, arguments.adapter),
        arguments.paths,
        arguments.expression,
        arguments.repeat,
        markdown=arguments.markdown,
    )


if __name__ == "__main__":
    main()
