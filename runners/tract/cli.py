"""Run cases on tract's command line: ``PYTHON cli.py --tract BINARY [--plain]``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. Each call of a model is a separate process. Standard library only.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import sys
import tempfile
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from answers import write_outputs
from availability import Unavailable, processor_name
from command_line import FAILED, Called, Tract, input_option
from facts import DTYPES, knobs, threads
from nnef_tensor import encode
from nnef_tensor import read as read_nnef
from onnx_graph import output_names
from serving import serve
from tensor_file import BadFile, Tensor, first_rows, read_tensor

FIX = "gqa setup tract"


def main() -> int:
    """Answer requests until there are none; return the exit status."""
    parser = argparse.ArgumentParser(description="Run cases on tract (runners/README.md).")
    parser.add_argument("--tract", metavar="BINARY", help="the program; without it, there is none")
    parser.add_argument(
        "--named", action="store_true", help="a person named it: it is that or none"
    )
    parser.add_argument("--plain", action="store_true", help="run the graph without optimising it")
    arguments = parser.parse_args()
    fix = None if arguments.named else FIX
    return serve(lambda: Target(arguments.tract, fix, not arguments.plain))


class Target:
    """A tract binary, or the reason why it is unavailable."""

    def __init__(self, binary: str | None, fix: str | None, optimised: bool) -> None:
        self.missing: Unavailable | None = None
        if binary is None:
            self.missing = Unavailable("there is no tract binary.", fix)
            return
        self.tract = Tract(binary, optimised)
        folder = tempfile.mkdtemp(prefix="gqa-tract-")
        try:
            self.tract.check(folder)
        except Unavailable as missing:
            self.missing = Unavailable(missing.reason, fix)
        finally:
            shutil.rmtree(folder)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        if self.missing is not None:
            return self.missing.answer()
        if request["cmd"] == "describe":
            return self.describe()
        try:
            return {"outcome": "ran", **run_case(self.tract, request)}
        except Ended as ended:
            return ended.answer
        except Unavailable as missing:
            return {"outcome": "unavailable", "reason": missing.reason}

    def describe(self) -> dict[str, Any]:
        """The answer to describe."""
        return {
            "outcome": "described",
            "runtime": "tract",
            "version": self.tract.version,
            "execution_provider": self.tract.runtime,
            "device": processor_name(),
            "dtypes": DTYPES,
            "features": ["keep"],
            "threads": threads(self.tract.environment),
            "versions": {
                "tract": self.tract.version,
                "binary": self.tract.binary,
                "runtimes": " ".join(self.tract.runtimes),
                "platform": platform.platform(),
                **knobs(),
            },
        }


class Ended(Exception):
    """A call gave no result: ``answer`` says whether tract rejected it or crashed."""

    def __init__(self, called: Called, step: int) -> None:
        super().__init__(called.status)
        death = called.death
        if death is not None:
            self.answer = {
                "outcome": "crashed",
                "step": step,
                "ended": death,
                "message": called.panic,
            }
            return
        if called.status != FAILED or called.error is None:
            raise BadFile(f"tract ended with status {called.status}: {called.last_words()}")
        self.answer = {
            "outcome": "rejected",
            "stage": "load" if called.ready_ms is None else "run",
            "step": step,
            "message": called.error,
        }


def run_case(tract: Tract, request: dict[str, Any]) -> dict[str, Any]:
    """Run the case that ``request`` names; the fields of a `ran` answer except its outcome.

    Raises `Ended` (tract rejected the call, or crashed), `Unavailable` (tract's formats cannot
    represent a tensor) and `BadFile` (the bundle is not usable, or tract left unexpected files).
    """
    bundle, out = request["bundle"], request["out"]
    model = f"{bundle}/model.onnx"
    names = output_names(model)
    steps = [
        Step(out, names, number, step, given(bundle, step["files"]))
        for number, step in enumerate(request["steps"])
    ]
    runs = []
    load, run = 0.0, math.inf
    for repeat in range(request["repeat"]):
        files, seconds = [], 0.0
        previous: dict[str, str] = {}
        for step in steps:
            called, previous = step.run(tract, model, repeat, previous)
            ready = called.ready_ms or 0.0
            load, seconds = max(load, ready), seconds + called.total_ms - ready
            files.append(step.convert(previous, repeat))
        runs.append(files)
        run = min(run, seconds)
    for step in steps:
        step.clean()
    return {"placement": tract.runtime, "runs": runs, "ms": {"load": load, "run": run}}


def given(bundle: str, files: dict[str, str]) -> dict[str, Tensor]:
    """The tensors that a step reads from the bundle."""
    return {name: read_tensor(f"{bundle}/{file}") for name, file in files.items()}


def write(path: str, tensor: Tensor) -> None:
    """Write a tensor to a new file of NNEF."""
    with open(path, "wb", buffering=0) as file:
        file.write(encode(tensor))


class Step:
    """One call of the model, in separate folders below the case's output folder.

    Inputs from the bundle are written once and read by every repeat.
    """

    def __init__(
        self,
        out: str,
        names: list[str],
        number: int,
        plan: dict[str, Any],
        tensors: dict[str, Tensor],
    ) -> None:
        self.out = out
        self.names = names
        self.number = number
        self.carry, self.keep = plan["carry"], plan.get("keep")
        self.given = {name: input_option(name, tensor) for name, tensor in tensors.items()}
        self.inputs = f"{out}/in{number}"
        self.folders = [self.inputs]
        os.mkdir(self.inputs)
        for name, tensor in tensors.items():
            write(f"{self.inputs}/{name}.dat", tensor)

    def run(
        self, tract: Tract, model: str, repeat: int, previous: dict[str, str]
    ) -> tuple[Called, dict[str, str]]:
        """Call the model; ``previous`` and the result are NNEF files by output."""
        given = dict(self.given)
        for name, output in self.carry.items():
            source = previous[output]
            tensor = read_nnef(source, output)
            link = f"{self.inputs}/{name}.dat"
            if repeat:
                os.unlink(link)
            if self.keep is None:
                os.link(source, link)
            else:
                tensor = first_rows(tensor, self.keep)
                write(link, tensor)
            given[name] = input_option(name, tensor)
        outputs = f"{self.out}/out{repeat}_{self.number}"
        called = tract.run(model, given.values(), self.inputs, outputs)
        self.folders.append(outputs)
        if called.status != 0:
            raise Ended(called, self.number)
        return called, self.written(outputs, model)

    def written(self, folder: str, model: str) -> dict[str, str]:
        """The files in ``folder`` by output, in the model's order.

        tract names a file by the wire of the output. It may use one wire for presents without
        elements, and then there is one file for both, which cannot be judged. A wire can also have
        the name of another value of the model: the present of a layer that borrows has the wire of
        the present that it borrows.
        """
        try:
            there = set(os.listdir(folder))
        except OSError as error:
            raise BadFile(f"tract ended well and wrote no outputs: {error}") from error
        wanted = [f"{name}.dat" for name in self.names]
        if strange := sorted(there - set(wanted)):
            with open(model, "rb") as file:
                content = file.read()
            if all(name.removesuffix(".dat").encode() in content for name in strange):
                raise Unavailable(
                    f"tract's command line wrote {', '.join(strange)}, which are no outputs of the"
                    " model, in place of outputs that share their memory"
                )
            raise BadFile(f"tract wrote {strange}, and the model's outputs are {self.names}")
        missing = [name for name, file in zip(self.names, wanted, strict=True) if file not in there]
        if missing and any(not read_nnef(f"{folder}/{file}", file).raw for file in there):
            raise Unavailable(
                f"tract's command line wrote no {', '.join(missing)}: it names files by wires, and "
                "here outputs without elements are one."
            )
        if missing:
            raise BadFile(f"tract ended well and wrote no {', '.join(missing)}")
        return {name: f"{folder}/{file}" for name, file in zip(self.names, wanted, strict=True)}

    def convert(self, written: dict[str, str], repeat: int) -> dict[str, str]:
        """Write each output as a TensorProto; return the file of each output."""
        tensors = (read_nnef(path, name) for name, path in written.items())
        return write_outputs(self.out, repeat, self.number, tensors)

    def clean(self) -> None:
        """Remove its folders and their content."""
        for folder in self.folders:
            for name in os.listdir(folder):
                os.unlink(f"{folder}/{name}")
            os.rmdir(folder)


if __name__ == "__main__":
    sys.exit(main())
