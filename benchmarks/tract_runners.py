"""The overhead of the two runners for tract over tract itself, measured in one go on one machine.

    python benchmarks/tract_runners.py [--repeat 3] [--markdown] [PATH]...

Each case is run twice, as in the suite. The floor of ``cli.py`` is the binary, spawned twice with
the same options on the same inputs, which are already there as NNEF files; its outputs are neither
saved nor checked. The floor of ``wheel.py`` is a bare Python loop that reads the same bundles, sets
the inputs' facts, prepares, and runs twice; the stricter baseline has the inputs in memory already.
A case's time is the minimum of the repeats, with all programs measured right after each other on
each case; the table has the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from conformance.base.paths import data_path
from conformance.bundle.cache import RunnerFiles
from conformance.case.load import load
from conformance.run.assessment import jobs_for
from conformance.targets.tools import find_tract

sys.path.insert(0, str(data_path("runners") / "common"))
sys.path.insert(0, str(data_path("runners") / "tract"))

from command_line import ENVIRONMENT, input_option
from nnef_tensor import encode
from tensor_file import read_tensor

RUNNERS = data_path("runners") / "tract"

#: Number of runs of a case.
REPEAT = 2


class Line(NamedTuple):
    """One way to run a bundle, and its baseline."""

    what: str
    run: Callable[[RunnerFiles], Any]
    floor: str


class Spoken:
    """A runner without the harness."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            (sys.executable, *argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.out = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.answer = self.ask({"id": 0, "cmd": "describe"})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def run(self, bundle: RunnerFiles) -> str:
        """Run the bundle and return the outcome."""
        steps = [step.model_dump() for step in bundle.steps]
        request = {"id": 1, "cmd": "run", "bundle": str(bundle.path), "out": self.out}
        outcome: str = self.ask({**request, "repeat": REPEAT, "steps": steps})["outcome"]
        return outcome

    def clear(self) -> None:
        """Empty the folder for the next run, as the harness does outside the runner's own time."""
        shutil.rmtree(self.out)
        os.mkdir(self.out)


def spawned(binary: str, folder: Path) -> Callable[[RunnerFiles], None]:
    """The binary on a bundle whose inputs `prepare` has written."""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1", **ENVIRONMENT}
    nothing = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, nothing, stream) for stream in range(3)]

    def run(bundle: RunnerFiles) -> None:
        inputs = folder / bundle.path.name
        argv = [binary, str(bundle.path / "model.onnx")]
        for option in (inputs / "options").read_text().split():
            argv += ("-i", option)
        argv += ("-O", "--runtime", "cpu", "run", "--input-from-nnef", str(inputs / "in"))
        for _ in range(REPEAT):
            pid = os.posix_spawn(binary, argv, environment, file_actions=actions)
            _, status = os.waitpid(pid, 0)
            if status:  # a rejection, which the suite does not repeat
                return

    return run


def prepare(bundle: RunnerFiles, folder: Path) -> None:
    """Write the inputs of the bundle's first call as NNEF files."""
    inputs = folder / bundle.path.name
    (inputs / "in").mkdir(parents=True)
    options = []
    for name, file in bundle.steps[0].files.items():
        tensor = read_tensor(str(bundle.path / file))
        (inputs / "in" / f"{name}.dat").write_bytes(encode(tensor))
        options.append(input_option(name, tensor))
    (inputs / "options").write_text("\n".join(options))


def arrays_of(bundle: RunnerFiles) -> dict[str, np.ndarray]:
    """The inputs of the bundle's first call."""
    files = bundle.steps[0].files.items()
    return {
        name: numpy_helper.to_array(onnx.load_tensor(str(bundle.path / file)))
        for name, file in files
    }


def bare_loop(known: dict[Path, dict[str, np.ndarray]]) -> Callable[[RunnerFiles], None]:
    """The package tract by its public interface; reads inputs that are not in ``known``."""
    import tract  # type: ignore[import-not-found,import-untyped,unused-ignore]

    os.environ["RUST_LIB_BACKTRACE"] = "0"
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    context, runtime = tract.onnx(), tract.runtime_for_name("default")

    def run(bundle: RunnerFiles) -> None:
        feeds = known.get(bundle.path) or arrays_of(bundle)
        try:
            model = context.load(bundle.path / "model.onnx")
            names = [model.input_name(index) for index in range(model.input_count())]
            for index, name in enumerate(names):
                array = feeds[name]
                word = f"{array.dtype.kind}{8 * array.itemsize}"
                fact = ",".join([*map(str, array.shape), word])
                model.set_input_fact(index, fact)
            prepared = runtime.prepare(model.into_model())
            for _ in range(REPEAT):
                for value in prepared.run([feeds[name] for name in names]):
                    value.to_numpy()
        except tract.TractError:  # a rejection is a result; the suite runs these cases too
            return

    return run


def bundles_of(paths: Sequence[Path]) -> list[RunnerFiles]:
    """The single calls that tract's formats can represent."""
    prepared = [job.prepared for case in load(paths) for job in jobs_for(case)]
    known = {1, 2, 3, 6, 7, 10}
    return [
        bundle
        for bundle in {bundle.path: bundle for bundle in prepared}.values()
        if len(bundle.steps) == 1
        and not bundle.steps[0].share
        and all(
            read_tensor(str(bundle.path / file)).data_type in known
            for file in bundle.steps[0].files.values()
        )
    ]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[data_path("cases")])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    bundles = bundles_of(arguments.paths)
    found = find_tract()
    folder = Path(tempfile.mkdtemp(prefix="gqa-benchmark-"))
    cli = Spoken(str(RUNNERS / "cli.py"), *(("--tract", str(found.path)) if found else ()))
    wheel = Spoken(str(RUNNERS / "wheel.py"))
    lines = []
    if found and cli.answer["outcome"] == "described":
        for bundle in bundles:
            prepare(bundle, folder)
        lines.append(Line("the binary alone", spawned(str(found.path), folder), ""))
        lines.append(Line("`cli.py`", cli.run, "the binary alone"))
    if wheel.answer["outcome"] == "described":
        arrays = {bundle.path: arrays_of(bundle) for bundle in bundles}
        lines.append(Line("a bare loop", bare_loop({}), ""))
        lines.append(Line("the same, inputs in memory", bare_loop(arrays), "a bare loop"))
        lines.append(Line("`wheel.py`", wheel.run, "a bare loop"))
    # A panic ends a bare loop and the wheel's runner: find those cases with the binary's runner.
    crash = set()
    for bundle in bundles:
        if found and cli.run(bundle) == "crashed":
            crash.add(bundle.path)
        cli.clear()
    best: dict[tuple[str, Path], float] = {}
    for _ in range(arguments.repeat + 1):  # the first is to warm up
        for bundle in bundles:
            if bundle.path in crash:
                continue
            for line in lines:
                start = time.perf_counter()
                line.run(bundle)
                seconds = time.perf_counter() - start
                cli.clear()
                wheel.clear()
                key = (line.what, bundle.path)
                best[key] = min(best.get(key, seconds), seconds)
    means = {
        line.what: 1e3 * float(np.mean([s for (what, _), s in best.items() if what == line.what]))
        for line in lines
    }
    print(f"{len(bundles) - len(crash)} calls, {os.cpu_count()} cores\n")
    if arguments.markdown:
        print("| program | ms per case | ratio to its floor |\n| --- | ---: | ---: |")
    for line in lines:
        ratio = f"{means[line.what] / means[line.floor]:.2f}" if line.floor else ""
        cells = (line.what, f"{means[line.what]:.2f}", ratio)
        print(
            f"| {' | '.join(cells)} |" if arguments.markdown else "{:28} {:>8} {:>6}".format(*cells)
        )
    shutil.rmtree(folder)
    for runner in (cli, wheel):
        runner.process.kill()
        shutil.rmtree(runner.out)


if __name__ == "__main__":
    main()
