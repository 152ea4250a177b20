"""Runs ``gqa`` many times, each in a process of its own that begins with everything imported.

A server forks a process for each request, so that a command takes milliseconds. What runs there is
`main`, with its own standard streams: pipes, or a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from as_user import Done

from conformance.base.paths import ROOT
from conformance.cli.main import main

#: The status of a command that took too long and was killed.
HUNG: Final = -1


class Commands:
    """A server of commands that run in ``folder``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        tests = Path(__file__).parents[1]
        path = os.pathsep.join(map(str, (ROOT, tests, Path(__file__).parent)))
        self.folder = folder
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
            text=True,
        )

    def gqa(
        self,
        *arguments: str,
        terminal: bool = False,
        seconds: float = 20,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """``gqa`` on pipes, or on one terminal for both streams. `HUNG` after ``seconds``."""
        request = {
            "arguments": [os.fsencode(argument).decode("latin-1") for argument in arguments],
            "terminal": terminal,
            "seconds": seconds,
            "environment": dict(environment or {}),
        }
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return Done(**json.loads(self._server.stdout.readline()))

    def close(self) -> None:
        """End the server."""
        self._server.communicate()


@contextmanager
def commands(folder: Path, environment: Mapping[str, str]) -> Iterator[Commands]:
    """A server, for the length of the block."""
    server = Commands(folder, environment)
    try:
        yield server
    finally:
        server.close()


def _serve() -> None:
    import conformance.cli.drawing  # noqa: F401
    from conformance.cli.commands import COMMANDS, command

    for name in COMMANDS:
        command(name)

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), file=answers, flush=True)


def _run(
    arguments: list[str], terminal: bool, seconds: float, environment: dict[str, str]
) -> dict[str, Any]:
    """Run ``main`` in a child, read what it writes, and kill it after ``seconds``."""
    out = pty.openpty() if terminal else os.pipe()
    err = out if terminal else os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out[1], 1)
            os.dup2(err[1], 2)
            os.closerange(3, 100)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", 1 if terminal else -1) for n in (1, 2))
            os.environ.update(environment)
            sys.argv = ["gqa", *(os.fsdecode(text.encode("latin-1")) for text in arguments)]
            main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    for descriptor in {out[1], err[1]}:
        os.close(descriptor)
    read: dict[int, bytes] = {out[0]: b"", err[0]: b""}
    left = [*read]
    until = time.monotonic() + seconds
    hung = False
    while left:
        ready, _, _ = select.select(left, [], [], max(0.0, until - time.monotonic()))
        if not ready:
            hung = True
            os.killpg(child, signal.SIGKILL)
            break
        for descriptor in ready:
            try:
                data = os.read(descriptor, 1 << 16)
            except OSError:  # the terminal's other side is closed
                data = b""
            read[descriptor] += data
            if not data:
                left.remove(descriptor)
    _, code = os.waitpid(child, 0)
    for descriptor in read:
        os.close(descriptor)
    first, *second = (text.decode(errors="replace") for text in read.values())
    status = HUNG if hung else os.waitstatus_to_exitcode(code)
    return {"status": status, "out": first, "err": second[0] if second else ""}


if __name__ == "__main__":
    _serve()
