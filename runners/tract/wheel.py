"""Run cases on the engine in the PyPI package ``tract``: ``PYTHON wheel.py``.

Requests come on standard input, answers go to standard output; the protocol is in
``runners/README.md``. This program runs in any interpreter with the package ``tract`` of 0.23 or
later: it needs the standard library, and NumPy only because that package needs it.
"""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from answers import answer_of
from availability import Unavailable, processor_name
from facts import DTYPES, THREADS, knobs, threads
from serving import serve
from wheel_availability import load
from wheel_execution import Engine, run_case


def main() -> int:
    """Answer requests until there are none; return the exit status."""
    # The engine reads both when it first needs them. Attention over a long cache is split across
    # threads, so that its bits depend on the number of cores; a backtrace costs more than most
    # rejections, and is of no use to a user.
    os.environ.setdefault(THREADS, "1")
    os.environ["RUST_LIB_BACKTRACE"] = "0"
    return serve(Target)


class Target:
    """The engine in the package, or the reason why it is unavailable."""

    def __init__(self) -> None:
        self.missing: Unavailable | None = None
        try:
            self.engine = Engine(*load())
        except Unavailable as missing:
            self.missing = missing

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        if self.missing is not None:
            return self.missing.answer()
        return self.describe() if request["cmd"] == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """The answer to describe."""
        return {
            "outcome": "described",
            "runtime": "tract",
            "version": self.engine.version,
            "execution_provider": self.engine.place,
            "device": processor_name(),
            "dtypes": list(DTYPES),
            "features": ["keep", "may_be_rejected"],
            "threads": threads(os.environ),
            "versions": {
                "python": platform.python_version(),
                "numpy": sys.modules["numpy"].__version__,  # which the package imported
                "tract": self.engine.version,
                "platform": platform.platform(),
                **knobs(),
            },
        }

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to run."""
        return answer_of(lambda: run_case(self.engine, request))


if __name__ == "__main__":
    sys.exit(main())
