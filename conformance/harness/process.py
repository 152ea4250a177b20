"""One runner process: started, limited, read, timed and ended. This module knows no cases.

`RunnerProcess` sends a request and reports what happened (`News`): an answer's line, the end of
the process, the end of its time, or a violation of the protocol. It never waits: its pipes do not
block, and its owner waits for many of them at once with one selector. POSIX only.

Each process leads its own session and process group. So Ctrl-C in the terminal does not reach it,
and it is killed together with everything that it has started. A process that leaves the group (a
daemon) is not killed.
"""

from __future__ import annotations

import errno
import os
import resource
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from conformance.base.processes import START, start
from conformance.harness.protocol import excerpt

#: Time for a process to end once it has closed a pipe, or once its input is closed.
GRACE_SECONDS: Final = 1.0
#: One read; on Linux a pipe holds no more.
CHUNK_BYTES: Final = 64 << 10
#: After a read of so many bytes the pipe may have been full because this side read it late. So the
#: runner gets a moment for the rest of its answer, even if its time is over.
FULL_BYTES: Final = 4096
#: At most so many reads to empty a pipe, so that one that is always full does not block the rest.
MOST_READS: Final = 64


@dataclass(frozen=True)
class Command:
    """How a target's runner is started. ``env`` is added to this process's environment.

    ``fix`` is the command that repairs a runner that does not start, if the target has one.
    ``memory_bytes`` takes the place of `Limits.memory_bytes`.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | Path | None = None
    fix: str | None = None
    memory_bytes: int | None = None


def half_the_memory() -> int:
    """Half of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def default_memory_bytes() -> int:
    """Half of the machine's memory, at most 8 GiB."""
    return min(8 << 30, half_the_memory())


@dataclass(frozen=True)
class Limits:
    """What one runner process may use.

    A case has ``case_seconds``, and ``compile_seconds`` more once its runner says that it compiles.
    ``memory_bytes`` limits its writable memory (RLIMIT_DATA, on Linux only); None for no limit. A
    limit of the address space is not possible, since CUDA reserves far more than it uses. After
    ``failures_in_a_row`` infrastructure failures a target is given up.
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

    ``sentence`` says what happened, ``fix`` is the command that repairs it or None.
    """

    def __init__(self, sentence: str, fix: str | None = None, stderr: str = "") -> None:
        super().__init__(sentence, fix, stderr)
        self.sentence = sentence
        self.fix = fix
        self.stderr = stderr

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True)
class Died:
    """The process ended without an answer; ``status`` as `subprocess.Popen.returncode`.

    ``half`` is the start of a line that it did not finish. ``early``: it had ended before the
    request was written, so this request is not the cause.
    """

    status: int
    half: str
    early: bool


@dataclass(frozen=True)
class Late:
    """There was no answer within ``seconds``, the time of the request."""

    seconds: float


@dataclass(frozen=True)
class Broken:
    """It violated the protocol: ``what`` continues a sentence that starts with "the runner"."""

    what: str


News = bytes | Died | Late | Broken


class RunnerProcess:
    """A started runner. ``selector`` gets its pipes, each with the method to call when it is ready.

    Raises `RunnerFailed` where the operating system cannot start it.
    """

    def __init__(self, command: Command, limits: Limits, selector: selectors.BaseSelector) -> None:
        # If an exception (Ctrl-C) is raised here, the process sees the end of its input.
        self._popen = _spawn(command)
        self._killed_with_us = _KilledWithUs(self._popen.pid)
        memory_bytes = command.memory_bytes or limits.memory_bytes
        if memory_bytes is not None:
            _limit_memory(self._popen.pid, memory_bytes)
        self._limits = limits
        self._selector = selector
        self._watched: set[int] = set()
        self._in = _not_blocking(self._popen.stdin)
        self._out = _not_blocking(self._popen.stdout)
        self._err = _not_blocking(self._popen.stderr)
        self._pidfd = _open_pidfd(self._popen.pid)
        self._written = bytearray()
        self._stderr = _Tail(limits.stderr_bytes)
        self._unsent = memoryview(b"")
        self._asked = self.deadline = time.monotonic()
        self._seconds = 0.0
        self._more_for: Callable[[bytes], float] | None = None
        self._ended = False
        self._ended_early = False
        self._hung_up = ""
        self._watch(self._out, selectors.EVENT_READ, self._on_stdout)
        self._watch(self._err, selectors.EVENT_READ, self._on_stderr)
        if self._pidfd is not None:
            self._watch(self._pidfd, selectors.EVENT_READ, self._on_end)

    @property
    def must_be_polled(self) -> bool:
        """Whether the selector does not report the process's end: call `poll` regularly."""
        return self._pidfd is None and not self._ended

    def ask(
        self, line: bytes, seconds: float, more_for: Callable[[bytes], float] | None = None
    ) -> None:
        """Send the request ``line``, which must be answered within ``seconds`` from now on.

        ``more_for`` gives the additional seconds that a line before the answer grants, 0 for the
        answer itself. There is at most one such line.
        """
        self._stderr.clear()  # before poll(), which reads the last words of an ended process
        self.poll()
        self._ended_early = self._ended
        self._unsent = memoryview(line)
        self._seconds = seconds
        self._more_for = more_for
        self._asked = time.monotonic()
        self.deadline = self._asked + (GRACE_SECONDS if self._hung_up else seconds)
        if not self._ended:
            self._send()

    def news(self) -> News | None:
        """What happened with the request; None: nothing yet. A complete answer takes precedence."""
        end = self._written.find(b"\n")
        if end >= 0 and self._more_for and (more := self._more_for(bytes(self._written[:end]))):
            self._more_for = None
            self._seconds += more
            if not self._hung_up:
                self.deadline += more
            del self._written[: end + 1]
            end = self._written.find(b"\n")
        if end < 0 and len(self._written) <= self._limits.answer_bytes:
            return self._no_line()
        if end < 0 or end > self._limits.answer_bytes:
            most, start = self._limits.answer_bytes, excerpt(bytes(self._written[:1000]))
            return Broken(f"wrote more than {most} bytes in one line, which starts: {start}")
        line, rest = bytes(self._written[:end]), bytes(self._written[end + 1 :])
        self._written.clear()
        if rest:
            return Broken(f"wrote more than one line: {excerpt(line)}, then {excerpt(rest)}")
        self._empty_stderr()
        return line

    def _no_line(self) -> News | None:
        """What happened if there is no complete line: it ended, is late, or nothing yet."""
        if self._ended:
            half = excerpt(bytes(self._written))
            return Died(self._popen.returncode, half, self._ended_early)
        if time.monotonic() < self.deadline:
            return None
        if self._hung_up:
            return Broken(f"{self._hung_up} and did not end")
        if self._written:
            half = excerpt(bytes(self._written))
            return Broken(f"began an answer and did not end it in time: {half}")
        if self._unsent:
            return Broken("did not read its request")
        return Late(self._seconds)

    def elapsed_ms(self) -> float:
        """Milliseconds since the request was written."""
        return (time.monotonic() - self._asked) * 1e3

    def stderr(self) -> str:
        """The end of what it wrote to standard error since the request."""
        return self._stderr.text()

    def poll(self) -> None:
        """Check for the end of the process without the selector."""
        if not self._ended and self._popen.poll() is not None:
            self._on_end()

    def end_input(self) -> None:
        """Close the process's input, which tells it to exit."""
        self._forget(self._in)
        _close(self._popen.stdin)

    def wait(self, until: float) -> None:
        """Wait for the end of the process, not longer than ``until`` (`time.monotonic`)."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        """Kill the process and its group, in any state, and close its pipes."""
        _kill_group(self._popen.pid)
        self._killed_with_us.release()
        # A process that SIGKILL does not end (stuck in a driver) is left.
        self.wait(time.monotonic() + GRACE_SECONDS)
        for descriptor in tuple(self._watched):
            self._forget(descriptor)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            _close(pipe)
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    # What the selector calls

    def _on_stdout(self) -> None:
        data = _read(self._out)
        if data is None:
            return
        if not data:
            self._forget(self._out)
            self._hang_up("closed its standard output")
            return
        self._written += data
        if len(data) >= FULL_BYTES:
            self.deadline = max(self.deadline, time.monotonic() + GRACE_SECONDS)
        if len(self._written) > self._limits.answer_bytes:
            self._forget(self._out)  # that is enough; the rest stays in the pipe

    def _on_stderr(self) -> None:
        data = _read(self._err)
        if data:
            self._stderr.add(data)
        elif data is not None:
            self._forget(self._err)

    def _on_end(self) -> None:
        """The process has ended. Its children may keep its pipes open: do not wait for them."""
        if self._pidfd is not None:
            self._forget(self._pidfd)
        _kill_group(self._popen.pid)  # before it is reaped, while the number is still its own
        self._popen.wait()
        for _ in range(MOST_READS):
            before = len(self._written)
            if self._out in self._watched:
                self._on_stdout()
            if len(self._written) == before:
                break
        self._empty_stderr()
        self._ended = True

    def _send(self) -> None:
        """Write as much of the request as the pipe takes, and the rest once it takes more."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._in, self._unsent) :]
        except BlockingIOError:
            self._watch(self._in, selectors.EVENT_WRITE, self._send)
            return
        except BrokenPipeError:
            self._unsent = memoryview(b"")
            self._hang_up("closed its standard input")
        self._forget(self._in)

    # Details

    def _hang_up(self, what: str) -> None:
        """A pipe was closed. Usually the process is about to end: wait for that, but not long."""
        self._hung_up = self._hung_up or what
        self.deadline = min(self.deadline, time.monotonic() + GRACE_SECONDS)

    def _empty_stderr(self) -> None:
        """Read the rest of the pipe, which was written before the answer and so belongs to it."""
        for _ in range(MOST_READS):
            data = _read(self._err) if self._err in self._watched else None
            if not data:
                return
            self._stderr.add(data)

    def _watch(self, descriptor: int, event: int, react: Callable[[], None]) -> None:
        if descriptor not in self._watched:
            self._selector.register(descriptor, event, react)
            self._watched.add(descriptor)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._watched:
            self._watched.remove(descriptor)
            self._selector.unregister(descriptor)


class _KilledWithUs:
    """Kills the process group ``group`` if this process dies before `release`.

    A runner exits when its input ends, unless it hangs at that moment. Only this process would kill
    it then, and it may have been killed itself. So a shell waits beside each runner: what it reads
    ends with a line where this process still lives, and without one where it does not.
    """

    _SCRIPT: Final = 'read -r released || kill -s KILL -- "-$1"'

    def __init__(self, group: int) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no shell, or no more processes: the runner has to do without
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", self._SCRIPT, "sh", str(group)],
                cwd=START,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # so that Ctrl-C in the terminal does not reach it
            )

    def release(self) -> None:
        """End the shell. Called once the group is dead, and its number may be another's."""
        if self._shell is not None:
            with suppress(OSError):
                self._shell.communicate(b"\n")


class _Tail:
    """The last ``most`` bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._most + CHUNK_BYTES:  # rarely, since cutting copies everything
            self._cut()

    def clear(self) -> None:
        self._kept.clear()
        self._dropped = 0

    def text(self) -> str:
        self._cut()
        text = self._kept.decode(errors="replace")
        return (
            f"[{self._dropped} bytes before this are left out]\n{text}" if self._dropped else text
        )

    def _cut(self) -> None:
        over = len(self._kept) - self._most
        if over > 0:
            del self._kept[:over]
            self._dropped += over


def _spawn(command: Command) -> subprocess.Popen[bytes]:
    try:
        return start(
            command.argv,
            command.env,
            command.cwd,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _cannot_start(command, error) from error


def _cannot_start(command: Command, error: OSError | ValueError) -> RunnerFailed:
    """The error that says why a program cannot be started."""
    program = command.argv[0]
    what = f"{command.name}: the runner {excerpt(program, 300)}"
    if command.cwd is not None and not os.path.isdir(command.cwd):
        return RunnerFailed(
            f"{what} is to start in {command.cwd}, which is not a folder.", command.fix
        )
    if os.sep not in program:
        path = shutil.which(program, path={**os.environ, **command.env}.get("PATH"))
        if path is None:
            return RunnerFailed(f"{what} is not found in PATH.", command.fix)
    else:
        path = os.path.join(command.cwd or "", program)
    if not os.path.exists(path):
        return RunnerFailed(f"{what} does not exist.", command.fix)
    if os.path.isdir(path):
        return RunnerFailed(f"{what} is a folder, not a program.", command.fix)
    if not os.access(path, os.X_OK):
        return RunnerFailed(f"{what} is not executable.", f"chmod +x {shlex.quote(path)}")
    with open(path, "rb") as file:
        first = file.readline(200).rstrip()
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOENT and first.startswith(b"#!"):
        return RunnerFailed(f"{what} names an interpreter that does not exist: {excerpt(first)}.")
    if number == errno.ENOEXEC and not first.startswith(b"#!"):
        return RunnerFailed(f"{what} is not a program: its first line names no interpreter (#!).")
    return RunnerFailed(f"{what} cannot be started: {error}.", command.fix)


def _limit_memory(pid: int, most: int) -> None:
    """Limit the writable memory of ``pid``, and of what it starts from now on."""
    if sys.platform != "linux":
        return
    # It has ended, or may not be limited (set-user-ID): then it runs without a limit.
    with suppress(OSError):
        lowest = most
        for limit in resource.prlimit(pid, resource.RLIMIT_DATA):
            if limit != resource.RLIM_INFINITY:
                lowest = min(lowest, limit)
        resource.prlimit(pid, resource.RLIMIT_DATA, (lowest, lowest))


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that is readable once ``pid`` has ended; None where the system has none."""
    if sys.platform == "linux":
        with suppress(OSError):  # an old kernel, or a sandbox that forbids it
            return os.pidfd_open(pid)
    return None


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(pid, signal.SIGKILL)


def _not_blocking(pipe: IO[bytes] | None) -> int:
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    return pipe.fileno()


def _read(descriptor: int) -> bytes | None:
    """Bytes from the pipe, at most `CHUNK_BYTES`; empty at its end; None: there are none now."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except BlockingIOError:
        return None


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        pipe.close()
