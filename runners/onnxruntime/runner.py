"""Run cases on ONNX Runtime: ``PYTHON runner.py --ep cpu|cuda``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. This program runs in any interpreter that has an ``onnxruntime`` wheel from
1.20 on: it needs the standard library, NumPy and that wheel.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import traceback
from typing import Any, BinaryIO

# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ort_availability
from tensor_file import BadFile


def main() -> int:
    """Answer requests until there are none; the exit status."""
    arguments = parse_arguments()
    requests, answers = take_streams()
    target = Target(ort_availability.PROVIDERS[arguments.ep], arguments.placement == "profile")
    # What was imported stays: the collector need not walk it again and again between cases.
    gc.freeze()
    try:
        for line in requests:
            request = json.loads(line)
            answer = {"id": request["id"], **target.answer(request)}
            send(answers, answer)
    except (BadFile, OSError) as error:
        print(f"runner.py: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # a fault of this program or of the request
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        print(f"runner.py: {type(error).__name__}: {error} ({place})", file=sys.stderr, flush=True)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run cases on ONNX Runtime (runners/README.md).")
    parser.add_argument("--ep", choices=sorted(ort_availability.PROVIDERS), required=True)
    parser.add_argument(
        "--placement",
        choices=["auto", "profile"],
        default="auto",
        help="how to find out where a node ran: as the version allows, or always by a profile",
    )
    return parser.parse_args()


def take_streams() -> tuple[BinaryIO, int]:
    """Standard input, and a private copy of standard output for the answers alone.

    What C or Python prints to standard output from here on goes to standard error, so that it
    never mixes with an answer; and nothing but this program reads the requests.
    """
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return requests, answers


def send(answers: int, answer: dict[str, Any]) -> None:
    """Write one answer, whole, as one line."""
    rest = json.dumps(answer).encode() + b"\n"
    while rest:
        rest = rest[os.write(answers, rest) :]


class Target:
    """ONNX Runtime with one execution provider, or the reason why there is none."""

    def __init__(self, provider: str, prove_by_profile: bool) -> None:
        self.provider = provider
        self.missing: ort_availability.Unavailable | None = None
        self.runtime: Any = None
        try:
            onnxruntime = ort_availability.load(provider)
        except ort_availability.Unavailable as missing:
            self.missing = missing
            return
        import ort_execution  # needs NumPy, which is there if onnxruntime is

        self.execution = ort_execution
        self.runtime = ort_execution.Runtime(onnxruntime, provider, prove_by_profile)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        command = request["cmd"]
        if command not in ("describe", "run"):
            raise ValueError(f"unknown command {command!r}")
        if self.missing is not None:
            return unavailable(self.missing)
        return self.describe() if command == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """What is here."""
        onnxruntime = self.runtime.onnxruntime
        return {
            "outcome": "described",
            "runtime": "onnxruntime",
            "version": onnxruntime.__version__,
            "execution_provider": self.provider,
            "device": ort_availability.device(self.provider),
            "dtypes": self.runtime.dtypes(),
            "features": ["shared_buffer"],
            "versions": ort_availability.versions(onnxruntime, self.provider),
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """What became of one case."""
        try:
            return {"outcome": "ran", **self.execution.run_case(self.runtime, request)}
        except self.execution.Rejected as refusal:
            return {
                "outcome": "rejected",
                "stage": refusal.stage,
                "step": refusal.step,
                "code": refusal.code,
                "message": refusal.message,
            }
        except ort_availability.Unavailable as missing:
            return {"outcome": "unavailable", "reason": missing.reason}


def unavailable(missing: ort_availability.Unavailable) -> dict[str, Any]:
    """The answer where nothing can be tried."""
    return {"outcome": "unavailable", "reason": missing.reason, "fix": missing.fix}


if __name__ == "__main__":
    sys.exit(main())
