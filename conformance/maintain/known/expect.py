"""Writes or updates an expectations file from results; see :func:`expect`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.base.files import read_plain
from conformance.base.paths import data_path
from conformance.base.words import plural
from conformance.base.yaml_source import MAX_BYTES, InputError, Problem, read_yaml
from conformance.case.case import Case
from conformance.judge.expectations import (
    Expectation,
    check_stale,
    load_expectations,
    load_pinned,
)
from conformance.maintain.known.observed import Observed, observed
from conformance.maintain.known.text import HEAD, edited, new_items
from conformance.maintain.known.update import TODO, TODO_WHY, Update, unexpected_in, update_for
from conformance.targets.catalogue import SANITIZED, entry_of


@dataclass(frozen=True)
class Expected:
    """An expectations file as it must be: its ``text``, and what was there ``before``.

    ``unexpected`` is the number of results that were unexpected; none is now. ``told`` has a
    sentence for each change of a line, and for what could not be used.
    """

    file: Path
    before: str | None
    text: str
    update: Update
    unexpected: int
    results: int
    told: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the file has to be written. A shipped one without a line need not be there."""
        if self.before is None and self.update.empty and _is_shipped(self.file):
            return False
        return self.text != self.before


def shipped_files(target: str) -> list[Path]:
    """The shipped files of a target, named as in results: its own, and those that come after it."""
    names: list[str | None] = [target]
    if (entry := entry_of(target.removesuffix(SANITIZED))) is not None:
        names += [entry.name, entry.kernel_variant_of]
    folder = data_path("expectations")
    return [folder / f"{name}.yaml" for name in dict.fromkeys(names) if name is not None]


def expect(target: str, results: Sequence[Path], file: Path, corpus: Sequence[Case]) -> Expected:
    """What ``file`` must say so that no result of ``target`` is unexpected.

    ``target`` is named as in results, without a version, and ``corpus`` are the shipped cases.
    Raises :class:`InputError` for files with errors, and for one that cannot be edited;
    `ResultsError` for results that cannot be read.
    """
    found = observed(target, results, corpus)
    cases = [subject.case for subject in found.subjects]
    others = load_expectations(each for each in shipped_files(target) if each != file)
    before = _text_of(file)
    own = [] if before is None else _own_lines(file, target)
    check_stale(own, cases, whole=_is_shipped(file), later=others)
    update = update_for(found, own, others, file)
    unexpected = len(unexpected_in(found, (*own, *others)))
    text = _new_text(file, before, target, update)
    _check(found, file, text, others, update)
    told = (*found.left_out, *_moves(own, update), *update.told, *_of_instability(found))
    return Expected(file, before, text, update, unexpected, len(found.at), told)


def pinned_text(
    target: str,
    results: Path,
    file: Path,
    pins: Set[tuple[str, str, str | None]],
    reasons: Mapping[str, tuple[str, str]],
) -> str:
    """What ``file`` must say so that it has a line for all of ``results`` that ``pins`` names, by
    case, version and adapter, whether the suite knows them or not.

    ``reasons`` has why a case is so, and the link, for new lines. Raises as :func:`expect`.
    """
    found = observed(target, [results], ())
    for (case, column), observations in found.at.items():
        key = found.subjects[case].case.id, found.version(column), found.columns[column].adapter
        found.at[case, column] = tuple(replace(one, red=key in pins) for one in observations)
    before = _text_of(file)
    own = [] if before is None else _own_lines(file, target)
    update = update_for(found, own, (), file)
    for number, (place, known) in enumerate(update.new):
        line = Expectation(known, file, 0, found.execution_provider, target)
        cases = (subject.case.id for subject in found.subjects if line.covers(subject))
        why, link = next((reasons[case] for case in cases if case in reasons), (TODO_WHY, TODO))
        update.new[number] = place, known.model_copy(update={"why": why, "link": link})
    return _new_text(file, before, target, update)


def _is_shipped(file: Path) -> bool:
    return file.parent == data_path("expectations")


def _text_of(file: Path) -> str | None:
    """The content of ``file``; None if there is none. Raises :class:`InputError`."""
    if not file.exists():
        return None
    read_yaml(file)  # its errors name their line
    return read_plain(file, MAX_BYTES).decode("utf-8-sig")


def _own_lines(file: Path, target: str) -> list[Expectation]:
    source = read_yaml(file)
    lines = load_pinned([file])
    named = source.data.get("target")
    if named != target:
        sentence = f"the file is for the target '{named}', and the results are for '{target}'"
        raise InputError([source.problem(("target",), sentence)])
    return lines


def _new_text(file: Path, before: str | None, target: str, update: Update) -> str:
    if before is not None:
        return edited(read_yaml(file), before, update)
    text = HEAD.format(target=target)
    with tempfile.TemporaryDirectory(prefix="gqa-") as folder:
        empty = Path(folder) / file.name
        empty.write_text(text, encoding="utf-8")
        return edited(read_yaml(empty), text, update)


def _check(
    found: Observed,
    file: Path,
    text: str,
    others: Sequence[Expectation],
    update: Update,
) -> None:
    """Raise :class:`InputError` unless ``text`` says what was meant and leaves nothing unexpected.

    The results are judged again, as a run judges them.
    """
    with tempfile.TemporaryDirectory(prefix="gqa-") as folder:
        copy = Path(folder) / file.name
        copy.write_text(text, encoding="utf-8")
        try:
            source = read_yaml(copy)
            made = [replace(line, file=file) for line in load_pinned([copy])]
        except InputError as error:
            moved = [replace(problem, file=file) for problem in error.problems]
            raise InputError(moved) from None
    wanted = new_items(read_yaml(file) if file.exists() else None, update)
    if source.data["expectations"] != (wanted or source.data["expectations"]):
        sentence = "its list cannot be edited; write it with a line for each field, without anchors"
        raise InputError([Problem(file, 0, 0, sentence)])
    cases = [subject.case for subject in found.subjects]
    check_stale(made, cases, whole=_is_shipped(file), later=others)
    if left := unexpected_in(found, (*made, *others)):
        case, column = left[0]
        first = f"{found.subjects[case].case.id} on {found.target}@{found.version(column)}"
        sentence = f"no line could be found for {plural(len(left), 'result')}, as {first}"
        raise InputError([Problem(file, 0, 0, sentence)])


def _moves(own: Sequence[Expectation], update: Update) -> list[str]:
    """The ranges that change, a sentence for each."""
    return [
        f"{own[place].file}:{own[place].line}: the range of versions is {versions} now, not "
        f"{own[place].known.versions}."
        for place, versions in sorted(update.ranges.items())
    ]


def _of_instability(found: Observed) -> list[str]:
    if not found.unstable:
        return []
    return [
        f"{plural(found.unstable, 'result')} did not repeat alone: this is instability of the "
        "target, which a line under `instability:` can explain (docs/report.md)."
    ]
