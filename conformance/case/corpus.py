"""Selects cases by paths, ids and ``FILE.yaml::name[…]``; without arguments, the whole corpus."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from conformance.base.explain import did_you_mean
from conformance.base.paths import CASE_FILE_ENDINGS, PROFILES, data_path
from conformance.base.target_names import is_by_path
from conformance.case.case import TARGET_AXIS, Case
from conformance.case.load import load

_TARGET: Final = re.compile(rf"(?:^|,){TARGET_AXIS}=(.*)$", re.DOTALL)
_TAGS: Final = re.compile(r"^ *(?:- )?tags: *\[([^\]]*)\]", re.MULTILINE)
_NO_CASE: Final = (*CASE_FILE_ENDINGS, "/")


class NothingMeant(ValueError):
    """An argument names no case; the message quotes it and suggests a similar name."""


@dataclass(frozen=True)
class Corpus:
    """The cases of all loaded files, and those that the arguments name.

    ``meant`` has the cases of each argument, and the target in it, if it names one. ``whole``:
    whether every shipped file is among the loaded ones.
    """

    loaded: tuple[Case, ...]
    meant: tuple[tuple[tuple[Case, ...], str | None], ...]
    whole: bool

    @cached_property
    def named(self) -> tuple[Case, ...]:
        """The cases that any argument names, without repetition."""
        return tuple({case.id: case for cases, _ in self.meant for case in cases}.values())

    @property
    def targets(self) -> list[str]:
        """The targets that arguments name, without repetition."""
        return list(dict.fromkeys(target for _, target in self.meant if target is not None))

    @cached_property
    def _pairs(self) -> frozenset[tuple[str, str | None]]:
        return frozenset((case.id, target) for cases, target in self.meant for case in cases)

    def selects(self, case: Case, target: str) -> bool:
        """Whether an argument names ``case``, with ``target`` or without any."""
        return not self._pairs.isdisjoint(((case.id, None), (case.id, target)))

    def check_targets(self, targets: Sequence[str]) -> None:
        """Raise :class:`NothingMeant` if an argument names a target that the run lacks."""
        for target in self.targets:
            if target not in targets:
                known = ", ".join(targets)
                raise NothingMeant(
                    f"An argument names the target '{target}', and the run has {known};"
                    f" add --ep {target}, or leave '{TARGET_AXIS}={target}' out."
                )


def find(arguments: Sequence[str]) -> Corpus:
    """The cases named by ``arguments``; the shipped corpus if there are no arguments.

    An argument is a case file, a folder, ``FILE.yaml::name[axis=value,…]``, a shipped theme or the
    id of a shipped case. The brackets may leave out axes, and may name a target (``ep=cpu``).
    Raises :class:`NothingMeant`, and InputError for files with errors.
    """
    shipped, themes = data_path("cases"), shipped_files()
    wanted: list[tuple[Path, str, str | None]] = []
    for argument in arguments:
        if not argument:
            raise NothingMeant("An argument is empty; name a case file, a folder or a case.")
        if argument.endswith(".onnx"):
            raise NothingMeant(
                f"'{argument}' is an ONNX model, not a case file: gqa check takes it, and the same"
                " --ep."
            )
        text, target = split_target(argument)
        file, separator, name = text.partition("::")
        if separator:
            wanted.append((Path(file), f"{Path(file).stem}/{name}", target))
        elif not os.path.exists(text) and text in themes:
            wanted.append((themes[text], "", target))
        elif re.fullmatch(r"\w+", text) and not os.path.exists(text):
            raise NothingMeant(
                f"'{text}' is not a file, a folder or a theme of the corpus"
                f"{did_you_mean(text, themes) or '.'}"
            )
        elif os.path.exists(text) or not _is_id(text):
            wanted.append((Path(text), "", target))
        else:
            theme = text.partition("/")[0]
            wanted.append((themes.get(theme, shipped / f"{theme}.yaml"), text, target))
    if not arguments:
        wanted = [(shipped, "", None)]
    paths = dict.fromkeys(path for path, _, _ in wanted)
    for path in paths:
        if not os.path.exists(path) and path.parent == shipped:
            raise NothingMeant(
                f"No case file and no shipped theme is called '{path.stem}'"
                f"{did_you_mean(path.stem, themes) or '.'}"
                " To name a case in a file of your own, write FILE.yaml::name."
            )
    shipped_places = {shipped, *themes.values()}
    loaded = load(list(paths), checked=not shipped_places.issuperset(paths))
    index = _Index(loaded)
    meant = tuple((tuple(index.meant(path, text)), target) for path, text, target in wanted)
    files = {file.resolve() for file in {case.file for case in loaded}}
    whole = all(file.resolve() in files for file in themes.values())
    return Corpus(tuple(loaded), meant, whole)


def names_cases(argument: str) -> bool:
    """Whether `find` takes an argument for cases: a path, a theme or an id.

    Any other argument may be a word of an expression.
    """
    text, _ = split_target(argument)
    path = not re.search(r"\s", text) and ("/" in text or text.endswith((*_NO_CASE, ".onnx")))
    return path or "::" in text or os.path.exists(text) or text in shipped_files()


def name_on(case: Case, target: str | None) -> str:
    """The name of the case on a target in pytest: ``name[axis=value,…,ep=target]``.

    It ends in its only bracket, as pytest expects. Characters that cannot be printed, which a path
    in ``exec:`` may have, are written as in a URL. Without a target it is the case's label.
    """
    inside = list(map("=".join, case.axes.items()))
    if target is not None:
        shown = "".join(
            one if one.isprintable() and one != "%" else quote(one, "", errors="surrogateescape")
            for one in target
        )
        inside.append(f"{TARGET_AXIS}={shown}")
    return case.name + (f"[{','.join(inside)}]" if inside else "")


def split_target(argument: str) -> tuple[str, str | None]:
    """An argument without its target, and the target: ``name[axis=value,ep=cpu]``."""
    file, separator, name = argument.partition("::")
    if not separator or ("[" in file and not file.endswith(CASE_FILE_ENDINGS)):
        if not _is_id(argument):
            return argument, None
        file, separator, name = "", "", argument
    entry, bracket, rest = name.partition("[")
    found = _TARGET.search(rest[:-1]) if bracket and rest.endswith("]") else None
    if found is None:
        return argument, None
    target, more = found[1], ""
    if not is_by_path(target):  # a path may contain commas
        target, _, more = target.partition(",")
    axes = ",".join(filter(None, (rest[: found.start()], more)))
    inside = f"[{axes}]" if axes else ""
    return f"{file}{separator}{entry}{inside}", unquote(target, errors="surrogateescape")


def _is_id(argument: str) -> bool:
    theme, _, name = argument.partition("/")
    return bool(theme and name) and not argument.startswith(".") and not name.endswith(_NO_CASE)


class _Index:
    """Looks up loaded cases by file, entry and axes."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases
        self._places = {file: file.resolve() for file in {case.file for case in cases}}

    def meant(self, path: Path, text: str) -> list[Case]:
        """The cases below ``path`` that agree with ``text``: an id, or an entry with some axes.

        All cases below ``path`` if ``text`` is empty. Raises :class:`NothingMeant`.
        """
        place = path.resolve()
        inside = {file for file, at in self._places.items() if at.is_relative_to(place)}
        cases = [case for case in self._cases if case.file in inside]
        if not text:
            return cases
        entry, bracket, rest = text.partition("[")
        theme, _, name = entry.partition("/")
        found = [case for case in cases if (case.theme, case.name) == (theme, name)]
        if not found:
            known = dict.fromkeys(case.name for case in cases)
            near = [f"{theme}/{one}{bracket}{rest}" for one in known if did_you_mean(name, [one])]
            raise NothingMeant(f"No case is called '{text}'{did_you_mean(text, near) or '.'}")
        if not bracket:
            return found
        wanted = _axes(text, entry, rest)
        for axis, value in wanted.items():
            _check_axis(entry, axis, value, found)
        agreeing = [case for case in found if wanted.items() <= case.axes.items()]
        if not agreeing:
            raise NothingMeant(f"No case of {entry} has all of {rest.removesuffix(']')}.")
        return agreeing


def _axes(text: str, entry: str, rest: str) -> dict[str, str]:
    """The axes and values in the brackets of ``text``."""
    parts = [part.partition("=") for part in rest.removesuffix("]").split(",")]
    if not rest.endswith("]") or not all(axis and value for axis, _, value in parts):
        raise NothingMeant(f"'{text}' is not an id; write {entry}[axis=value,…].")
    axes = {axis: value for axis, _, value in parts}
    if len(axes) < len(parts):
        raise NothingMeant(f"'{text}' names an axis twice.")
    return axes


def _check_axis(entry: str, axis: str, value: str, cases: Sequence[Case]) -> None:
    """Raise :class:`NothingMeant` for an axis or a value that no case of the entry has."""
    axes = cases[0].axes
    if axis not in axes:
        known = f"it has {', '.join(axes)}" if axes else "it has none"
        raise NothingMeant(
            f"{entry} has no axis '{axis}'{did_you_mean(axis, axes) or f'; {known}.'}"
        )
    values = list(dict.fromkeys(case.axes[axis] for case in cases))
    if value not in values:
        near = did_you_mean(value, values) or f"; it has {_listed(values)}."
        raise NothingMeant(f"The axis '{axis}' of {entry} has no value '{value}'{near}")


def _listed(values: Sequence[str], most: int = 12) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(values[:most]) + more


def names_of(case: Case, target: str | None) -> tuple[str, ...]:
    """The names that ``-k`` matches: folder, file, test with its target, and tags."""
    return (case.file.parent.name, case.file.name, name_on(case, target), *case.tags)


@lru_cache(maxsize=1024)
def _is_shipped(file: Path) -> bool:
    shipped, place = data_path("cases").resolve(), file.resolve()
    return place.is_relative_to(shipped) and place.parent != shipped / PROFILES


def is_shipped(case: Case) -> bool:
    """Whether the case belongs to the shipped corpus."""
    return _is_shipped(case.file)


def shipped_files() -> dict[str, Path]:
    """The shipped case file of each theme: those written by hand, and those of covering rows."""
    shipped = data_path("cases")
    files = [*shipped.glob("*.yaml"), *(shipped / "covering").glob("*.yaml")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def profile_files(wanted: str) -> list[Path]:
    """The case files of the profiles with ``wanted`` in their names: ``gemma4`` is Gemma 4 E2B.

    A profile has the calls of a model; none is part of the corpus. Raises :class:`NothingMeant`.
    """
    files = sorted((data_path("cases") / PROFILES).glob("*.yaml"))
    plain = re.sub(r"[^a-z0-9]", "", wanted.lower())
    found = [file for file in files if plain and plain in file.stem.replace("_", "")]
    if not found:
        names = [file.stem for file in files]
        near = did_you_mean(wanted.lower(), names) or f"; there are {', '.join(names)}"
        raise NothingMeant(f"No profile is called '{wanted}'{near}.".replace("?.", "?"))
    return found


def shipped_tags() -> list[str]:
    """The tags of the shipped cases, without repetition.

    It searches the text of the files, since loading them is slow.
    """
    texts = (file.read_text(encoding="utf-8") for file in shipped_files().values())
    lists = (found for text in texts for found in _TAGS.findall(text))
    return list(dict.fromkeys(tag.strip() for found in lists for tag in found.split(",")))
