"""``gqa setup``: installs runtimes and releases of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

import click

from conformance.base.target_names import split_release
from conformance.cli.common import BadArgument, Status, say
from conformance.harness.protocol import UnavailableAnswer
from conformance.harness.runner import RunnerFailed
from conformance.harness.session import Session
from conformance.targets.catalogue import OptionValues, Package, TargetEntry, entry_of
from conformance.targets.registry import target_for, targets_for
from conformance.targets.setup.installed import install, set_up_lavapipe
from conformance.targets.setup.programs import SetupError, with_fix

#: What it installs beside the targets: the last word of `LAVAPIPE`.
_LAVAPIPE: Final = "lavapipe"


@click.command(no_args_is_help=True)
@click.argument("names", nargs=-1, metavar="[TARGET[@RELEASE]]...")
def setup(names: Sequence[str]) -> int:
    """Install a runtime, or some of its releases.

    \b
    gqa setup webgpu                   what a target needs: cuda, node, tract or webgpu
    gqa setup lavapipe                 a software adapter for WebGPU, with float16
    gqa setup cpu@1.20.. wasm@1.27.0   releases, for use without a network

    A release is also installed when it is first used. Each has a folder in that of the tools, which
    gqa doctor prints; to remove a release, delete its folder. lavapipe is installed with the
    system's package manager, which needs root.

    \b
    Exit status: 0 installed, even if it cannot be used here yet   2 bad input
                 3 something could not be installed, or does not start
    """
    releases = [name for name in names if split_release(name)[1] is not None]
    entries = [_entry(name) for name in names if name not in (*releases, _LAVAPIPE)]
    targets = targets_for(releases)
    if _LAVAPIPE in names:
        set_up_lavapipe()
        click.echo("lavapipe is installed; --ep webgpu uses it unless there is a GPU.")
    for entry in entries:
        _set_up(entry)
    failed = False
    for target in targets:
        package, release = target.entry.package, target.release
        assert package is not None
        assert release is not None
        try:
            install(package, release, say)
        except SetupError as error:
            failed = True
            say(f"{target.label}: {error}")
        else:
            click.echo(f"{target.label}: installed")
    return Status.INFRASTRUCTURE if failed else Status.AS_EXPECTED


def _entry(name: str) -> TargetEntry:
    entry = entry_of(name)
    if entry is None:
        raise BadArgument(
            f"gqa setup does not know '{name}'; known: cuda, node, tract, webgpu, {_LAVAPIPE}, and"
            " the targets of gqa run."
        )
    return entry


def _set_up(entry: TargetEntry) -> None:
    """Install the pinned release of the package that a target needs, and print how to use it."""
    package = entry.package
    if package is None or not package.pinned:
        click.echo(f"gqa setup installs nothing for {entry.name}. It needs {entry.needs}.")
        if entry.extra:
            click.echo(f"in a checkout of this suite: pip install -e '.[{entry.extra}]'")
        return
    release = package.pinned
    new = install(package, release, say)
    done = "installed" if new else "already installed"
    click.echo(f"{package.name} {release} is {done}: {package.folder(release)}")
    for line in _how_to_use(entry, package, release):
        click.echo(line)


def _how_to_use(entry: TargetEntry, package: Package, release: str) -> list[str]:
    """Lines with the device, or why there is none, and the command that runs cases on a release.

    Starts the runner. Raises :class:`SetupError` if it does not start.
    """
    default, programs = target_for(entry.name).program, OptionValues()
    places = package.folder(release), package.installed_file(release)
    if default is None or default.path not in places:
        programs = OptionValues(**{package.option.name: package.value(release)})
    target = target_for(entry.name, programs)
    use = shlex.join(("gqa", "run", *target.arguments))
    try:
        with Session(target.command) as session:
            answer = session.start()
    except RunnerFailed as failure:
        raise SetupError(with_fix(failure.sentence, failure.fix)) from None
    if isinstance(answer, UnavailableAnswer):
        reason = with_fix(answer.reason, answer.fix)
        return [f"{entry.name} cannot be used yet: {reason}", f"Once that is fixed: {use}"]
    lacks = f", without {', '.join(answer.lacks)}" if answer.lacks else ""
    fix = next(filter(None, answer.lacks.values()), None)
    return [with_fix(f"device: {answer.device}{lacks}", fix), f"use it with: {use}"]
