"""The entry point of ``gqa``; it handles signals before it imports the commands, which is slow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from conformance.base import interrupts
from conformance.base.garbage import uncollected
from conformance.base.interrupts import INTERRUPTED
from conformance.cli.streams import flush_or_discard, safe_streams


def main() -> NoReturn:
    """Runs the command and exits with its status, without a traceback."""
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):
        interrupts.install()
        with safe_streams():
            try:
                with uncollected(), _one_thread():  # a tenth of the time to start
                    from conformance.cli.commands import run_command
                status = run_command()
            finally:
                flush_or_discard()
        interrupts.ignore()
    interrupts.ignore()  # a signal came before or in the line above: there is no other first one
    raise SystemExit(status)


@contextmanager
def _one_thread() -> Iterator[None]:
    """NumPy, if it is first imported now, uses one thread: processes fill the cores.

    What is started later has the environment as it was.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]
