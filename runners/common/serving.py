"""A runner's loop: requests on standard input, answers on standard output (runners/README.md).

Standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

from tensor_file import BadFile


class Target(Protocol):
    """An object that answers requests."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request with the command describe or run, without its id."""
        ...


def serve(start: Callable[[], Target], compiles: bool = False) -> int:
    """Answer all requests with the target that ``start`` creates; returns the exit status.

    ``start`` is called after the streams are redirected, so it may load libraries that print.
    ``compiles``: each case needs the additional time of a runner that compiles.
    """
    requests, answers = take_streams()
    # No runner multiplies matrices with NumPy, whose threads wait for work by keeping a core busy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        target = start()
        # Imported objects stay alive: the collector need not visit them after each case.
        gc.freeze()
        for line in requests:
            request = json.loads(line)
            if request["cmd"] not in ("describe", "run"):
                raise ValueError(f"unknown command {request['cmd']!r}")
            if compiles and request["cmd"] == "run":
                send(answers, {"id": request["id"], "outcome": "compiling"})
            send(answers, {"id": request["id"], **target.answer(request)})
    except (BadFile, OSError) as error:
        print(f"{program()}: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # an error of the runner or of the request
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        kind = type(error).__name__
        print(f"{program()}: {kind}: {error} ({place})", file=sys.stderr, flush=True)
        return 1
    return 0


def program() -> str:
    """The name of the runner's program."""
    return os.path.basename(sys.argv[0])


def take_streams() -> tuple[BinaryIO, int]:
    """Standard input, and a private copy of standard output for the answers only.

    From here on, anything that C or Python code prints to standard output goes to standard error,
    so it never mixes with an answer; and only this program reads the requests.
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
    """Write one complete answer as one line."""
    rest = json.dumps(answer).encode() + b"\n"
    while rest:
        rest = rest[os.write(answers, rest) :]
