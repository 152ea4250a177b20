"""Completions for a shell: names of shipped cases, words and targets.

A shell waits for this at each press of the tab key, and loading the corpus takes a second. So the
shipped case files are only searched for the lines of names and tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import click
from click.shell_completion import CompletionItem

from conformance.case.corpus import shipped_files, shipped_tags
from conformance.case.properties import VOCABULARY
from conformance.targets.catalogue import (
    ADAPTER,
    ADAPTERS,
    AUTO,
    COMPUTE_SANITIZER,
    EXEC,
    PLUGIN,
    TARGETS,
)

_NAME: Final = re.compile(r'^  - (?:name: *|\{"name": ")([\w.-]+)', re.MULTILINE)


def case_names(
    context: click.Context, parameter: click.Parameter, start: str
) -> list[CompletionItem]:
    """Files and themes; after a theme and a slash, its entries."""
    theme, slash, _ = start.partition("/")
    names: Iterable[str] = _themes()
    if slash:
        names = (f"{theme}/{name}" for name in _NAME.findall(_text(theme)))
    # Files first: where a shell has nothing else to offer.
    return [CompletionItem(start, type="file"), *_beginning(names, start)]


def words(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """The tags of the shipped cases and the words for calls, for ``-k``."""
    return _beginning((*shipped_tags(), *VOCABULARY), start)


def targets(context: click.Context, parameter: click.Parameter, start: str) -> list[CompletionItem]:
    """The names of targets, and the prefixes of those that are named by a path."""
    return _beginning((*(entry.name for entry in TARGETS), EXEC, PLUGIN), start)


def programs(
    context: click.Context, parameter: click.Parameter, start: str
) -> list[CompletionItem]:
    """The value of a target's option: a file, or a word that it takes."""
    words = {ADAPTER.name: ADAPTERS, COMPUTE_SANITIZER.name: (AUTO,)}.get(parameter.name or "", ())
    return [CompletionItem(start, type="file"), *_beginning(words, start)]


def _themes() -> Iterator[str]:
    return iter(shipped_files())


def _text(theme: str) -> str:
    """The text of a shipped case file; empty if no file has this name."""
    try:
        return shipped_files()[theme].read_text(encoding="utf-8")
    except (KeyError, OSError, ValueError):
        return ""


def _beginning(names: Iterable[str], start: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(start)]
