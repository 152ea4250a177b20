"""The pins of a model itself, which has no case.

A pin is a line of an expectations file. That of the model itself names a use that fails:
``gemma/the_model[model=batches]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.base.versions import ordered_version
from conformance.expectations.known import TODO, Known
from conformance.expectations.match import Expectation
from conformance.expectations.read import read_lines
from conformance.expectations.update import Update
from conformance.expectations.write import edited
from conformance.model.answer.answers import ModelAnswer
from conformance.model.calls.groups import Group
from conformance.report.model_table import DRAWN, AnswerKind
from conformance.run.target import DescribedTarget

#: The use of a pin for a model that was not judged.
NOT_RUN: Final = "not run"
_MARK: Final = "[model="
PinnedAnswers = Mapping[str, Sequence[ModelAnswer]]


def is_of_model(line: Expectation) -> bool:
    """Whether a line pins the model itself, not a case."""
    return any(_MARK in pattern for pattern in line.known.cases)


class ModelPins:
    """The lines that pin the model itself; ``theme`` is the theme of its cases."""

    def __init__(self, lines: Sequence[Expectation], theme: str) -> None:
        self._lines = [line for line in lines if is_of_model(line)]
        self._theme = theme

    def line(
        self, target: DescribedTarget, group: Group, use: str, kind: AnswerKind
    ) -> Expectation | None:
        """The line that pins the answer of a group of layers on a target in a use."""
        for line in self._lines:
            is_pinned = _id(self._theme, group, use) in line.known.cases
            if is_pinned and line.known.verdict == _verdict(kind) and _is_for(line, target):
                return line
        return None

    def better(
        self, targets: Mapping[str, DescribedTarget], answers: PinnedAnswers
    ) -> Iterator[tuple[Expectation, str]]:
        """The lines whose answer is right now, with the target's name."""
        for name, target in targets.items():
            held = [self.line(target, *each[:3]) for each in failures_of_model(answers[name])]
            for line in self._lines:
                if _is_for(line, target) and line not in held:
                    yield line, name

    def text(
        self, file: Path, before: str, answers: PinnedAnswers, targets: Sequence[DescribedTarget]
    ) -> tuple[str, int]:
        """The text of an expectations file with lines that pin the model itself, and their number.

        ``before`` is the text without them; ``targets`` have one base name.
        """
        text, pinned = before, 0
        ordered = [(at, one) for one in targets if (at := ordered_version(one.version))]
        for at, target in sorted(ordered, key=lambda each: each[0]):
            failed = {
                (_id(self._theme, group, use), _verdict(kind)): why
                for group, use, kind, why in failures_of_model(answers[target.name])
            }
            pinned += len(failed)
            source, lines = read_lines(file, text)
            update = Update(len(failed))
            adapters = (target.adapter,) if target.adapter else ()
            for place, line in enumerate(lines):
                known = line.known
                if not (is_of_model(line) and _is_for(line, target) and known.adapters == adapters):
                    continue
                if failed.pop((known.cases[0], known.verdict), None) is None:
                    update.ranges[place] = f"{known.versions},<{at.public}"
            for (case, verdict), why in failed.items():
                said: dict[str, Any] = {
                    "cases": case,
                    "versions": f">={at.public}",
                    "verdict": verdict,
                }
                said |= {"adapters": adapters} if adapters else {}
                said |= {"link": TODO, "why": f"Pinned as it was: {why}"}
                update.new.append((len(lines), Known.model_validate(said)))
            text = edited(source, update)
        return text, pinned


def failures_of_model(
    answers: Sequence[ModelAnswer],
) -> Iterator[tuple[Group, str, AnswerKind, str]]:
    """The failures of the model itself: layers, use, kind of failure, and a sentence."""
    for one in answers:
        for part in one.bad:
            if not part.results:
                said = ": ".join(filter(None, (part.sentence, part.message)))
                yield one.group, part.use, part.kind, said
        if one.unseen and one.group.is_whole:
            yield one.group, NOT_RUN, "untried", f"not run: {one.unseen}"


def _is_for(line: Expectation, target: DescribedTarget) -> bool:
    named = line.target in (target.base, target.target.ep)
    return named and bool(target.lines_among([line]))


def _id(theme: str, group: Group, use: str) -> str:
    return f"{theme}/{group.name}{_MARK}{use}]"


def _verdict(kind: AnswerKind) -> str:
    return "unsupported" if kind == "untried" else DRAWN[kind]
