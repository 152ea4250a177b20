"""Options and arguments that several commands share, and the cases that they select."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from conformance.case.case import Case
from conformance.case.corpus import Corpus, find, names_of
from conformance.case.excluded import none_selected
from conformance.case.selection import compile_expression
from conformance.cli import completion
from conformance.targets.catalogue import Programs, run_options

PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=completion.case_names)
EXPRESSION = click.option(
    "-k",
    "expression",
    default="",
    metavar="EXPR",
    help="Only cases with these words and values, such as head_size=256; and, or, not.",
    shell_complete=completion.words,
)

JOBS = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 64),
    help="Processes, each with a runner; default: one for each core, for a GPU or a runner of"
    " yours 1.",
)
OUTPUT = click.Path(path_type=Path, dir_okay=False)
RESULTS = click.option("--results", type=OUTPUT, help="Results file.")
HTML = click.option("--html", type=OUTPUT, help="HTML report.")


def program_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives ``command`` the options of all targets; it gets their values as ``programs``.

    Each may be given several times, for a target with each value.
    """
    known = run_options()

    @functools.wraps(command)
    def wrapped(**values: Any) -> int:
        given = {option.name: values.pop(option.name) for option in known}
        return command(programs=Programs(**given), **values)

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


def selected_cases(paths: Sequence[str], expression: str) -> tuple[Corpus, list[Case]]:
    """The loaded corpus, and the cases that the arguments and ``-k`` select from it."""
    corpus = find(paths)
    selects = compile_expression(expression)
    chosen = [case for case in corpus.named if selects(names_of(case, None), case)]
    if not chosen:
        raise none_selected(selects, [(names_of(case, None), case) for case in corpus.named])
    return corpus, chosen
