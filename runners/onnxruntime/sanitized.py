"""Run a runner's cases under NVIDIA's compute-sanitizer::

    PYTHON sanitized.py --tool auto|PATH RUNNER.py ARGUMENT…

It speaks the protocol of ``runners/README.md`` in the runner's place. For each case it starts the
runner twice, each time with this case alone: under memcheck, which finds accesses beyond an
allocation, and under initcheck, which finds reads of memory that nothing has written. The first
report is the answer, `crashed`; without one it is the runner's own. The logs go to standard error.
Standard library only.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../common"))
# Python does this itself, except where PYTHONSAFEPATH or -I forbids it.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import cuda_allocations
from answers import shortened
from availability import Unavailable, first_line, pip
from sanitizer_log import Log, read_log
from serving import serve

PROGRAM = "compute-sanitizer"
PACKAGE = "nvidia-cuda-sanitizer-api"

#: The tools, in their order, each with its options. After each allocation memcheck leaves 64 KiB
#: that no kernel may touch, so that a wide read is not found in the next one. Errors of CUDA's API
#: are left to the runtime, which reports those that matter.
TOOLS = {
    "memcheck": ("--padding", "65536", "--report-api-errors", "no"),
    "initcheck": (),
}

DESCRIBE = {"id": 0, "cmd": "describe"}

#: Characters of a log that are passed on: the first reports, which the others often follow from.
LONGEST_LOG = 24_000

#: Exit statuses of a runner after an error in the runner itself (``serving.serve``).
RUNNERS_OWN = (1, 2, 130)


class Call(NamedTuple):
    """The runner's answer under a tool, or None, how the runner ended, and the tool's log."""

    answer: dict[str, Any] | None
    status: int
    log: Log


def main() -> int:
    """Answer requests until there are none; return the exit status."""
    parser = argparse.ArgumentParser(description="Run a runner under compute-sanitizer.")
    parser.add_argument("--tool", metavar="auto|PATH", default="auto")
    parser.add_argument("runner", nargs=argparse.REMAINDER, metavar="RUNNER.py ARGUMENT…")
    arguments = parser.parse_args()
    return serve(lambda: Sanitized(arguments.tool, arguments.runner), compiles=True)


class Sanitized:
    """A runner under compute-sanitizer, or the reason why it is unavailable."""

    def __init__(self, tool: str, runner: list[str]) -> None:
        self.runner = [sys.executable, *runner]
        self.missing: Unavailable | None = None
        try:
            self.tool = find_tool() if tool == "auto" else tool
            self.version = version_of(self.tool)
        except Unavailable as missing:
            self.missing = missing

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request, without its id."""
        return self.describe() if request["cmd"] == "describe" else self.run(request)

    def describe(self) -> dict[str, Any]:
        """The runner's description, with the version of the tool.

        The runner first describes itself without a tool, since the tool ends any program if there
        is no driver, and then under memcheck: this starts the device, so the log shows whether the
        tool works.
        """
        alone = last_answer(self.start([], [DESCRIBE]).stdout, 0)
        if alone is None:
            raise OSError("the runner did not describe itself")
        if alone["outcome"] == "unavailable":
            return alone
        if self.missing is not None:
            return self.missing.answer()
        with tempfile.TemporaryDirectory() as folder:
            call = self.call("memcheck", [DESCRIBE], folder)
        if call.answer is None or not call.log.complete or call.log.reports:
            return self.trouble("memcheck", call).answer()
        return {**alone, "versions": {**alone.get("versions", {}), PROGRAM: self.version}}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first report as a crash, or the runner's own answer under the last tool."""
        answer: dict[str, Any] = {}
        for name in TOOLS:
            call = self.call(name, [DESCRIBE, request], request["out"])
            if call.log.reports:
                return found(name, call)
            if call.answer is None:
                return died(name, call)
            if not call.log.complete or call.log.trouble:
                return self.trouble(name, call).answer() | {"fix": None}
            # Each call had a separate process.
            answer = {k: v for k, v in call.answer.items() if k != "replace_process"}
            if answer["outcome"] != "ran":
                break
        return answer

    def call(self, name: str, requests: list[dict[str, Any]], folder: str) -> Call:
        """Run the runner with ``requests`` under the tool ``name``: the answer to the last one.

        The log is written to a new file in ``folder``, and passed on to standard error.
        """
        log = os.path.join(folder, f"{name}.log")
        under = [self.tool, "--tool", name, *TOOLS[name], "--log-file", log]
        done = self.start(under, requests)
        text = ""
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as file:
                text = file.read()
            os.unlink(log)
        read = read_log(text)
        if read.reports or read.trouble:
            rest = "\n[the rest is left out]" if len(text) > LONGEST_LOG else ""
            print(text[:LONGEST_LOG] + rest, file=sys.stderr, flush=True)
        return Call(last_answer(done.stdout, requests[-1]["id"]), done.returncode, read)

    def start(
        self, under: list[str], requests: list[dict[str, Any]]
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the runner to the end of ``requests``, with ``under`` in front of its command."""
        return subprocess.run(
            [*under, *self.runner],
            input=b"".join(json.dumps(request).encode() + b"\n" for request in requests),
            stdout=subprocess.PIPE,
            env={**os.environ, cuda_allocations.VARIABLE: "1"},
        )

    def trouble(self, name: str, call: Call) -> Unavailable:
        """Why the tool cannot be relied on here."""
        said = call.log.trouble or f"it ended with status {call.status} and no summary"
        if call.log.reports:
            said = f"it reports an error before any case was run: {call.log.reports[0]}"
        return Unavailable(f"{PROGRAM} {self.version} does not work here ({name}): {said}")


def found(name: str, call: Call) -> dict[str, Any]:
    """The answer for a call in which the tool ``name`` has found something."""
    more = f" ({call.log.total:,} errors in all)" if call.log.total > 1 else ""
    # Without an error of the runtime, which shows the step, it may have been in any.
    step = (call.answer or {}).get("step")
    return {
        "outcome": "crashed",
        "step": step,
        "ended": f"{name} error",
        "message": f"{call.log.reports[0]}{more}",
    }


def died(name: str, call: Call) -> dict[str, Any]:
    """The answer for a runner that ended without one; OSError for an error of its own.

    The tool passes on a signal as the negative or the plain number, or as 128 plus the number.
    """
    number = abs(call.status) - 128 if abs(call.status) > 128 else abs(call.status)
    faults = {signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV}
    if call.status in RUNNERS_OWN or number not in faults:
        said = call.log.trouble or "it wrote no more"
        raise OSError(f"the runner ended with status {call.status} under {name}: {said}")
    return {"outcome": "crashed", "step": None, "ended": signal.Signals(number).name}


def last_answer(output: bytes, id: int) -> dict[str, Any] | None:
    """The answer to the request ``id`` among the lines that the runner wrote, without its id."""
    for line in reversed(output.splitlines()):
        try:
            answer = json.loads(line)
        except ValueError:
            continue  # of a program between the two
        its_own = isinstance(answer, dict) and answer.pop("id", None) == id
        if its_own and answer.get("outcome") not in (None, "compiling"):
            return dict(answer)
    return None


# The tool


def find_tool() -> str:
    """The path of compute-sanitizer; raises `Unavailable` with the command that installs it."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    folders = [f"{home}/bin" for home in [*homes, "/usr/local/cuda"] if home]
    packages = [path for entry in sys.path for path in glob.glob(f"{entry}/nvidia/*/bin")]
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *packages, *folders])
    tool = shutil.which(PROGRAM, path=places)
    if tool is None:
        raise Unavailable(
            f"{PROGRAM} is neither on the PATH nor among the packages of {sys.executable} nor in "
            f"{' nor in '.join(folders)}.",
            pip("install", PACKAGE),
        )
    return tool


def version_of(tool: str) -> str:
    """The version that the tool reports, such as 2026.4.0.0; raises `Unavailable`."""
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60)
        said = done.stdout
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Unavailable(f"{tool} does not run: {first_line(error)}") from error
    named = re.search(r"Version (\S+)", said)
    if named is None:
        raise Unavailable(f"{tool} is no {PROGRAM}: it does not say its version.")
    return shortened(named[1])


if __name__ == "__main__":
    sys.exit(main())
