"""The commands of ``gqa``, and what each kind of error is to its user."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

import click

from conformance import __version__
from conformance.base import interrupts
from conformance.base.yaml_source import InputError
from conformance.bundle.cache import BundleError
from conformance.case.corpus import NothingMeant
from conformance.case.selection import SelectionError
from conformance.cli.bisect import bisect
from conformance.cli.check import check
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    BAD_INPUT,
    INFRASTRUCTURE,
    INTERRUPTED,
    BadArgument,
    say,
)
from conformance.cli.doctor import cache, doctor
from conformance.cli.env import env
from conformance.cli.expect import expect
from conformance.cli.export import NotExported, export
from conformance.cli.history import history
from conformance.cli.merge import merge
from conformance.cli.one_result import NoResult
from conformance.cli.plan import plan
from conformance.cli.power import power
from conformance.cli.report import diff, report
from conformance.cli.run import run
from conformance.cli.search import search
from conformance.cli.setup import setup
from conformance.cli.show import list_cases, show
from conformance.model.reading import ModelError
from conformance.report.bisect import CannotBisect
from conformance.results.errors import ResultsError
from conformance.targets.catalogue import TargetError
from conformance.targets.setup.tract import NoRelease, SetupError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gqa-conformance", message="%(prog)s %(version)s")
def gqa() -> None:
    """Conformance tests for com.microsoft.GroupQueryAttention."""


for command in (
    run,
    check,
    list_cases,
    search,
    show,
    export,
    report,
    diff,
    history,
    bisect,
    expect,
    merge,
    plan,
    doctor,
    setup,
    env,
    cache,
    power,
):
    gqa.add_command(command)


#: What ``git bisect run`` takes: 125 for a commit that cannot be tested, from 128 on for the end.
_BISECT: Final = {INFRASTRUCTURE: 125, BAD_INPUT: 128}
#: The options with which a command is what ``git bisect run`` runs.
_FOR_GIT: Final = ("--bisect", "--command")


def run_command() -> int:
    """Runs the command that the arguments name; returns its exit status. Errors are told."""
    status = _run()
    for_git = any(word.partition("=")[0] in _FOR_GIT for word in sys.argv)
    return _BISECT.get(status, status) if for_git else status


def _run() -> int:
    try:
        status: int = gqa.main(prog_name="gqa", standalone_mode=False)
        return status
    except click.ClickException as error:
        with suppress(OSError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _told("Interrupted.", INTERRUPTED)
    except (
        InputError,
        ModelError,
        BadArgument,
        NothingMeant,
        SelectionError,
        TargetError,
        NoRelease,
    ) as error:
        return _told(str(error), BAD_INPUT)
    except (ResultsError, BundleError, NoResult, NotExported, SetupError, CannotBisect) as error:
        return _told(str(error), INFRASTRUCTURE)
    except SystemExit as error:
        # click and rich raise it for a closed pipe, with a status that would mean UNEXPECTED.
        return INTERRUPTED if error.code else ALL_AS_EXPECTED  # 0: of a shell's completion
    except OSError as error:
        # Often standard output: its disk is full, or its terminal is gone.
        if interrupts.happened():
            return _told("Interrupted.", INTERRUPTED)
        return _told(f"Cannot continue: {error.strerror or error}.", INFRASTRUCTURE)
    except MemoryError:
        return _told("Cannot continue: there is not enough memory.", INFRASTRUCTURE)


def _told(text: str, status: int) -> int:
    with suppress(OSError):  # standard error may be gone, too
        say(text)
    return status
