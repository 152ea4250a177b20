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
    BadArgument,
    say,
)

#: The commands in groups, and what each is for.
GROUPS: Final = {
    "Use": {
        "models": "Look up which runtime runs which model right, and since when.",
        "check": "Check whether runtimes compute the attention of your model right.",
        "run": "Run test cases on runtimes, and report what is unexpected.",
        "show": "Show one test case: its call, what must come out, its values.",
        "list": 'List test cases: all, or those of a kind, "softcap and window".',
    },
    "Results": {
        "report": "Write results as a page, Markdown, JUnit, CSV, badges or a site.",
        "diff": "Compare two results files: what broke, and what is fixed.",
        "history": "Find since which release calls are right, and where they broke.",
        "expect": "Write down known failures, so that only new ones are red.",
        "export": "Write one result as a bug report, with a program that shows it.",
        "merge": "Join results files into one.",
    },
    "Upkeep": {
        "setup": "Install a runtime, or some of its releases.",
        "doctor": "Say which runtimes work here, and how to get the others.",
    },
}
COMMANDS: Final = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
#: Those that are in the module of another one, or of another name.
_ELSEWHERE: Final = {"diff": "report", "list": "list_cases"}

#: Commands of earlier versions, and what to type in their place.
OLD_NAMES: Final = {
    "bisect": "gqa history CASE_ID --good RELEASE --bad RELEASE",
    "cache": "gqa doctor",
    "env": "gqa setup TARGET@RELEASE or gqa setup --releases",
    "plan": "gqa run --shard N/OF",
    "power": "python -m conformance.maintain.power",
    "search": "gqa list EXPRESSION",
}

#: What errors are to a user.
ERRORS: Final = {
    "conformance.base.yaml_source.InputError": BAD_INPUT,
    "conformance.model.reading.ModelError": BAD_INPUT,
    "conformance.cli.common.BadArgument": BAD_INPUT,
    "conformance.case.corpus.NothingMeant": BAD_INPUT,
    "conformance.case.selection.SelectionError": BAD_INPUT,
    "conformance.report.values.NoSuchPlace": BAD_INPUT,
    "conformance.run.shard.ShardError": BAD_INPUT,
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
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return command(cmd_name)
        if ctx.resilient_parsing:  # for a shell's completion
            return None
        if cmd_name in OLD_NAMES:
            raise BadArgument(f"Instead of gqa {cmd_name}, type {OLD_NAMES[cmd_name]}")
        from conformance.base.explain import did_you_mean  # imports pydantic

        meant = did_you_mean(cmd_name, COMMANDS) or "; gqa --help lists them all."
        raise BadArgument(f"There is no command '{cmd_name}'{meant}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{name:{width}}", purpose) for name, purpose in commands.items()]
                )


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gqa-conformance", message="%(prog)s %(version)s")
def gqa() -> None:
    """Conformance tests for com.microsoft.GroupQueryAttention.

    gqa COMMAND --help explains a command.
    """


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
