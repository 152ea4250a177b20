"""The commands of ``gqa``, and the exit status for each kind of error."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final

import click

from conformance import __version__
from conformance.base import interrupts
from conformance.base.interrupts import undisturbed
from conformance.base.text import safe_name
from conformance.base.tuning import one_thread
from conformance.cli.common import BadArgument, Status, say

#: The commands in groups, each with its purpose.
GROUPS: Final = {
    "Use": {
        "models": "Look up which runtime runs which model right, and since when.",
        "check": "Check whether runtimes run your model right.",
        "rewrite": "Write your model in ONNX's standard operators instead.",
        "run": "Run test cases on runtimes, and report what is unexpected.",
        "fuzz": "Draw calls that nobody has written, and find what fails.",
        "show": "Show one test case: its call, what must come out, its values.",
        "list": 'List test cases: all, or those of a kind, "softcap and window".',
    },
    "Results": {
        "report": "Write results as a page, Markdown, JUnit, CSV, JSON or a site.",
        "diff": "Compare two results files: what broke, and what is fixed.",
        "history": "Find since which release calls are right, and where they broke.",
        "expect": "Write down known failures, so that only new ones are red.",
        "export": "Write one result as a bug report, with a program that shows it.",
        "merge": "Join results files, or the shards of a campaign, into one.",
    },
    "Upkeep": {
        "setup": "Install a runtime, or some of its releases.",
        "doctor": "Say which runtimes work here, and how to get the others.",
    },
}
COMMANDS: Final = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
#: The modules of the commands whose module has another name.
_ELSEWHERE: Final = {"diff": "report", "list": "list_cases", "merge": "report"}

#: The exit statuses for errors whose message is for the user.
ERRORS: Final = {
    "conformance.base.yaml_source.InputError": Status.BAD_INPUT,
    "conformance.graph.reading.ModelError": Status.BAD_INPUT,
    "conformance.cli.common.BadArgument": Status.BAD_INPUT,
    "conformance.case.corpus.NothingMeant": Status.BAD_INPUT,
    "conformance.case.selection.SelectionError": Status.BAD_INPUT,
    "conformance.report.shown_query.NoSuchPlace": Status.BAD_INPUT,
    "conformance.targets.catalogue.TargetError": Status.BAD_INPUT,
    "conformance.results.results_error.ResultsError": Status.INFRASTRUCTURE,
    "conformance.targets.setup.programs.SetupError": Status.INFRASTRUCTURE,
}


def command(name: str) -> click.Command:
    """The command with this name."""
    with one_thread(), undisturbed():  # pydantic makes an interrupt an error of its own
        module = import_module(f"conformance.cli.{_ELSEWHERE.get(name, name)}")
    members = (each for each in vars(module).values() if isinstance(each, click.Command))
    return next(each for each in members if each.name == name)


class _Commands(click.Group):
    """The commands, each imported when it is used: most take longer to import than to run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            return command(cmd_name)
        if ctx.resilient_parsing:  # a shell completes a word
            return None
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


#: The statuses for ``git bisect run``: 125 skips a commit, those from 128 on end the bisection.
_BISECT: Final[dict[int, int]] = {Status.INFRASTRUCTURE: 125, Status.BAD_INPUT: 128}


def run_command() -> int:
    """Runs the command that the arguments name, and prints its error, if any; the exit status."""
    status = _run()
    return _BISECT.get(status, status) if "--bisect" in sys.argv else status


def _run() -> int:
    try:
        status: int = gqa.main(prog_name="gqa", standalone_mode=False)
        return status
    except click.ClickException as error:
        error.show(text := io.StringIO())
        return _failed(text.getvalue().rstrip("\n"), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _failed("Interrupted.", Status.INTERRUPTED)
    except SystemExit as error:
        # click and rich raise it for a closed pipe, with a status that would mean UNEXPECTED.
        # With 0 click's own completion of a shell ends.
        return Status.INTERRUPTED if error.code else Status.AS_EXPECTED
    except OSError as error:
        # Often standard output: its disk is full, or its terminal is gone.
        if interrupts.happened():
            return _failed("Interrupted.", Status.INTERRUPTED)
        return _failed(f"Cannot continue: {error.strerror or error}.", Status.INFRASTRUCTURE)
    except MemoryError:
        return _failed("Cannot continue: there is not enough memory.", Status.INFRASTRUCTURE)
    except Exception as error:
        for kind in type(error).__mro__:
            if (known := ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")) is not None:
                return _failed(str(error), known)
        raise


def _failed(text: str, status: int) -> int:
    """Prints a message on standard error, and returns the status."""
    with suppress(OSError):  # standard error may be gone, too
        say(_with_short_arguments(text))
    return status


def _with_short_arguments(text: str) -> str:
    """A message in which each argument that it quotes is short and on one line."""
    for argument in sys.argv[1:]:
        for quoted in (argument, argument.partition("=")[2], os.path.normpath(argument)):
            if quoted and quoted != safe_name(quoted):
                text = text.replace(quoted, safe_name(quoted))
    return text
