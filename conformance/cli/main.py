"""The entry point of ``gqa``; it handles signals before it imports a command, which is slow."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

from conformance.base import interrupts
from conformance.base.interrupts import INTERRUPTED
from conformance.base.processes import use_absolute_paths
from conformance.base.tuning import collect_seldom
from conformance.cli.streams import flush_or_discard, safe_streams


def main() -> NoReturn:
    """Runs the command and exits with its status, without a traceback."""
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):
        interrupts.install()
        use_absolute_paths()
        collect_seldom()
        with safe_streams():
            try:
                from conformance.cli.commands import run_command

                status = run_command()
            finally:
                flush_or_discard()
        interrupts.ignore()
    interrupts.ignore()  # also where a signal has ended the block above
    raise SystemExit(status)
