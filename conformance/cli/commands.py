"""The commands of ``gqa``, and what each kind of error is to its user."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

import click

from conformance import __version__
from conformance.base import interrupts
from conformance.base.tuning import one_thread
from conformance.cli.common import (
    ALL_AS_EXPECTED,
    BAD_INPUT,
    INFRASTRUCTURE,
    INTERRUPTED,
    say,
)

#: The commands, and what each is for.
COMMANDS: Final = {
    "bisect": "Find a release in which the verdict of a case, or its fault, changed.",
    "check": "Check whether targets compute the attention of a model correctly.",
    "diff": "Compare the results file NEW with the baseline OLD: what broke, vanished, was fixed …",
    "doctor": "Check each target: what it needs, what is installed, and how to install what is"
    " missing.",
    "env": "List the releases that are installed for targets such as cpu@1.25.1.",
    "expect": "Write expectations for results that are not as expected.",
    "export": "Write one result into DIR as a bug report: text, a stand-alone program, model"
    " and tensors.",
    "history": "Run the releases of a target, and say since when each call is right and where"
    " it broke.",
    "list": "List cases: their ids, or with --json their full descriptions.",
    "merge": "Join results files: shards of one run, and runs on several targets or releases.",
    "models": "Say which runtime runs which model right, and since when.",
    "power": "Run cases on kernels with a known fault, and list the faults that no case detects.",
    "report": "Write a report of one or more results files, with a column for each target of"
    " each file.",
    "run": "Run cases on targets, judge the results, and report what is unexpected.",
    "search": 'Find cases by what their calls are: "softcap and window and head_size>=256".',
    "setup": "Install what a target needs, in a folder of its own (GQA_TOOLS).",
    "show": "Show one case: the call, its contract, its links, and the ranges of its values.",
}
#: Those that are in the module of another one, or of another name.
_ELSEWHERE: Final = {"diff": "report", "list": "list_cases"}

#: Commands that were there, and what is there in their place.
_GONE: Final = {
    "cache": "a run keeps no models and values on the disk.",
    "plan": "docs/scale.md has matrices to copy, and gqa run takes --shard N/OF.",
}

#: What errors are to a user.
ERRORS: Final = {
    "conformance.base.yaml_source.InputError": BAD_INPUT,
    "conformance.model.reading.ModelError": BAD_INPUT,
    "conformance.cli.common.BadArgument": BAD_INPUT,
    "conformance.case.corpus.NothingMeant": BAD_INPUT,
    "conformance.case.selection.SelectionError": BAD_INPUT,
    "conformance.targets.catalogue.TargetError": BAD_INPUT,
    "conformance.targets.setup.programs.NoRelease": BAD_INPUT,
    "conformance.results.errors.ResultsError": INFRASTRUCTURE,
    "conformance.case.given.GivenError": INFRASTRUCTURE,
    "conformance.cli.one_result.NoResult": INFRASTRUCTURE,
    "conformance.cli.export.NotExported": INFRASTRUCTURE,
    "conformance.targets.setup.programs.SetupError": INFRASTRUCTURE,
    "conformance.results.bisect.CannotBisect": INFRASTRUCTURE,
}


def command(name: str) -> click.Command:
    """One of the commands."""
    with one_thread():
        module = import_module(f"conformance.cli.{_ELSEWHERE.get(name, name)}")
    found = (each for each in vars(module).values() if isinstance(each, click.Command))
    return next(each for each in found if each.name == name)


class _Commands(click.Group):
    """The commands, each imported when it is used: most take longer to import than to run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _GONE:
            ctx.fail(f"There is no command '{cmd_name}' any more: {_GONE[cmd_name]}")
        return command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        room = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, click.Command(name, help=purpose).get_short_help_str(room))
                    for name, purpose in sorted(COMMANDS.items())
                ]
            )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gqa-conformance", message="%(prog)s %(version)s")
def gqa() -> None:
    """Conformance tests for com.microsoft.GroupQueryAttention."""


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
    except Exception as error:
        for kind in type(error).__mro__:
            if (known := ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")) is not None:
                return _told(str(error), known)
        raise


def _told(text: str, status: int) -> int:
    with suppress(OSError):  # standard error may be gone, too
        say(text)
    return status
