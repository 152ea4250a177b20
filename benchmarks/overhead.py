"""The overhead of the suite over the bare runtime, measured in one go on one machine.

    python benchmarks/overhead.py [--repeat 3] [--markdown] [PATH]...
    python benchmarks/overhead.py --ep cpu|cuda [--device N] [-k EXPR] [--repeat 3] [PATH]...

The floor is a bare Python loop that, for each of the same bundles, creates the session and runs it
twice, with one thread and the inputs in memory. Every figure is in milliseconds per case, the
minimum of the repeats; the ratios are to that floor of the same run, since machines are noisy.
Cases that crash the process are left out, since no bare loop survives them. Of `gqa run` and of
pytest in one process, the start of the program and its loading of cases are left out as well.

With ``--ep`` it measures the runner alone, through the harness and without judging, beside a bare
loop over IOBinding in a process of its own (``ort_loop.py``), both after every case was run once.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from beside_a_loop import Bare, print_times
from onnx import numpy_helper
from ratio import PYTEST, Ratio, parser_for, print_table, records, seconds_of_run, timed

from conformance.base.files import write_files
from conformance.bundle.prepare import prepare
from conformance.case.case import Case
from conformance.case.load import load
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import Target, target_for

LOOP: Final = Path(__file__).with_name("ort_loop.py")

#: The floor.
ALONE: Final = "session and two runs alone"

#: What the ratio to the floor shall be at most.
GOALS: Final = {
    "`gqa run --jobs 2`": 5.0,
    "`pytest --ep cpu`": 9.0,
    "`pytest --ep cpu -n 2`": 5.4,
}


class Floors(NamedTuple):
    """Seconds of a bare loop: session and two runs alone, and with the reading of the inputs."""

    alone: float
    read: float


def inputs_of(folder: Path, steps: int) -> list[dict[str, np.ndarray]]:
    """The inputs of each call of a bundle, as arrays."""
    found = []
    for number in range(steps):
        files = (folder / f"test_data_set_{number}").glob("input_*.pb")
        tensors = [onnx.load_tensor(file) for file in files]
        found.append({tensor.name: numpy_helper.to_array(tensor) for tensor in tensors})
    return found


def session_of(folder: Path) -> Any:
    """A new session of a bundle's model, with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = str(folder / "model.onnx")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def floors(cases: Sequence[Case]) -> Floors:
    """Seconds of a bare loop over the cases and their variants."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # not a part of the time

    onnxruntime.set_default_logger_severity(4)
    alone = read = 0.0
    for case in cases:
        for relation in [None, case.relation] if case.relation else [None]:
            with tempfile.TemporaryDirectory() as name:
                prepared, folder = prepare(case.call, relation), Path(name)
                write_files(folder, prepared.files)
                begin = time.perf_counter()
                calls = inputs_of(folder, len(prepared.steps))
                start = time.perf_counter()
                # A rejection is a result; the suite runs these cases too.
                with suppress(Exception):
                    session = session_of(folder)
                    for _ in range(2):
                        for inputs in calls:
                            session.run(None, inputs)
                end = time.perf_counter()
                alone += end - start
                read += end - begin
    return Floors(alone, read)


def measure(paths: Sequence[Path], repeat: int) -> Iterator[Ratio]:
    """Each program on the cases of ``paths``; the ratios are to session and two runs alone."""
    with tempfile.TemporaryDirectory() as name:
        results = Path(name, "results.jsonl")
        seconds_of_run(["--ep", "cpu", *paths], results)
        crashing = {
            record["case"] for record in records(results) if record.get("verdict") == "crash"
        }
        left_out = {case.name for case in load(paths) if case.id in crashing}
        chosen = ["-k", " and ".join(f"not {word}" for word in sorted(left_out))]
        cases = [case for case in load(paths) if case.name not in left_out]

        def seconds(jobs: int) -> float:
            arguments: list[str | Path] = ["--ep", "cpu", *chosen, "--jobs", str(jobs), *paths]
            return seconds_of_run(arguments, results)

        pytest = [*PYTEST, "-p", "no:cacheprovider", *chosen, *paths]
        best: dict[str, float] = {}
        for _ in range(repeat):
            floor = floors(cases)
            collect = timed([*pytest, "--collect-only"])
            for what, taken in (
                (ALONE, floor.alone),
                ("the same, inputs read from their files", floor.read),
                ("`gqa run --jobs 1`", seconds(1)),
                ("`gqa run --jobs 2`", seconds(2)),
                ("`pytest --ep cpu`", timed(pytest, statuses=(0, 1)) - collect),
                ("`pytest --ep cpu -n 2`", timed([*pytest, "-n", "2"], statuses=(0, 1))),
            ):
                best[what] = min(taken, best.get(what, math.inf))
    for what, taken in best.items():
        ms = f"{taken / len(cases) * 1000:.2f} ms a case"
        yield Ratio(what, taken / best[ALONE], GOALS.get(what), ms)


def bare_loop(target: Target, device: str | None) -> Bare:
    """The bare loop over IOBinding, in the target's interpreter."""
    command = [target.command.argv[0], str(LOOP), str(target.entry.execution_provider)]
    command += [device] if device else []
    return Bare(command, {**os.environ, **target.command.env})


def main() -> None:
    """Print the table."""
    parser = parser_for(__doc__, paths=True)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ep", choices=["cpu", "cuda"], help="the runner, beside IOBinding")
    parser.add_argument("--device", metavar="N", help="with --ep cuda, as in gqa run")
    parser.add_argument("-k", dest="expression", default="", metavar="EXPR", help="as in gqa run")
    options = parser.parse_args()
    if options.ep is not None:
        target = target_for(options.ep, OptionValues(device=options.device))
        print_times(
            target,
            lambda: bare_loop(target, options.device),
            options.paths,
            options.expression,
            options.repeat,
            markdown=options.markdown,
        )
        return
    print(f"minimum of {options.repeat}, {os.cpu_count()} cores\n")
    print_table(measure(options.paths, options.repeat), markdown=options.markdown)


if __name__ == "__main__":
    main()
