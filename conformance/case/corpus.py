"""Selects cases by paths, ids and ``FILE.yaml::name[…]``; without arguments, the whole corpus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from conformance.base.explain import did_you_mean
from conformance.base.paths import data_path
from conformance.case.case import Case
from conformance.case.load import load

_NO_CASE: Final = (".yaml", ".yml", "/")


class NothingMeant(ValueError):
    """An argument names no case; the message quotes it and suggests a similar name."""


@dataclass(frozen=True)
class Corpus:
    """The cases of all files that were loaded, and those of them that were ``named``.

    ``whole``: whether every shipped file is among the loaded ones.
    """

    loaded: tuple[Case, ...]
    named: tuple[Case, ...]
    whole: bool


def find(arguments: Sequence[str]) -> Corpus:
    """The cases named by ``arguments``; the shipped corpus if there are no arguments.

    An argument is a case file, a folder, ``FILE.yaml::name[axis=value,…]``, a shipped theme or the
    id of a shipped case. Raises :class:`NothingMeant`, and InputError for files with errors.
    """
    shipped = data_path("cases")
    paths: list[Path] = []
    wanted: list[tuple[str, Path | None]] = []
    for argument in arguments:
        file, separator, name = argument.partition("::")
        if separator:
            paths.append(Path(file))
            wanted.append((f"{Path(file).stem}/{name}", Path(file)))
        elif not os.path.exists(argument) and os.path.isfile(shipped / f"{argument}.yaml"):
            paths.append(shipped / f"{argument}.yaml")
            wanted.append(("", paths[-1]))
        elif os.path.exists(argument) or not _is_id(argument):
            paths.append(Path(argument))
            wanted.append(("", Path(argument)))
        else:
            paths.append(shipped / f"{argument.partition('/')[0]}.yaml")
            wanted.append((argument, None))
    if not arguments:
        paths, wanted = [shipped], [("", shipped)]
    missing = [path for path in paths if not os.path.exists(path) and path.parent == shipped]
    if missing:
        themes = [file.stem for file in shipped.glob("*.yaml")]
        raise NothingMeant(
            f"No case file and no shipped theme is called '{missing[0].stem}'"
            f"{did_you_mean(missing[0].stem, themes) or '.'}"
            " To name a case in a file of your own, write FILE.yaml::name."
        )
    loaded = load(list(dict.fromkeys(paths)))
    index = _Index(loaded)
    named: dict[str, Case] = {}
    for text, path in wanted:
        found = index.meant(text, path)
        if not found:
            near = did_you_mean(text, [case.id for case in loaded])
            raise NothingMeant(f"No case is called '{text}'{near or '.'}")
        named.update((case.id, case) for case in found)
    files = {case.file.resolve() for case in loaded}
    whole = all(file.resolve() in files for file in shipped.glob("*.yaml"))
    return Corpus(tuple(loaded), tuple(named.values()), whole)


def split_target(argument: str) -> tuple[str, str | None]:
    """An argument without its target, and the target: pytest's ids end in ``@cpu``."""
    if "::" not in argument and not _is_id(argument):
        return argument, None
    start = max(argument.find("::"), argument.rfind("]"), 0)
    place = argument.find("@", start)
    return (argument[:place], argument[place + 1 :]) if place > 0 else (argument, None)


def _is_id(argument: str) -> bool:
    theme, _, name = argument.partition("/")
    return bool(theme and name) and not argument.startswith(".") and not name.endswith(_NO_CASE)


class _Index:
    """Looks up loaded cases by id, entry and file."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._by_name: dict[str, list[Case]] = {}
        for case in cases:
            for name in dict.fromkeys((case.id, f"{case.theme}/{case.name}")):
                self._by_name.setdefault(name, []).append(case)
        self._places = {file: file.resolve() for file in {case.file for case in cases}}

    def meant(self, text: str, path: Path | None) -> list[Case]:
        """The cases of this id or entry (all if ``text`` is empty) whose file is below ``path``."""
        found = self._by_name.get(text, ()) if text else self._cases
        if path is None:
            return list(found)
        place = path.resolve()
        inside = {file for file, at in self._places.items() if at.is_relative_to(place)}
        return [case for case in found if case.file in inside]


def names_of(case: Case, ep: str) -> tuple[str, ...]:
    """The names that ``-k`` matches: folder, file, test with its target, and tags."""
    return (case.file.parent.name, case.file.name, f"{case.label}@{ep}", *case.tags)


@lru_cache(maxsize=1024)
def _is_shipped(file: Path) -> bool:
    return file.resolve().is_relative_to(data_path("cases").resolve())


def is_shipped(case: Case) -> bool:
    """Whether the case belongs to the shipped corpus."""
    return _is_shipped(case.file)
