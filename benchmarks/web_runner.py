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
import json
import math
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from conformance.base.paths import data_path
from conformance.case.corpus import names_of
from conformance.case.load import load
from conformance.case.selection import compile_expression
from conformance.harness.outcomes import Ran, Rejected
from conformance.harness.pool import Pool
from conformance.harness.protocol import UnavailableAnswer
from conformance.run.assessment import CaseJob, jobs_for
from conformance.run.target import DescribedTarget
from conformance.targets.catalogue import Programs
from conformance.targets.registry import Target, target_for

LOOP = Path(__file__).with_name("web_loop.mjs")

#: The entry of the package that has each target's kernels.
ENTRIES = {"webgpu": "webgpu", "webgpu-jsep": "all", "wasm": "wasm"}


class Bare:
    """The bare loop, which gets one bundle at a time."""

    def __init__(self, target: Target, adapter: str | None) -> None:
        argv = list(target.command.argv)
        environment = dict(os.environ)
        if "--shaders" in argv:  # so that it finds the shaders that the runner has built
            environment["MESA_SHADER_CACHE_DIR"] = argv[argv.index("--shaders") + 1]
        node = shutil.which("node")
        assert node is not None
        assert target.program is not None
        entry = ENTRIES[target.ep]
        command = (node, "--liftoff-only", str(LOOP), str(target.program.path), entry)
        self.process = subprocess.Popen(
            (*command, *([adapter] if adapter else [])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.said()

    def said(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"The bare loop ended: {shlex.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        return line.strip()

    def run(self, job: CaseJob) -> str:
        """The outcome of the bundle's call."""
        assert self.process.stdin is not None
        request = {"bundle": job.bundle, "files": job.steps[0].files}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.said()


def jobs_of(paths: Sequence[Path], expression: str, ready: DescribedTarget) -> list[CaseJob]:
    """The single calls that the target can run."""
    matches = compile_expression(expression)
    cases = [case for case in load(paths) if matches(names_of(case, ready.target.ep))]
    jobs = [job for case in cases if ready.cannot_take(case) is None for job in jobs_for(case)]
    alone = {job.bundle: job for job in jobs if len(job.steps) == 1 and not job.steps[0].share}
    return list(alone.values())


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
    with Pool(target.command) as pool:
        answer = pool.start()
        if isinstance(answer, UnavailableAnswer):
            sys.exit(f"{answer.reason} {answer.fix or ''}")
        ready = DescribedTarget(target, answer, None, None)
        jobs = jobs_of(arguments.paths, arguments.expression, ready)
        best, ran = measure(pool, Bare(target, arguments.adapter), jobs, arguments.repeat)
    print(f"{ready.name}, {len(best)} calls, of which {ran} ran, {os.cpu_count()} cores\n")
    if arguments.markdown:
        print("| program | ms per case | ratio to the floor |\n| --- | ---: | ---: |")
    floor, whole = (1e3 * statistics.fmean(times) for times in zip(*best, strict=True))
    for what, ms in (("a bare loop", floor), ("runner and harness", whole)):
        cells = (what, f"{ms:.2f}", f"{ms / floor:.2f}")
        print(
            f"| {' | '.join(cells)} |" if arguments.markdown else "{:24} {:>8} {:>6}".format(*cells)
        )


def measure(
    pool: Pool, bare: Bare, jobs: Sequence[CaseJob], repeat: int
) -> tuple[list[tuple[float, float]], int]:
    """Seconds of each case, alone and through the harness, and the number of them that ran.

    Cases that end the process would end the bare loop as well, and are left out.
    """
    ends = {job.bundle for job in jobs if not isinstance(pool.run_one(job), Ran | Rejected)}
    kept = [job for job in jobs if job.bundle not in ends]
    ran = sum(bare.run(job) == "ran" for job in kept)  # to warm up
    best = {job.bundle: (math.inf, math.inf) for job in kept}
    for _ in range(repeat):
        for job in kept:
            start = time.perf_counter()
            bare.run(job)
            middle = time.perf_counter()
            pool.run_one(job)
            end = time.perf_counter()
            floor, whole = best[job.bundle]
            best[job.bundle] = (min(floor, middle - start), min(whole, end - middle))
    bare.process.kill()
    return list(best.values()), ran


if __name__ == "__main__":
    main()
