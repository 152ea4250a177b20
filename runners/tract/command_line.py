"""tract's command line: how it is called, and the meaning of its exit status and its log.

Written for tract 0.22 and 0.23. The command line promises no stability, so `Tract.check` runs a
one-node model with all options that a case needs, once, before the first case.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from answers import shortened
from availability import Unavailable
from facts import THREADS, fact
from nnef_tensor import encode
from nnef_tensor import read as read_nnef
from probe import probe_model
from tensor_file import BadFile, Tensor

#: Exit statuses: of an error that tract reports, and of a Rust panic.
FAILED, PANICKED = 1, 101

FLOAT16 = 10  # a TensorProto.DataType

#: Raised by a fault of the process itself. Any other signal, also SIGKILL, comes from outside
#: (a user, a limit, a system that is out of memory) and says nothing about the runtime.
FAULTS = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"})

# Name of an input: usable in a fact (name:1,4,f32) and as a file name.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

# A line of env_logger: [2026-11-21T16:30:00.123456789Z INFO  tract::params] text.
LOG_LINE = re.compile(r"\[(?P<time>\S+)\s+(?P<level>[A-Z]+)\s+(?P<module>[\w:]+)\] ?(?P<text>.*)")
READY = "Model ready"  # logged once the model is loaded, optimised and planned, before it runs
BACKTRACE = "Stack backtrace:"
# Rust's messages for a full disk, a missing file, a thread that cannot be started.
OF_THE_SYSTEM = re.compile(r"\(os error \d+\)|\bOs \{ code: \d+")

#: The environment of tract: it logs warnings, and when the model is ready (`READY`);
#: and it computes in one thread, unless the user sets otherwise.
ENVIRONMENT = {
    "TRACT_LOG": "warn,tract::params=info",
    "RUST_LOG_STYLE": "never",
    "RUST_BACKTRACE": "0",
    "RUST_LIB_BACKTRACE": "0",
}


class Called(NamedTuple):
    """One process of tract that has ended.

    ``status`` is as in `subprocess.Popen.returncode`. ``log`` is standard error without the lines
    that only report progress. ``ready_ms`` is the time until the model was ready to run, None if it
    never was; ``total_ms`` is the lifetime of the process.
    """

    status: int
    log: str
    ready_ms: float | None
    total_ms: float

    @property
    def death(self) -> str | None:
        """The signal of a fault, or "panic"; None for a process that ended normally.

        Raises `BadFile` for an end that says nothing about tract.
        """
        if OF_THE_SYSTEM.search(self.error or self.panic):
            raise BadFile(f"tract had trouble with the system: {self.error or self.panic}")
        if self.status == PANICKED:
            return "panic"
        # A shell between this and tract reports a signal as 128 + its number.
        number = -self.status if self.status < 0 else self.status - 128
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if name in FAULTS:
            return name
        if self.status < 0:
            raise BadFile(f"tract was ended from outside, by {name}")
        return None

    @property
    def error(self) -> str | None:
        """The chain of causes that tract reports, without time stamps and stack trace."""
        return shortened("\n".join(chain_of_causes(self.log)).strip()) or None

    @property
    def panic(self) -> str:
        """The location and the text of a panic."""
        found = re.search(r"panicked at .*(?:\n(?!note:|stack backtrace:).*)*", self.log)
        text = shortened(found[0].strip()) if found else ""
        return re.sub(r"\S*/registry/src/[^/\s]+/", "", text)  # cargo's folder at build time

    def last_words(self) -> str:
        """The last line of the log, which usually gives the reason."""
        lines = self.log.strip().splitlines()
        return lines[-1] if lines else f"status {self.status}, and not a word"


def chain_of_causes(log: str) -> Iterator[str]:
    """The lines of the error that tract logs before it ends with status 1."""
    telling = False
    for line in log.splitlines():
        logged = LOG_LINE.fullmatch(line)
        if logged:
            telling = logged["level"] == "ERROR"
            line = logged["text"]
        if line.strip() == BACKTRACE:
            telling = False
        if telling:
            yield line.rstrip()


class Tract:
    """A tract binary; ``optimised`` is its option -O; without it the graph runs unoptimised.

    ``runtime`` is tract's name for the engine that computes. It is requested by name, and tract
    ends with an error if it has no engine of that name: so a call that ran, ran on this engine.
    Before 0.23 tract has no names for engines, and computes on the CPU unless an option says
    otherwise.
    """

    def __init__(self, binary: str, optimised: bool) -> None:
        self.binary = binary
        self.optimised = optimised
        self.runtime = "cpu" if optimised else "unoptimized"
        self.environment = {THREADS: "1", **os.environ, **ENVIRONMENT}
        self.version = ""
        self.names_runtimes = True
        self.runtimes: list[str] = []

    def check(self, folder: str) -> None:
        """Determine version and runtimes, and try every option; ``folder`` is empty, for its files.

        Raises `Unavailable` if the program is not tract, or has another command line.
        """
        told = self.ask("--version")
        version = re.search(r"\d+\.\d+\.\d+\S*", told)
        if version is None or "tract" not in told:
            said = told.partition("\n")[0]
            raise Unavailable(f"{self.binary} is no tract: to --version it says {said!r}.")
        self.version = version[0]
        self.names_runtimes = not self.version.startswith("0.22.")
        called = self.try_options(folder)
        if called is not None:
            raise Unavailable(
                f"tract {self.version} ({self.binary}) is not called as this runner calls it, which"
                f" is for 0.22 and 0.23: {called}"
            )
        if self.names_runtimes:
            self.runtimes = re.findall(r"[\w-]+", self.ask("list-runtimes"))

    def ask(self, *arguments: str) -> str:
        """tract's output for a simple command."""
        try:
            done = subprocess.run(
                (self.binary, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not answer"
            raise Unavailable(f"{self.binary} cannot be started: {reason}.") from error
        return done.stdout.decode(errors="replace").strip()

    def try_options(self, folder: str) -> str | None:
        """Run ``y = Relu(x)`` as a case is run; returns what is wrong, or None."""
        inputs, outputs = os.path.join(folder, "in"), os.path.join(folder, "out")
        os.mkdir(inputs)
        model = os.path.join(folder, "model.onnx")
        with open(model, "wb") as file:
            file.write(probe_model(FLOAT16, 1, 4))
        given = Tensor("x", FLOAT16, (1, 4), b"\x00\xbc\x00\x00\x00\x3c\x00\x40")  # -1, 0, 1, 2
        with open(os.path.join(inputs, "x.dat"), "wb") as file:
            file.write(encode(given))
        called = self.run(model, [input_option("x", given)], inputs, outputs)
        if called.status != 0:
            if death := called.death:
                return f"it ended with {death}"
            return (called.error or called.log.strip() or called.last_words()).splitlines()[0]
        if called.ready_ms is None:
            return f"its log does not say '{READY}'"
        try:
            got = read_nnef(os.path.join(outputs, "y.dat"), "y")
        except BadFile as error:
            return f"{error}."
        if got != Tensor("y", FLOAT16, (1, 4), b"\0\0\0\0" + given.raw[4:]):
            return f"the Relu of -1, 0, 1, 2 in float16 comes back as {got}"
        return None

    def run(self, model: str, given: Iterable[str], inputs: str, outputs: str) -> Called:
        """Run ``model`` once, in a separate process.

        ``given`` has each input in the form of `input_option`; the folder ``inputs`` has the
        values.
        tract creates the folder ``outputs``, with one NNEF file for each output.
        """
        argv = [self.binary, model]
        for each in given:
            argv += ("-i", each)
        if self.optimised:
            argv.append("-O")
        if self.names_runtimes:
            argv += ("--runtime", self.runtime)
        argv += ("run", "--input-from-nnef", inputs, "--save-outputs-nnef", outputs)
        start, started = time.perf_counter(), time.time()
        # Without close_fds Python starts a process a millisecond faster; all descriptors of this
        # program are closed automatically in its child processes (PEP 446).
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a drawing of the graph
            stderr=subprocess.PIPE,
            env=self.environment,
            close_fds=False,
        )
        assert process.stderr is not None
        ready, kept = None, []
        with process.stderr:
            for raw in process.stderr:
                line = raw.decode(errors="replace")
                logged = LOG_LINE.match(line)
                if logged and logged["level"] == "INFO":
                    if logged["text"].strip() == READY:
                        ready = 1e3 * (seconds_of(logged["time"]) - started)
                    continue
                kept.append(line)
                os.write(2, raw)  # at once, so that it is there if the call times out
        status = process.wait()
        total = 1e3 * (time.perf_counter() - start)
        if ready is not None:  # two clocks: one of them may have been adjusted meanwhile
            ready = min(max(ready, 0.0), total)
        return Called(status, "".join(kept), ready, total)


def input_option(name: str, tensor: Tensor) -> str:
    """The argument of tract's option -i for an input; `Unavailable` if it cannot be expressed."""
    if not PLAIN_NAME.fullmatch(name):
        raise Unavailable(f"tract's command line has no way to name the input {name!r}.")
    return f"{name}:{fact(tensor)}"


def seconds_of(time_stamp: str) -> float:
    """The time of a log line, in seconds like `time.time`."""
    whole, _, fraction = time_stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
