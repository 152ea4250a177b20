"""One runner process: started, limited, read, timed and ended. This module does not know cases.

`Runner.ask` sends a request, waits, and reports what happened (`News`): an answer's line, the end
of the process, a timeout, or a violation of the protocol. POSIX only.

Each process leads its own session and process group. So Ctrl-C in the terminal does not reach it,
and it is killed together with every process that it has started. A process that leaves the group (a
daemon) is not killed.
"""

from __future__ import annotations

import os
import resource
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final

from conformance.base.processes import START, start
from conformance.base.text import exact_line
from conformance.harness.protocol import excerpt

#: Time for a process to end once it has closed a pipe, or once its input is closed.
GRACE_SECONDS: Final = 1.0
#: One read; on Linux a pipe holds no more.
CHUNK_BYTES: Final = 64 << 10
#: How often to check for the end of a process that leaves its pipes open to a child …
POLL_SECONDS: Final = 0.1
#: … and that of one that has closed a pipe.
END_SECONDS: Final = 0.001
#: The most reads to empty a pipe, so that a pipe that is always full does not block the others.
MOST_READS: Final = 64


_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

#: Sent by somebody to end a process: they say nothing about the runtime.
FROM_OUTSIDE: Final = frozenset({"SIGHUP", "SIGINT", "SIGTERM"})

#: Signals that a shell between harness and runner reports as exit status 128 + number.
REPORTED_BY_SHELLS: Final = frozenset(
    {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
    | FROM_OUTSIDE
)


@dataclass(frozen=True)
class Command:
    """How a target's runner is started. ``env`` is added to this process's environment.

    ``memory_bytes`` overrides `ProcessLimits.memory_bytes`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None


def half_the_memory() -> int:
    """Half of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def default_memory_bytes() -> int:
    """Half of the machine's memory, at most 8 GiB."""
    return min(8 << 30, half_the_memory())


@dataclass(frozen=True)
class ProcessLimits:
    """The limits of one runner process.

    A case has ``case_seconds``, and ``compile_seconds`` more after its runner has reported that it
    compiles. ``memory_bytes`` limits its writable memory (RLIMIT_DATA, on Linux only); None for no
    limit. A limit of the address space is not possible, since CUDA reserves far more than it uses.
    After ``failures_in_a_row`` consecutive infrastructure failures a target is given up.
    """

    case_seconds: float = 30.0
    compile_seconds: float = 400.0
    start_seconds: float = 120.0
    memory_bytes: int | None = field(default_factory=default_memory_bytes)
    answer_bytes: int = 1 << 20
    stderr_bytes: int = 64 << 10
    failures_in_a_row: int = 3


class RunnerFailed(Exception):
    """A runner does not start, or fails repeatedly: there are no more outcomes from its target.

    ``sentence`` says what happened; ``fix`` is the command that repairs it, or None.
    """

    def __init__(self, sentence: str, fix: str | None = None) -> None:
        super().__init__(sentence, fix)
        self.sentence = sentence
        self.fix = fix

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class MissingAnswer:
    """What a process did instead of answering.

    ``what`` continues a sentence that starts with "the runner". ``late``: there was no answer
    within this many seconds, the time of the request. ``ended``: the process has ended. ``signal``
    is the signal that ended it, None if none did. ``half`` is the start of a line that it did not
    finish. ``early``: it had ended before the request was written, so this request is not the
    cause.
    """

    what: str
    late: float | None = None
    ended: bool = False
    signal: str | None = None
    half: str = ""
    early: bool = False


News = bytes | MissingAnswer


def _no_more(line: bytes) -> float:
    """No additional seconds: the ``more_for`` of a request without a notice."""
    return 0.0


class Runner:
    """A started runner process. Raises `RunnerFailed` if the operating system cannot start it."""

    def __init__(self, command: Command, limits: ProcessLimits) -> None:
        # If an exception (Ctrl-C) is raised here, the process sees the end of its input.
        self._popen = _spawn(command)
        self._guard = _killed_with_us(self._popen.pid)
        _limit_memory(self._popen.pid, command.memory_bytes or limits.memory_bytes)
        self._limits = limits
        self._in, self._out, self._err = _pipes(self._popen)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ, self._read_stdout)
        self._selector.register(self._err, selectors.EVENT_READ, self._read_stderr)
        self._unsent = memoryview(b"")
        self._written = bytearray()
        self._stderr = bytearray()
        self._dropped = 0
        self._asked = self._deadline = 0.0
        self._ended = False
        self._hung_up = ""

    def ask(
        self, line: bytes, seconds: float, more_for: Callable[[bytes], float] = _no_more
    ) -> News:
        """Send the request ``line``, wait ``seconds`` for its answer, and return what happened.

        A notice before the answer may extend the time: ``more_for`` returns the additional seconds
        for a line, 0 for the answer itself. There is at most one notice. A complete answer takes
        precedence.
        """
        self._stderr.clear()  # before the last words of an ended process are read
        self._dropped = 0
        early = self._has_ended()
        self._unsent = memoryview(line)
        self._asked = time.monotonic()
        self._deadline = self._asked + (GRACE_SECONDS if self._hung_up else seconds)
        if not early:
            self._send()
        while True:
            ended = self._has_ended()
            end = self._written.find(b"\n")
            if end >= 0 and (more := more_for(bytes(self._written[:end]))):
                more_for = _no_more
                seconds += more
                self._deadline += 0.0 if self._hung_up else more
                del self._written[: end + 1]
            elif end >= 0 or len(self._written) > self._limits.answer_bytes:
                return self._line(end)
            elif ended:
                status = self._popen.returncode
                name = _signal_of(status)
                what = f"died of {name}" if name else f"ended with status {status}"
                half = excerpt(bytes(self._written))
                return MissingAnswer(what, ended=True, signal=name, half=half, early=early)
            elif (left := self._deadline - time.monotonic()) <= 0:
                return self._overdue(seconds)
            else:
                pause = END_SECONDS if self._hung_up else POLL_SECONDS
                for key, _ in self._selector.select(min(left, pause)):
                    key.data()

    def elapsed_ms(self) -> float:
        """Milliseconds since the request was written."""
        return (time.monotonic() - self._asked) * 1e3

    def stderr(self) -> str:
        """The end of the runner's standard error since the request."""
        note = f"[{self._dropped} bytes before this are left out]\n" if self._dropped else ""
        return note + self._stderr.decode(errors="replace")

    def resident_bytes(self) -> int:
        """Resident memory of the process and of those that it started; 0 without a ``/proc``."""
        found, left = 0, [self._popen.pid]
        while left:
            process = f"/proc/{left.pop()}"
            with suppress(OSError, ValueError, IndexError):
                with open(f"{process}/statm", "rb", 0) as file:
                    found += int(file.read().split()[1]) * _PAGE
                with open(f"{process}/task/{process[6:]}/children", "rb", 0) as file:
                    left += map(int, file.read().split())
        return found

    def end(self) -> None:
        """Close the process's input, which makes it exit, and wait a short time for its end."""
        self._forget(self._in)
        self._in.close()
        self._wait()

    def kill(self) -> None:
        """Kill the process and its group, in any state, and close its pipes."""
        _kill_group(self._popen.pid)
        if self._guard is not None:
            with suppress(OSError):
                self._guard.communicate(b"\n")
        self._wait()  # one that SIGKILL does not end (stuck in a driver) is left
        self._selector.close()
        for pipe in (self._in, self._out, self._err):
            pipe.close()

    def _line(self, end: int) -> News:
        """The line that was written up to ``end``, if it is the only one and not too long."""
        most = self._limits.answer_bytes
        if not 0 <= end <= most:
            start = excerpt(bytes(self._written[:1000]))
            return MissingAnswer(f"wrote more than {most} bytes in one line, which starts: {start}")
        line, rest = bytes(self._written[:end]), bytes(self._written[end + 1 :])
        self._written.clear()
        if rest:
            return MissingAnswer(f"wrote more than one line: {excerpt(line)}, then {excerpt(rest)}")
        self._drain(self._read_stderr)  # written before the answer, and so belongs to it
        return line

    def _overdue(self, seconds: float) -> MissingAnswer:
        """The state of a runner that has not answered in time."""
        if self._hung_up:
            return MissingAnswer(f"{self._hung_up} and did not end")
        if self._written:
            half = excerpt(bytes(self._written))
            return MissingAnswer(f"began an answer and did not end it in time: {half}")
        if self._unsent:
            return MissingAnswer("did not read its request")
        return MissingAnswer(f"did not answer within {seconds:g} s", late=seconds)

    def _has_ended(self) -> bool:
        """Whether the process has ended.

        Its children, which may hold its pipes open, are then killed.
        """
        if not self._ended and self._popen.poll() is not None:
            self._ended = True
            _kill_group(self._popen.pid)
            self._drain(self._read_stdout)
            self._drain(self._read_stderr)
        return self._ended

    def _read_stdout(self) -> bool:
        """Read from standard output; return whether there was anything."""
        data = self._out.read(CHUNK_BYTES)
        if data == b"":
            self._forget(self._out)
            self._hang_up("closed its standard output")
        elif data:
            self._written += data
            if len(self._written) > self._limits.answer_bytes:
                self._forget(self._out)  # that is enough; the rest stays in the pipe
        return bool(data)

    def _read_stderr(self) -> bool:
        """Read from standard error and keep the end; return whether there was anything."""
        data = self._err.read(CHUNK_BYTES)
        if data == b"":
            self._forget(self._err)
        elif data:
            self._stderr += data
            over = max(0, len(self._stderr) - self._limits.stderr_bytes)
            del self._stderr[:over]
            self._dropped += over
        return bool(data)

    def _drain(self, read: Callable[[], bool]) -> None:
        for _ in range(MOST_READS):
            if not read():
                return

    def _send(self) -> None:
        """Write as much of the request as the pipe takes, and the rest once it takes more."""
        try:
            while self._unsent:
                taken = self._in.write(self._unsent)
                if taken is None:  # the pipe is full
                    if self._in not in self._selector.get_map():
                        self._selector.register(self._in, selectors.EVENT_WRITE, self._send)
                    return
                self._unsent = self._unsent[taken:]
        except BrokenPipeError:
            self._unsent = memoryview(b"")
            self._hang_up("closed its standard input")
        self._forget(self._in)

    def _hang_up(self, what: str) -> None:
        """Handle a closed pipe: usually the process is about to end, so wait a short time."""
        self._hung_up = self._hung_up or what
        self._deadline = min(self._deadline, time.monotonic() + GRACE_SECONDS)

    def _wait(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(GRACE_SECONDS)

    def _forget(self, pipe: IO[bytes]) -> None:
        with suppress(KeyError):
            self._selector.unregister(pipe)


def _killed_with_us(group: int) -> subprocess.Popen[bytes] | None:
    """A shell that kills the process group ``group`` if this process dies.

    A runner exits when its input ends, unless it hangs at that moment. Then only this process would
    kill it, and this process may have been killed itself. Before it ends normally, this process
    sends the shell a line. If the shell's input ends without a line, this process has died.
    """
    script = 'read -r released || kill -s KILL -- "-$1"'
    null = subprocess.DEVNULL
    with suppress(OSError):  # no shell, or no more processes: the runner has to do without
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", str(group)],
            cwd=START,
            stdin=subprocess.PIPE,
            stdout=null,
            stderr=null,
            env={},
            start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
        )
    return None


def _signal_of(status: int) -> str | None:
    """The name of the signal that ended a process, also if a shell reports it; else None."""
    number = -status if status < 0 else status - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"  # a real-time signal
    return name if status < 0 or name in REPORTED_BY_SHELLS else None


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    try:
        return start(
            command.argv,
            command.env,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        program, fix = command.argv[0], None
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileNotFoundError) and os.path.isfile(program):
            why = "the interpreter that its first line names does not exist"
        if isinstance(error, PermissionError) and os.path.isfile(program):
            fix = f"chmod +x {shlex.quote(program)}"
        what = f"{command.name}: the runner {exact_line(program, 300)} cannot be started"
        raise RunnerFailed(f"{what}: {why}.", fix) from error


def _limit_memory(pid: int, most: int | None) -> None:
    """Limit the writable memory of ``pid`` and of the processes that it starts later."""
    if sys.platform != "linux" or most is None:
        return
    # It has ended, or may not be limited (set-user-ID): then it runs without a limit.
    with suppress(OSError):
        limits = resource.prlimit(pid, resource.RLIMIT_DATA)
        lowest = min(most, *(limit if limit >= 0 else most for limit in limits))  # -1: no limit
        resource.prlimit(pid, resource.RLIMIT_DATA, (lowest, lowest))


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(pid, signal.SIGKILL)


def _pipes(popen: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    """The process's input, output and error output; a read returns None if no data is available."""
    pipes = [pipe for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None]
    for pipe in pipes:
        os.set_blocking(pipe.fileno(), False)
    return pipes
