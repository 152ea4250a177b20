#!/usr/bin/env python3
"""Runs a mutant, or the correct kernel, by the runner protocol (runners/README.md).

``runner.py --mutant NAME`` runs one mutant; without it, the correct kernel. With ``--by-folder``
the path of the bundle names the mutant to run, ``…/NAME/ab/abcdef``, so that one process can run
all of them: starting a process takes as long as a hundred cases. `gqa power` links the cache under
these names.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runners" / "common")]

import graph  # noqa: E402
import numpy as np  # noqa: E402
from areas import MUTANTS  # noqa: E402
from kernel import Kernel, Refused  # noqa: E402
from probe import probe  # noqa: E402
from tensor_file import Tensor, read_file, read_tensor, write_tensor  # noqa: E402

PROVIDER = "KernelExecutionProvider"
Arrays = dict[str, np.ndarray]

PROBE = probe()

#: The fields of a mutant that --list prints.
SHOWN = ("name", "area", "what", "kind", "only")


def main() -> int:
    """Answers requests until the input ends; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mutant", metavar="NAME", default="correct")
    parser.add_argument("--by-folder", action="store_true")
    parser.add_argument("--list", action="store_true", help="list the mutants as JSON lines")
    arguments = parser.parse_args()
    if arguments.list:
        for mutant in MUTANTS.values():
            print(json.dumps({name: getattr(mutant, name) for name in SHOWN}))
        return 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # some mutants crash; avoid core files
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bundles = Bundles()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if request["cmd"] == "describe":
            answer = describe()
        else:
            path = request["bundle"]
            name = path.split("/")[-3] if arguments.by_folder else arguments.mutant
            kernel = kernel_of(name)()
            answer = run(kernel, name, bundles.open(path), request)
            if name == "probe":
                touched = sorted(kernel.memory.get("touched", ()))
                print(json.dumps(touched), file=sys.stderr, flush=True)
        print(json.dumps({"id": request["id"], **answer}), file=answers, flush=True)
    return 0


def kernel_of(name: str) -> type[Kernel]:
    """The kernel named ``name``; `probe` is the correct one too (see probe.py)."""
    if name == "probe":
        return PROBE
    return Kernel if name == "correct" else MUTANTS[name].kernel


def describe() -> dict[str, Any]:
    return {
        "outcome": "described",
        "runtime": "mutant",
        "version": "1.0",
        "execution_provider": PROVIDER,
        "device": "NumPy",
        "dtypes": list(graph.TYPES),
        "features": ["shared_buffer"],
        "versions": {"numpy": np.__version__},
    }


class Bundles:
    """The last bundle, kept because `gqa power` runs every mutant on it."""

    def __init__(self) -> None:
        self._path = ""
        self._graph: graph.Graph | None = None
        self._tensors: dict[str, Tensor] = {}

    def open(self, path: str) -> Bundles:
        path = os.path.realpath(path)
        if path != self._path:
            self._path, self._graph, self._tensors = path, None, {}
        return self

    @property
    def graph(self) -> graph.Graph:
        if self._graph is None:
            self._graph = graph.Graph(read_file(f"{self._path}/model.onnx"))
        return self._graph

    def array(self, file: str) -> np.ndarray:
        """The tensor in ``file``, in memory of its own."""
        tensor = self._tensors.get(file)
        if tensor is None:
            tensor = self._tensors[file] = read_tensor(f"{self._path}/{file}")
        dtype = graph.NUMPY[tensor.data_type]
        return np.frombuffer(bytearray(tensor.raw), dtype).reshape(tensor.dims)


def run(kernel: Kernel, name: str, bundle: Bundles, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `run` request, without its id."""
    start = perf_counter()
    session = graph.Session(bundle.graph, kernel)
    load, runs, fastest = perf_counter() - start, [], float("inf")
    for repeat in range(request["repeat"]):
        outputs: Arrays = {}
        seconds, files = 0.0, []
        for number, step in enumerate(request["steps"]):
            feeds = {graph_input: bundle.array(file) for graph_input, file in step["files"].items()}
            feeds.update({fed: outputs[output] for fed, output in step["carry"].items()})
            start = perf_counter()
            try:
                outputs = session.run(feeds)
                for output, shared in step["share"].items():
                    session.kernel.bind(feeds[shared], outputs[output])
                    outputs[output] = feeds[shared]
            except Refused as refusal:
                return rejected(number, str(refusal))
            except Exception as error:
                if name in ("correct", "probe"):
                    raise
                # Any exception inside a runtime is an error to its users.
                place = traceback.extract_tb(error.__traceback__)[-1]
                return rejected(number, f"internal: {type(error).__name__} in {place.name}")
            seconds += perf_counter() - start
            files.append(write(outputs, f"{request['out']}/{repeat}_{number}_"))
        runs.append(files)
        fastest = min(fastest, seconds)
    return {
        "outcome": "ran",
        "placement": session.kernel.memory.get("placement", PROVIDER),
        "runs": runs,
        "ms": {"load": load * 1e3, "run": fastest * 1e3},
    }


def rejected(step: int, message: str) -> dict[str, Any]:
    return {"outcome": "rejected", "stage": "run", "step": step, "message": message}


def write(outputs: Arrays, prefix: str) -> dict[str, str]:
    """Writes a file for each output and returns the names."""
    files = {}
    for name, array in outputs.items():
        path = f"{prefix}{name}.pb"
        tensor = Tensor(name, graph.ONNX[array.dtype], array.shape, array.tobytes())
        write_tensor(path, tensor)
        files[name] = os.path.basename(path)
    return files


if __name__ == "__main__":
    sys.exit(main())
