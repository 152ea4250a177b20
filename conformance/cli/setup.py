"""``gqa setup``: gets what a target needs."""

from __future__ import annotations

import click
from rich.console import Console

from conformance.cli.common import ALL_AS_EXPECTED, BadArgument, say
from conformance.cli.terminal import Terminal, make_console, plural
from conformance.targets.setup.cargo import Progress as CargoProgress
from conformance.targets.setup.lavapipe import set_up_lavapipe
from conformance.targets.setup.onnxruntime_web import (
    how_to_use_onnxruntime_web,
    set_up_onnxruntime_web,
)
from conformance.targets.setup.tract import how_to_use_tract, set_up_tract
from conformance.targets.tools import ONNXRUNTIME_WEB_VERSION, TRACT_VERSION


def _how_far(at: CargoProgress) -> str:
    from conformance.report.text import clean

    crates = f"{plural(at.crates, 'crate')} begun, " if at.crates else ""
    return f"{crates}{clean(at.doing or 'starting cargo')}"


class _ThingsToSetUp(click.Group):
    """Answers what it does not know with what it does."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            known = ", ".join(self.list_commands(ctx))
            raise BadArgument(f"gqa setup cannot set up '{args[0]}'; what it can: {known}.")
        return super().resolve_command(ctx, args)


@click.group(cls=_ThingsToSetUp)
def setup() -> None:
    """Get what a target needs: a program, in a folder of its own (GQA_TOOLS), or a driver."""


@setup.command("tract")
@click.option(
    "--version", default=TRACT_VERSION, metavar="X.Y.Z", help=f"Default: {TRACT_VERSION}."
)
def setup_tract(version: str) -> int:
    """Build the tract binary with cargo, unless it is there and works.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be built
    """
    terminal = Terminal(make_console(), Console(stderr=True))
    with terminal.build() as step:
        ready = set_up_tract(version, say, lambda at: step(_how_far(at), at.seconds))
    terminal.line(f"tract {version} is {'built' if ready.new else 'there'}: {ready.path}")
    terminal.line(f"use it with: {how_to_use_tract(ready.path)}")
    return ALL_AS_EXPECTED


@setup.command("lavapipe")
@click.option("--dry-run", is_flag=True, help="Print the commands, and run none.")
def setup_lavapipe(dry_run: bool) -> int:
    """Install Mesa's software Vulkan driver with apt, as root, unless it is there.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be installed
    """
    done = set_up_lavapipe(say, dry_run)
    if done.there is None:
        for command in done.commands:
            click.echo(command)
        return ALL_AS_EXPECTED
    terminal = Terminal(make_console(), Console(stderr=True))
    is_there = "installed" if done.new else "there"
    terminal.line(f"lavapipe of Mesa {done.there.version} is {is_there}: {done.there.driver}")
    terminal.line("use it with: gqa run --ep webgpu --adapter lavapipe")
    return ALL_AS_EXPECTED


@setup.command("webgpu")
@click.option(
    "--version",
    default=ONNXRUNTIME_WEB_VERSION,
    metavar="X.Y.Z",
    help=f"Default: {ONNXRUNTIME_WEB_VERSION}.",
)
def setup_webgpu(version: str) -> int:
    """Install onnxruntime-web with npm, unless it is there, and say what it computes on.

    \b
    Exit status: 0 it is there   2 bad input   3 it could not be installed, or does not start
    """
    terminal = Terminal(make_console(), Console(stderr=True))
    with terminal.build() as step:
        ready = set_up_onnxruntime_web(version, say, lambda since: step("npm installs", since))
    word = "installed" if ready.new else "there"
    terminal.line(f"onnxruntime-web {version} is {word}: {ready.path}")
    for line in how_to_use_onnxruntime_web(version):
        terminal.line(line)
    return ALL_AS_EXPECTED
