"""Run cases on OpenVINO's processor plugin: ``PYTHON openvino_runner.py [--threads N]``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. This program runs in any interpreter with the package ``openvino`` of 2026.0
or later: it needs the standard library, that package and NumPy, which the package needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from answers import answer_of
from availability import Unavailable, first_line, is_older, pip, processor_name
from openvino_execution import Runtime, run_case
from serving import serve

OLDEST = (2026, 0)
KNOWN_GOOD = "openvino==2026.4.1"

#: The types that an input of the operator may have; cases find out which of them are supported.
DTYPES = ["float32", "float16", "bfloat16", "int8", "uint8", "float8e4m3fn", "int32", "int64"]

#: Where the processor computes in bfloat16, the plugin does so with models in float32 by default.
PRECISION = "f32"


def main() -> int:
    """Answer requests until there are none; return the exit status."""
    parser = argparse.ArgumentParser(description="Run cases on OpenVINO (runners/README.md).")
    threads = "the number of threads that OpenVINO computes with; default: its own choice"
    parser.add_argument("--threads", type=int, default=0, metavar="N", help=threads)
    arguments = parser.parse_args()
    return serve(lambda: Target(arguments.threads))


def load() -> Any:
    """The module ``openvino`` of this interpreter, whose processor plugin starts.

    Raises `Unavailable` if it is missing, broken or too old.
    """
    # Importing openvino tells Google Analytics, and stores an identifier of the user, if this
    # package is there (docs/findings/openvino-telemetry.md). OpenVINO does without it.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        openvino: Any = importlib.import_module("openvino")
        version = version_of(openvino)
        if is_older(version, OLDEST):
            reason = f"openvino {version} is too old: this runner needs 2026.0 or later."
            raise Unavailable(reason, pip("install", KNOWN_GOOD))
        openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")
    except Unavailable:
        raise
    except Exception as error:  # a broken wheel can raise anything
        if isinstance(error, ModuleNotFoundError) and error.name == "openvino":
            reason = f"The package openvino is not installed in {sys.executable}."
            raise Unavailable(reason, pip("install", KNOWN_GOOD)) from error
        reason = f"openvino does not start in {sys.executable}: {first_line(error)}"
        raise Unavailable(reason, pip("install", "--force-reinstall", KNOWN_GOOD)) from error
    return openvino


def version_of(openvino: Any) -> str:
    """``2026.4.1`` of ``2026.4.1-22982-e213a147257-releases/2026/4``."""
    return str(openvino.__version__).partition("-")[0]


class Target:
    """OpenVINO on the processor, or the reason why it is unavailable."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.missing: Unavailable | None = None
        try:
            openvino = load()
        except Unavailable as missing:
            self.missing = missing
            return
        config: dict[str, str | int] = {"INFERENCE_PRECISION_HINT": PRECISION}
        if threads:
            config["INFERENCE_NUM_THREADS"] = threads
        self.runtime = Runtime(openvino, config)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        if self.missing is not None:
            return self.missing.answer()
        return self.describe() if request["cmd"] == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """The answer to describe."""
        core, openvino = self.runtime.core, self.runtime.openvino
        return {
            "outcome": "described",
            "runtime": "openvino",
            "version": version_of(openvino),
            "execution_provider": None,
            "device": processor_name(),
            "dtypes": DTYPES,
            "features": ["keep", "may_be_rejected"],
            "threads": self.threads or "default",
            "versions": {
                "python": platform.python_version(),
                "numpy": sys.modules["numpy"].__version__,  # which the package imported
                "openvino": openvino.__version__,
                "platform": platform.platform(),
                "processor": core.get_property("CPU", "FULL_DEVICE_NAME"),
                "capabilities": " ".join(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
                "precision": PRECISION,
            },
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to run."""
        return answer_of(lambda: run_case(self.runtime, request))


if __name__ == "__main__":
    sys.exit(main())
