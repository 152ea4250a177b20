"""Options and arguments that several commands have, and the cases that they select."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final

import click

from conformance.case.case import Case
from conformance.case.corpus import Corpus, find, names_of
from conformance.case.selection import SelectionError, compile_expression
from conformance.targets.registry import ADAPTERS, Programs

PATHS = click.argument("paths", nargs=-1, metavar="[PATH]...")
EXPRESSION = click.option(
    "-k", "expression", default="", metavar="EXPR", help="Only cases that match, as in pytest."
)
_PROGRAM_OPTIONS: Final = (
    click.option(
        "--ort-python",
        metavar="PYTHON",
        help="The interpreter whose onnxruntime is meant; this one's by default.",
    ),
    click.option(
        "--tract",
        metavar="PATH",
        help="The tract binary; by default $GQA_TRACT, then what gqa setup built, then PATH.",
    ),
    click.option(
        "--tract-python",
        metavar="PYTHON",
        help="The interpreter whose package tract is meant; this one's by default.",
    ),
    click.option(
        "--onnxruntime-web",
        metavar="FOLDER|VERSION",
        help="Where its node_modules lies, or a release that gqa setup installed; "
        "by default $GQA_ONNXRUNTIME_WEB, then the release that gqa setup installs.",
    ),
    click.option(
        "--adapter",
        metavar="WORD|PATH",
        help=f"What webgpu computes on: {', '.join(ADAPTERS)}, or a Vulkan driver's .json file; "
        "by default the system's own, else SwiftShader.",
    ),
)


def program_options(command: Callable[..., int]) -> Callable[..., int]:
    """Gives ``command`` the options that name programs, as its argument ``programs``."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> int:
        named = {field.name: options.pop(field.name) for field in fields(Programs)}
        return command(programs=Programs(**named), **options)

    for option in reversed(_PROGRAM_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def selected_cases(paths: Sequence[str], expression: str) -> tuple[Corpus, list[Case]]:
    """The cases that the arguments and ``-k`` mean, without a target."""
    corpus = find(paths)
    matches = compile_expression(expression)
    chosen = [case for case in corpus.named if matches(names_of(case, ""))]
    if not chosen:
        raise SelectionError(f"-k '{expression}' selects none of {len(corpus.named)} cases.")
    return corpus, chosen
