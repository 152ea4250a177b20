#!/usr/bin/env python3
"""Runs a mutant, or the correct kernel, by the runner protocol (runners/README.md).

``runner.py --mutant NAME`` runs one mutant; without it, the correct kernel. With ``--by-folder``
the path of the bundle names the mutant to run, ``…/NAME/ab/abcdef``, so that one process can run
all of them: starting a process takes as long as a hundred cases. conformance.maintain.power links
the bundles under these names.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import traceback
from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runners" / "common")]

import graph  # noqa: E402
import numpy as np  # noqa: E402
from areas import MUTANTS  # noqa: E402
from execution import Arrays, Bundles, steps  # noqa: E402
from kernel import Kernel, Refused  # noqa: E402
from registry import Mutant  # noqa: E402
from switched import in_calls  # noqa: E402
from tensor_file import Tensor, write_tensor  # noqa: E402
from weak_mutation import probe  # noqa: E402

PROVIDER = "KernelExecutionProvider"

PROBE = probe()

#: The fields of a mutant that --list prints.
SHOWN = tuple(field.name for field in fields(Mutant) if field.name != "kernel")


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
            name = path.split("/")[-2] if arguments.by_folder else arguments.mutant
            kernel = kernel_of(name)()
            answer = run(kernel, name, bundles.open(path), request)
            if name == "probe":
                touched = sorted(kernel.memory.get("touched", ()))
                print(json.dumps(touched), file=sys.stderr, flush=True)
        print(json.dumps({"id": request["id"], **answer}), file=answers, flush=True)
    return 0


def kernel_of(name: str) -> type[Kernel]:
    """The kernel named ``name``; `probe` is the correct one too (see weak_mutation.py).

    ``MUTANT@PREDICATE`` is faulty in some calls only (see switched.py), and ``MUTANT+OTHER`` has
    both faults; of a step that both replace, the first one's.
    """
    if name == "probe":
        return PROBE
    mutants, _, predicate = name.partition("@")
    kernels = [Kernel if one == "correct" else MUTANTS[one].kernel for one in mutants.split("+")]
    kernel = kernels[0] if len(kernels) == 1 else type(mutants, tuple(kernels), {})
    return in_calls(kernel, predicate) if predicate else kernel


def describe() -> dict[str, Any]:
    return {
        "outcome": "described",
        "runtime": "mutant",
        "version": "1.0",
        "execution_provider": PROVIDER,
        "device": "NumPy",
        "dtypes": list(graph.TYPES),
        "features": ["shared_buffer", "keep", "may_be_rejected"],
        "versions": {"numpy": np.__version__},
    }


def run(kernel: Kernel, name: str, bundle: Bundles, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a `run` request, without its id."""
    start = perf_counter()
    session = graph.Session(bundle.graph, kernel)
    load, runs, fastest = perf_counter() - start, [], float("inf")
    for repeat in range(request["repeat"]):
        seconds, files = 0.0, []
        start = perf_counter()
        try:
            for number, outputs in enumerate(steps(session, bundle, request["steps"])):
                seconds += perf_counter() - start
                files.append(write(outputs, f"{request['out']}/{repeat}_{number}_"))
                start = perf_counter()
        except Refused as refusal:
            return rejected(len(files), str(refusal))
        except Exception as error:
            if name in ("correct", "probe"):
                raise
            # Any exception inside a runtime is an error to its users.
            place = traceback.extract_tb(error.__traceback__)[-1]
            return rejected(len(files), f"internal: {type(error).__name__} in {place.name}")
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


def write(outputs: Arrays | str, prefix: str) -> dict[str, str] | str:
    """Writes a file for each output and returns the names, or why a step is refused."""
    if isinstance(outputs, str):
        return outputs
    files = {}
    for name, array in outputs.items():
        path = f"{prefix}{name}.pb"
        tensor = Tensor(name, graph.ONNX[array.dtype], array.shape, array.tobytes())
        write_tensor(path, tensor)
        files[name] = os.path.basename(path)
    return files


if __name__ == "__main__":
    sys.exit(main())
