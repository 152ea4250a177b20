"""Run cases on ONNX Runtime: ``PYTHON runner.py --ep cpu|cuda``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. This program runs in any interpreter that has an ``onnxruntime`` wheel from
1.20 on: it needs only the standard library, NumPy and that wheel.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import ort_availability
from availability import Unavailable
from serving import serve


def main() -> int:
    """Answer requests until there are none; the exit status."""
    arguments = parse_arguments()
    return serve(
        lambda: Target(ort_availability.PROVIDERS[arguments.ep], arguments.placement == "profile")
    )


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


class Target:
    """ONNX Runtime with one execution provider, or the reason why it is unavailable."""

    def __init__(self, provider: str, prove_by_profile: bool) -> None:
        self.provider = provider
        self.missing: Unavailable | None = None
        self.runtime: Any = None
        try:
            onnxruntime = ort_availability.load(provider)
        except Unavailable as missing:
            self.missing = missing
            return
        import ort_execution  # needs NumPy, which is there if onnxruntime is

        self.execution = ort_execution
        self.runtime = ort_execution.Runtime(onnxruntime, provider, prove_by_profile)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        if self.missing is not None:
            return self.missing.answer()
        return self.describe() if request["cmd"] == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """The answer to describe."""
        onnxruntime = self.runtime.onnxruntime
        return {
            "outcome": "described",
            "runtime": "onnxruntime",
            "version": onnxruntime.__version__,
            "execution_provider": self.provider,
            "device": ort_availability.device(self.provider),
            "dtypes": self.runtime.dtypes(),
            "features": ["shared_buffer"],
            "threads": self.execution.THREADS,
            "versions": ort_availability.versions(onnxruntime, self.provider),
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to run."""
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
        except Unavailable as missing:
            return {"outcome": "unavailable", "reason": missing.reason}


if __name__ == "__main__":
    sys.exit(main())
