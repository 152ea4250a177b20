"""Run cases on ONNX Runtime: ``PYTHON runner.py --ep cpu|cuda`` or ``--plugin WORD``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. This program runs in any interpreter with an ``onnxruntime`` wheel of 1.20 or
later: it needs only the standard library, NumPy and that wheel.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import attention_kernels
import ort_availability
import ort_providers
from attention_kernels import KernelReport
from availability import Unavailable
from serving import serve


def main() -> int:
    """Answer requests until there are none; return the exit status."""
    arguments = parse_arguments()
    return serve(lambda: Target(arguments))


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run cases on ONNX Runtime (runners/README.md).")
    provider = parser.add_mutually_exclusive_group(required=True)
    provider.add_argument("--ep", choices=sorted(ort_availability.PROVIDERS))
    provider.add_argument(
        "--plugin",
        metavar="WORD",
        help="the library of a plugin execution provider, the Python module that has it, or the "
        "name of a provider that this onnxruntime has",
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="the device's number, from 0"
    )
    parser.add_argument(
        "--provider-option",
        type=provider_option,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the execution provider; repeat",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="the number of threads that a kernel may split its work among; with one, no bit of a "
        "result depends on how it is split",
    )
    parser.add_argument(
        "--placement",
        choices=["auto", "profile"],
        default="auto",
        help="how to find out where a node ran: as the version allows, or always by a profile",
    )
    return parser.parse_args()


def provider_option(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as a pair. Raises `argparse.ArgumentTypeError`."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not KEY=VALUE, such as sdpa_kernel=1")
    return key, value


class Target:
    """ONNX Runtime with one execution provider, or the reason why it is unavailable."""

    #: Of the kernels that the provider runs, if it is asked to report them.
    report: KernelReport | None = None

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.missing: Unavailable | None = None
        self.runtime: Any = None
        self.last_refusal: Exception | None = None
        self.options = options = dict(arguments.provider_option)
        try:
            if arguments.plugin:
                onnxruntime = ort_availability.load_any()
                provider: ort_providers.Provider = ort_providers.open_provider(
                    onnxruntime, arguments.plugin, arguments.device, options
                )
            else:
                name = ort_availability.PROVIDERS[arguments.ep]
                onnxruntime = ort_availability.load(name, arguments.device)
                provider = ort_providers.BuiltIn(onnxruntime, name, arguments.device, options)
        except Unavailable as missing:
            self.missing = missing
            return
        import ort_execution  # needs NumPy, which is there if onnxruntime is

        self.execution = ort_execution
        self.provider = provider
        by_profile = arguments.placement == "profile"
        self.runtime = ort_execution.Runtime(onnxruntime, provider, by_profile, arguments.threads)
        if attention_kernels.wanted():
            self.report = KernelReport()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        if self.missing is not None:
            return self.missing.answer()
        return self.describe() if request["cmd"] == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """The answer to describe."""
        return {
            "outcome": "described",
            "execution_provider": self.provider.name,
            "dtypes": self.runtime.dtypes(),
            "features": ["shared_buffer", "keep", "may_be_rejected"],
            "operator": ort_availability.operator_schema(self.runtime.onnxruntime),
            "threads": self.runtime.threads,
            "provider_options": self.options,
            **self.provider.description(),
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to run, with the kernels that the provider reports, if they are wanted."""
        if self.report is None:
            return self.outcome(request)
        self.report.start()
        try:
            answer = self.outcome(request)
        finally:
            kernels = self.report.kernels()
        return {**answer, "kernels": kernels} if answer["outcome"] == "ran" else answer

    def outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to run, without kernels."""
        try:
            return {"outcome": "ran", **self.execution.run_case(self.runtime, request)}
        except self.execution.Rejected as refusal:
            rejected = {
                "outcome": "rejected",
                "stage": refusal.stage,
                "step": refusal.step,
                "code": refusal.code,
                "message": refusal.message,
                "changed": refusal.changed,
            }
            if self.provider.name == ort_providers.CPU:
                return rejected
            import cuda_errors  # not at the start of every other target

            answer = cuda_errors.answer_of(rejected)
            if answer.get("replace_process"):
                # The traceback holds the session; ending it later could raise the error again and
                # abort.
                self.last_refusal = refusal
            return answer
        except Unavailable as missing:
            return {"outcome": "unavailable", "reason": missing.reason}


if __name__ == "__main__":
    sys.exit(main())
