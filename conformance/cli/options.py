"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.cli import completion
from conformance.cli.common import say
from conformance.targets.catalogue import Programs, run_options, target_names

if TYPE_CHECKING:
    from conformance.targets.registry import Target

PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=completion.case_names)
EXPRESSION = click.option(
    "-k",
    "expression",
    default="",
    metavar="EXPR",
    help="Only cases with these words and values, such as head_size=256; and, or, not.",
    shell_complete=completion.words,
)

EPS = click.option(
    "--ep",
    "eps",
    multiple=True,
    metavar="TARGET",
    help=f"{', '.join(target_names())}; with @1.25.1 or @1.25.. in releases; repeat. Default: cpu.",
    shell_complete=completion.targets,
)
JOBS = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    help="Processes, each with a runner; default: one for each core, for a GPU or a runner of"
    " yours 1.",
)
FILE = click.Path(path_type=Path, dir_okay=False)
RESULTS = click.option("--results", type=FILE, help="Results file.")
HTML = click.option("--html", type=FILE, help="HTML report.")


def program_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives ``command`` the options with paths of runtimes; it gets them as ``programs``.

    An option can be repeated: each value is a target.
    """
    known = run_options()

    @functools.wraps(command)
    def wrapped(**values: Any) -> int:
        paths = {option.name: values.pop(option.name) for option in known}
        return command(programs=Programs(**paths), **values)

    for option in reversed(known):
        add = click.option(
            option.flag,
            metavar=option.metavar,
            help=option.help,
            multiple=True,
            shell_complete=completion.programs,
        )
        wrapped = add(wrapped)
    return wrapped


def with_releases(targets: Sequence[Target]) -> list[Target]:
    """The targets, once the releases to which they are pinned are installed."""
    if not any(target.release for target in targets):
        return list(targets)
    from conformance.targets.setup.installed import with_release

    return [with_release(target, say) for target in targets]
