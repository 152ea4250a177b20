"""The overhead of the suite over the bare runtime, measured in one go on one machine.

    python benchmarks/overhead.py [--repeat 3] [--markdown]
    python benchmarks/overhead.py --ep cpu|cuda [--device N] [-k EXPR] [--repeat 3] [PATH]...

The floor is a bare Python loop that, for each of the same bundles, reads it, creates the session
and runs it twice, with one thread; the stricter baseline has the inputs in memory already. Every
figure is in milliseconds per case, the minimum of the repeats; the ratios are to those two
baselines of the same run, since machines are noisy.

With ``--ep`` it measures the runner alone, through the harness and without judging, beside a bare
loop over IOBinding in a process of its own (``ort_loop.py``), both after every case was run once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from beside_a_loop import Bare, print_times
from onnx import numpy_helper

from conformance.base.paths import data_path
from conformance.bundle.cache import Bundle
from conformance.case.load import load
from conformance.run.assessment import jobs_for
from conformance.targets.catalogue import Programs
from conformance.targets.registry import Target, target_for

LOOP = Path(__file__).with_name("ort_loop.py")


class Row(NamedTuple):
    """A row of the table: milliseconds per case, and the seconds that these do not include."""

    what: str
    ms: float
    apart: str


def inputs_of(bundle: Bundle) -> list[dict[str, np.ndarray]]:
    """The inputs of each call, as arrays."""
    steps = []
    for number, _ in enumerate(bundle.steps):
        tensors = [
            onnx.load_tensor(file)
            for file in (bundle.path / f"test_data_set_{number}").glob("input_*.pb")
        ]
        steps.append({tensor.name: numpy_helper.to_array(tensor) for tensor in tensors})
    return steps


def floor(bundles: Sequence[Bundle], *, read: bool) -> float:
    """Seconds of a bare loop over ``bundles``; rejected calls are included.

    ``read``: include the time of reading the bundle's inputs.
    """
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    prepared = [[] if read else inputs_of(bundle) for bundle in bundles]
    start = time.perf_counter()
    for bundle, steps in zip(bundles, prepared, strict=True):
        steps = steps or inputs_of(bundle)
        model = str(bundle.path / "model.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
            for _ in range(2):
                for inputs in steps:
                    session.run(None, inputs)
        except Exception:  # a rejection is a result; the suite runs these cases too
            continue
    return time.perf_counter() - start


def command(*arguments: str, cache: str | None = None) -> float:
    """Seconds of ``python -m …``."""
    environment = {**os.environ, **({"GQA_CACHE": cache} if cache else {})}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return time.perf_counter() - start


def gqa(
    folder: Path, expression: str, jobs: int = 1, cache: str | None = None
) -> tuple[float, float]:
    """Seconds of ``gqa run`` from its header to its footer, and of everything else."""
    results = str(folder / "results.jsonl")
    arguments = ("run", "-k", expression, "--jobs", str(jobs), "--results", results)
    whole = command("conformance", *arguments, cache=cache)
    footer = records(folder)[-1]
    return footer["seconds"], whole - footer["seconds"]


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of the last results file."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def crashing(folder: Path) -> set[str]:
    """Names of the cases that crash the process: left out, since a bare loop cannot run them."""
    gqa(folder, "")
    return {
        record["case"].partition("/")[2].partition("[")[0]
        for record in records(folder)
        if record.get("verdict") == "crash"
    }


def measure(repeat: int) -> tuple[int, list[Row]]:
    """The number of cases and the rows of the table."""
    best: dict[str, tuple[float, str]] = {}

    def note(what: str, seconds: float, apart: str) -> None:
        ms = seconds / len(cases) * 1000
        if what not in best or ms < best[what][0]:
            best[what] = (ms, apart)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left_out = crashing(folder)
        expression = " and ".join(f"not {word}" for word in sorted(left_out))
        cases = [case for case in load([data_path("cases")]) if case.name not in left_out]
        bundles = [job.prepared for case in cases for job in jobs_for(case)]
        for _ in range(repeat):
            note("floor: read, session, two runs", floor(bundles, read=True), "")
            note("session and two runs alone", floor(bundles, read=False), "")
            for jobs in (1, 2):
                seconds, rest = gqa(folder, expression, jobs)
                note(f"`gqa run --jobs {jobs}`, warm", seconds, f"{rest:.2f} s start and end")
            pytest = ("pytest", "--ep", "cpu", "-q", "-p", "no:cacheprovider", "-k", expression)
            collect = command(*pytest, "--collect-only")
            seconds = command(*pytest)
            note("`pytest --ep cpu`, warm", seconds - collect, f"{collect:.2f} s start, collection")
            note("`pytest --ep cpu -n 2`, warm, all of it", command(*pytest, "-n", "2"), "")
        seconds, rest = gqa(folder, expression, 2, cache=str(folder / "cold"))
        note("`gqa run --jobs 2`, cold", seconds, f"{rest:.2f} s start and end")
    return len(cases), [Row(what, *row) for what, row in best.items()]


def bare_loop(target: Target, device: str | None) -> Bare:
    """The bare loop over IOBinding, in the target's interpreter."""
    command = [target.command.argv[0], str(LOOP), str(target.execution_provider)]
    command += [device] if device else []
    return Bare(command, {**os.environ, **target.command.env})


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--ep", choices=["cpu", "cuda"], help="the runner, beside IOBinding")
    parser.add_argument("--device", metavar="N", help="with --ep cuda, as in gqa run")
    parser.add_argument("-k", dest="expression", default="", metavar="EXPR", help="as in gqa run")
    parser.add_argument("paths", nargs="*", type=Path, default=[data_path("cases")])
    options = parser.parse_args()
    if options.ep is not None:
        target = target_for(options.ep, Programs(device=options.device))
        print_times(
            target,
            lambda: bare_loop(target, options.device),
            options.paths,
            options.expression,
            options.repeat,
            markdown=options.markdown,
        )
        return
    count, rows = measure(options.repeat)
    base, alone = rows[0].ms, rows[1].ms
    print(f"{count} cases, minimum of {options.repeat}, {os.cpu_count()} cores\n")
    if options.markdown:
        print(
            "| program | ms per case | ratio to the floor | ratio to the runs alone"
            " | not included |"
        )
        print("| --- | ---: | ---: | ---: | --- |")
    for row in rows:
        ratios = (f"{row.ms / base:.2f}", f"{row.ms / alone:.2f}")
        cells = (row.what, f"{row.ms:.2f}", *ratios, row.apart)
        if options.markdown:
            print("| " + " | ".join(cells) + " |")
        else:
            print(f"{cells[0]:<32} {cells[1]:>7} ms {cells[2]:>6}× {cells[3]:>6}×  {cells[4]}")


if __name__ == "__main__":
    main()
