"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from conformance.cli.common import BadArgument, check_writable
from conformance.targets.catalogue import OptionValues, run_options, target_names

if TYPE_CHECKING:
    from conformance.run.shard import Shard

PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...")
EXPRESSION = click.option(
    "-k",
    "expression",
    default="",
    metavar="EXPR",
    help="Only cases with these words and values, such as head_size=256; and, or, not.",
)

EPS = click.option(
    "--ep",
    "eps",
    multiple=True,
    metavar="TARGET",
    help=f"{', '.join(target_names())}; with @1.25.1 or @1.25.. in releases; repeat. Default: cpu.",
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
        return command(programs=OptionValues(**paths), **values)

    for option in reversed(known):
        add = click.option(
            option.flag,
            metavar=option.metavar,
            help=option.help,
            multiple=True,
        )
        wrapped = add(wrapped)
    return wrapped


@dataclass(frozen=True)
class TargetOptions:
    """The targets of a command, and the number of its processes."""

    eps: Sequence[str]
    jobs: int | None
    programs: OptionValues


@dataclass(frozen=True)
class OutputOptions:
    """The files that a command writes, in the order in which messages name them."""

    results: Path | None = None
    html: Path | None = None
    json: Path | None = None
    save_cases: Path | None = None
    save_shrunk: Path | None = None

    @property
    def named(self) -> list[tuple[str, Path]]:
        """The files that were given, each with its option."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        return [(f"--{name.replace('_', '-')}", path) for name, path in given if path is not None]

    def check_writable(self, json: str = "the report") -> None:
        """Raise `ResultsError` for a file that cannot be written, `BadArgument` for its name.

        ``json`` says what --json has.
        """
        nouns = {
            "--results": "results",
            "--json": json,
            "--save-cases": "cases",
            "--save-shrunk": "the smallest calls",
        }
        for option, path in self.named:
            check_writable(path, nouns.get(option, "the report"))
        for option, path in self.named:
            if option.startswith("--save-") and path.suffix not in (".yaml", ".yml"):
                raise BadArgument(f"{option} needs a file that ends in .yaml.")


def gathered(**kinds: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a command its options as objects, each with those that its fields name.

    ``targets=TargetOptions`` is the argument ``targets`` of the command.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def wrapped(**values: Any) -> int:
            for name, kind in kinds.items():
                known = {each.name for each in fields(kind)} & {*values}
                values[name] = kind(**{each: values.pop(each) for each in known})
            return command(**values)

        return wrapped

    return decorate


def shard_of(text: str) -> Shard:
    """The value of ``--shard``. Raises `BadArgument`."""
    from conformance.run.shard import Shard  # imports pydantic and NumPy

    shard = Shard.named(text)
    if shard is None:
        raise BadArgument(f"--shard: '{text}' is not a shard: it takes NUMBER/OF, such as 3/8.")
    return shard
