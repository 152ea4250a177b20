"""``gqa setup``: installs what a target needs."""

from __future__ import annotations

import click

from conformance.cli.common import ALL_AS_EXPECTED, BadArgument, say
from conformance.cli.console import SafeConsole
from conformance.cli.terminal import Terminal, make_console
from conformance.targets.catalogue import TargetEntry, entry_of
from conformance.targets.setup.onnxruntime_web import (
    how_to_use_onnxruntime_web,
    set_up_onnxruntime_web,
)
from conformance.targets.setup.python_packages import how_to_use_cuda, set_up_cuda
from conformance.targets.setup.tract import how_to_use_tract, set_up_tract
from conformance.targets.tools import (
    ONNXRUNTIME_GPU_VERSION,
    ONNXRUNTIME_WEB_VERSION,
    TRACT_VERSION,
)


class _SetupGroup(click.Group):
    """The subcommands, and each target's name as another name of the one that it needs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args or args[0].startswith("-") or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        entry = entry_of(args[0])
        if entry is None:
            known = ", ".join(self.list_commands(ctx))
            raise BadArgument(
                f"gqa setup does not know '{args[0]}'; known: {known}, and the targets of gqa run."
            )
        command = self.commands[entry.setup] if entry.setup else _nothing_to_install(entry)
        return entry.name, command, args[1:]


def _nothing_to_install(entry: TargetEntry) -> click.Command:
    def tell() -> int:
        click.echo(f"gqa setup installs nothing for {entry.name}. It needs {entry.needs}.")
        if entry.extra:
            click.echo(f"in a checkout of this suite: pip install -e '.[{entry.extra}]'")
        return ALL_AS_EXPECTED

    return click.Command(entry.name, callback=tell, help="Say what the target needs.")


@click.group(cls=_SetupGroup)
def setup() -> None:
    """Install what a target needs, in a folder of its own (GQA_TOOLS).

    The name of a target works, too: gqa setup wasm is gqa setup webgpu.
    """


@setup.command("tract")
@click.option(
    "--version", default=TRACT_VERSION, metavar="X.Y.Z", help=f"Default: {TRACT_VERSION}."
)
def setup_tract(version: str) -> int:
    """Build the tract binary with cargo, unless a working one is installed.

    \b
    Exit status: 0 installed   2 bad input   3 the build failed
    """
    terminal = Terminal(make_console(), SafeConsole(stderr=True))
    ready = set_up_tract(version, say)
    done = "built" if ready.new else "already installed"
    terminal.line(f"tract {version} is {done}: {ready.path}")
    terminal.line(f"use it with: {how_to_use_tract(ready.path)}")
    return ALL_AS_EXPECTED


@setup.command("cuda")
@click.option(
    "--version",
    default=ONNXRUNTIME_GPU_VERSION,
    metavar="X.Y.Z",
    help=f"Default: {ONNXRUNTIME_GPU_VERSION}.",
)
def setup_cuda(version: str) -> int:
    """Install onnxruntime-gpu, CUDA and cuDNN in an environment of their own, and name the GPU.

    \b
    Exit status: 0 installed, even if CUDA cannot be used here yet   2 bad input
                 3 the installation failed, or its Python does not start the runner
    """
    terminal = Terminal(make_console(), SafeConsole(stderr=True))
    ready = set_up_cuda(version, say)
    done = "installed" if ready.new else "already installed"
    terminal.line(f"onnxruntime-gpu {version} is {done}: {ready.path}")
    for line in how_to_use_cuda(version):
        terminal.line(line)
    return ALL_AS_EXPECTED


@setup.command("webgpu")
@click.option(
    "--version",
    default=ONNXRUNTIME_WEB_VERSION,
    metavar="X.Y.Z",
    help=f"Default: {ONNXRUNTIME_WEB_VERSION}.",
)
def setup_webgpu(version: str) -> int:
    """Install onnxruntime-web with npm, unless it is installed, and name the adapter it runs on.

    \b
    Exit status: 0 installed   2 bad input   3 the installation failed, or the runner does not start
    """
    terminal = Terminal(make_console(), SafeConsole(stderr=True))
    ready = set_up_onnxruntime_web(version, say)
    done = "installed" if ready.new else "already installed"
    terminal.line(f"onnxruntime-web {version} is {done}: {ready.path}")
    for line in how_to_use_onnxruntime_web(version):
        terminal.line(line)
    return ALL_AS_EXPECTED
