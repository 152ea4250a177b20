"""The command ``gqa``."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

import click

from conformance import __version__
from conformance.base.yaml_source import InputError
from conformance.bundle.cache import BundleError
from conformance.case.corpus import NothingMeant
from conformance.case.selection import SelectionError
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    BAD_INPUT,
    INFRASTRUCTURE,
    INTERRUPTED,
    BadArgument,
    say,
)
from conformance.cli.doctor import cache, doctor
from conformance.cli.export import NotExported, export
from conformance.cli.one_result import NoResult
from conformance.cli.power import power
from conformance.cli.report import diff, report
from conformance.cli.run import run
from conformance.cli.setup import setup
from conformance.cli.show import list_cases, show
from conformance.results.errors import ResultsError
from conformance.targets.catalogue import TargetError
from conformance.targets.setup.tract import NoRelease, SetupError

#: What ``git bisect run`` takes: 125 for a commit that cannot be tested, from 128 on for the end.
_BISECT: Final = {INFRASTRUCTURE: 125, BAD_INPUT: 128}


def main() -> NoReturn:
    """The entry point: runs the command and exits with its status, without a traceback."""
    # Ctrl-C, SIGTERM, a closed terminal and a closed pipe all end a run in the same orderly way.
    # Signals that are ignored, as under nohup, stay ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    # A terminal without ✓ shows a question mark.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        status = gqa.main(prog_name="gqa", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("Interrupted.")
        status = INTERRUPTED
    except InputError as error:
        for problem in error.problems:
            say(str(problem))
        status = BAD_INPUT
    except (BadArgument, NothingMeant, SelectionError, TargetError, NoRelease) as error:
        say(str(error))
        status = BAD_INPUT
    except (ResultsError, BundleError, NoResult, NotExported, SetupError) as error:
        say(str(error))
        status = INFRASTRUCTURE
    except SystemExit as error:
        # click and rich raise it for a closed pipe, with a status that would mean UNEXPECTED.
        status = INTERRUPTED if error.code else ALL_AS_EXPECTED  # 0: of a shell's completion
    except OSError as error:
        # Standard output is on a full disk. Redirect it, so that flushing the buffer does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        say(f"Cannot continue: {error.strerror or error}.")
        status = INFRASTRUCTURE
    if "--bisect" in sys.argv:
        status = _BISECT.get(status, status)
    raise SystemExit(status)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gqa-conformance", message="%(prog)s %(version)s")
def gqa() -> None:
    """Conformance tests for com.microsoft.GroupQueryAttention."""


for command in (run, list_cases, show, export, report, diff, doctor, setup, cache, power):
    gqa.add_command(command)
