"""Writes or updates an expectations file from results; see :func:`expect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from conformance.base.paths import data_path
from conformance.base.target_names import at_release
from conformance.base.words import plural
from conformance.base.yaml_source import InputError, Problem, Source
from conformance.case.case import Case
from conformance.expectations.known import TODO, TODO_WHY
from conformance.expectations.match import Expectation, check_stale
from conformance.expectations.observed import At, observed
from conformance.expectations.read import load_expectations, read_lines
from conformance.expectations.update import Update, unexpected_in, update_for
from conformance.expectations.write import edited
from conformance.targets.catalogue import entry_of


@dataclass(frozen=True)
class ExpectationsText:
    """An expectations file as it must be: its ``text``, and whether that has to be written.

    Whatever was unexpected of so many ``results`` is so no more. ``told`` has a sentence for each
    change of a line, and for what could not be used.
    """

    before: str
    text: str
    changed: bool
    update: Update
    results: int
    told: tuple[str, ...]


def expect(
    target: str, results: Sequence[Path], file: Path, corpus: Sequence[Case]
) -> ExpectationsText:
    """What ``file`` must say so that no result of ``target`` is unexpected.

    ``target`` is named as in results, without a version, and ``corpus`` are the shipped cases.
    Raises :class:`InputError` for files with errors, and for one that cannot be edited;
    `ResultsError` for results that cannot be read.
    """
    found = observed(target, results, corpus)
    cases = [*found.cases.values()]
    shipped = file.parent == data_path("expectations")
    others = load_expectations(each for each in _shipped_files(target) if each != file)
    source, own = _there(file, target)
    check_stale(own, cases, whole=shipped, later=others)
    update = update_for(found, own, others, file)
    text = edited(source, update)
    # What comes out says what was meant, and a run judges no result of these as unexpected.
    _, lines = read_lines(file, text)
    if [line.known for line in lines] != update.lines(own):
        sentence = "its list cannot be edited; write it with a line for each field, without anchors"
        raise InputError([Problem(file, 0, 0, sentence)])
    check_stale(lines, cases, whole=shipped, later=others)
    if left := unexpected_in(found, (*lines, *others)):
        first = f"{min(left).case} on {at_release(target, min(left).version)}"
        sentence = f"no line could be found for {plural(len(left), 'result')}, as {first}"
        raise InputError([Problem(file, 0, 0, sentence)])
    told = [*found.left_out, *update.told]
    if found.unstable:
        told.append(
            f"{plural(found.unstable, 'result')} did not recur when run alone; a line with "
            "`varies: alone` can explain this (docs/expectations.md)."
        )
    # A shipped file without a line need not be there.
    changed = text != source.text or not (file.exists() or shipped)
    before = source.text if file.exists() else ""
    return ExpectationsText(before, text, changed, update, len(found.at), tuple(told))


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
    pinned = {At.of(*pin) for pin in pins}
    for at, there in found.at.items():
        found.at[at] = [one.model_copy(update={"unexpected": at in pinned}) for one in there]
    source, own = _there(file, target)
    update = update_for(found, own, (), file)
    for number, (place, known) in enumerate(update.new):
        line = Expectation(known, file, 0, found.execution_provider, target)
        cases = (one.id for one in found.cases.values() if line.covers(one))
        why, link = next((reasons[case] for case in cases if case in reasons), (TODO_WHY, TODO))
        update.new[number] = place, known.model_copy(update={"why": why, "link": link})
    return edited(source, update)


def _shipped_files(target: str) -> list[Path]:
    """The shipped files of a target, named as in results: its own, and those that come after it."""
    names: list[str | None] = [target]
    if (entry := entry_of(target)) is not None:
        names += [entry.name, entry.kernel_variant_of]
    folder = data_path("expectations")
    return [folder / f"{name}.yaml" for name in dict.fromkeys(names) if name is not None]


def _there(file: Path, target: str) -> tuple[Source, list[Expectation]]:
    """``file`` or, where there is none, a new one, and its lines.

    Raises :class:`InputError` for a file with errors, or of another target.
    """
    new = f"target: {target}\nexpectations: []\n"
    source, lines = read_lines(file, None if file.exists() else new)
    named = source.data["target"]
    if named != target:
        sentence = f"the file is for the target '{named}', and the results are for '{target}'"
        raise InputError([source.problem(("target",), sentence)])
    return source, lines
