"""``gqa env``: the releases that are installed for ``--ep cpu@1.25.1``."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from conformance.cli import completion
from conformance.cli.common import ALL_AS_EXPECTED, INFRASTRUCTURE, BadArgument, say
from conformance.targets.catalogue import is_by_path
from conformance.targets.registry import Target, targets_for


def with_releases(targets: Sequence[Target]) -> list[Target]:
    """The targets, after the releases that they are pinned to are installed."""
    if not any(target.release for target in targets):
        return list(targets)
    from conformance.targets.setup.installed import with_release

    return [with_release(target, say) for target in targets]


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def env(context: click.Context, as_json: bool) -> int:
    """List the releases that are installed for targets such as cpu@1.25.1.

    A release is installed when it is first used, in a folder of its own below GQA_TOOLS.
    """
    if context.invoked_subcommand is not None:
        if as_json:
            raise BadArgument(f"gqa env {context.invoked_subcommand} takes no --json.")
        return ALL_AS_EXPECTED
    from conformance.targets.setup.installed import installed
    from conformance.targets.tools import tools_root

    found = installed()
    if as_json:
        listed = [
            {
                "targets": each.targets,
                "package": each.package.name,
                "release": each.release,
                "folder": str(each.folder),
                "bytes": each.size,
            }
            for each in found
        ]
        click.echo(json.dumps(listed, indent=1))
        return ALL_AS_EXPECTED
    total = 0
    for each in found:
        size = each.size
        total += size
        click.echo(f"{size / 1e6:7.0f} MB  {', '.join(each.targets)}")
    click.echo(f"{tools_root()}: {len(found)} releases, {total / 1e6:.0f} MB")
    return ALL_AS_EXPECTED


@env.command("install")
@click.argument(
    "names", nargs=-1, required=True, metavar="TARGET@RELEASE...", shell_complete=completion.targets
)
def install(names: Sequence[str]) -> int:
    """Install releases beforehand, such as cpu@1.20.. for use without a network.

    \b
    Exit status: 0 installed   2 bad input   3 a release could not be installed
    """
    targets = targets_for(names)
    for target in targets:
        if is_by_path(target.ep):
            raise BadArgument(f"{target.ep} has no releases; it runs as it is.")
        if target.release is None:
            raise BadArgument(f"{target.label} names no release; write {target.ep}@latest.")
    ready = with_releases(targets)
    for target in ready:
        if target.missing is None:
            click.echo(f"{target.label}: installed")
        else:
            say(f"{target.label}: {target.missing.message}")
    return INFRASTRUCTURE if any(target.missing for target in ready) else ALL_AS_EXPECTED


@env.command("remove")
@click.argument("names", nargs=-1, metavar="[TARGET@RELEASE]...")
@click.option("--all", "everything", is_flag=True, help="All releases that are installed.")
def remove(names: Sequence[str], everything: bool) -> int:
    """Remove releases that are installed.

    \b
    Exit status: 0 removed   2 bad input   3 a folder could not be removed
    """
    from conformance.targets.setup import installed as releases

    found = releases.installed()
    if everything == bool(names):
        raise BadArgument("Name the releases to remove, or give --all.")
    by_name = {target: each for each in found for target in each.targets}
    for name in names:
        if name not in by_name:
            raise BadArgument(
                f"{name} is not installed. Name releases one by one, as 'gqa env' lists them, or "
                "give --all."
            )
    for each in found if everything else dict.fromkeys(by_name[name] for name in names):
        releases.remove(each)
        click.echo(f"Removed {', '.join(each.targets)}.")
    if not found:
        click.echo("No release is installed.")
    return ALL_AS_EXPECTED
